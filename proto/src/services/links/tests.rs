use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const CONFIG: Config = Config { resend_ns: 3 * MS, ack_wait_ns: MS };

/// Node 1 in life 10, node 2 in life 20, and what is on its way: when it arrives, to whom, which segment.
struct Pair {
    now_ns: u64,
    ends: [Links; 2],
    way: Vec<(u64, usize, Vec<u8>)>,
    sent: usize,
}

impl Pair {
    fn new() -> Self {
        let mut ends = [Links::new(CONFIG, 1, 10), Links::new(CONFIG, 2, 20)];
        ends[0].handle_life(2, 20);
        ends[1].handle_life(1, 10);
        Self { now_ns: MS, ends, way: Vec::new(), sent: 0 }
    }

    /// Lets everything that is due leave; `fate` says of each segment after how many ns copies of it arrive.
    fn send(&mut self, fate: &mut impl FnMut() -> Vec<u64>) {
        let mut body = Vec::new();
        for end in 0..2 {
            while let Some(to) = self.ends[end].poll_segment(self.now_ns, &mut body) {
                assert!(matches!(to, Segment::To { node, .. } if node == 2 - end as u32), "only the other node is known");
                assert!(body.len() <= HEAD_LEN + PIECE_MAX);
                self.sent += 1;
                for after in fate() {
                    self.way.push((self.now_ns + after, 1 - end, body.clone()));
                }
            }
        }
    }

    fn arrive(&mut self) {
        self.way.sort_by_key(|(at, ..)| *at);
        let due = self.way.iter().take_while(|(at, ..)| *at <= self.now_ns).count();
        for (_, to, body) in self.way.drain(..due).collect::<Vec<_>>() {
            let (from, life) = if to == 0 { (2, 20) } else { (1, 10) };
            self.ends[to].handle_segment(self.now_ns, from, life, &body).unwrap();
        }
    }

    /// To the next thing that happens; false when nothing will.
    fn step(&mut self) -> bool {
        let timeouts = self.ends.iter().filter_map(Links::poll_timeout);
        let Some(next) = timeouts.chain(self.way.iter().map(|(at, ..)| *at)).min() else { return false };
        self.now_ns = self.now_ns.max(next);
        true
    }

    fn received(&mut self, end: usize) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.ends[end].poll_message()).map(|(_, message)| message).collect()
    }
}

#[test]
fn small_messages_share_a_segment_and_large_ones_take_many() {
    let mut pair = Pair::new();
    let messages: Vec<Vec<u8>> = (0..50u8).map(|n| vec![n; 10]).chain([vec![7; 5 * PIECE_MAX], vec![]]).collect();
    for message in &messages {
        pair.ends[0].send(2, message).unwrap();
    }
    pair.send(&mut || vec![0]);
    pair.arrive();
    assert_eq!(pair.received(1), messages);
    let bytes: usize = messages.iter().map(|message| message.len() + 4).sum();
    assert_eq!(pair.sent, bytes.div_ceil(PIECE_MAX), "every segment but the last is full");
}

#[test]
fn what_is_acknowledged_is_not_sent_again_and_what_is_not_is() {
    let mut pair = Pair::new();
    pair.ends[0].send(2, b"one").unwrap();
    pair.send(&mut || vec![0]);
    pair.arrive();
    assert_eq!(pair.ends[1].poll_timeout(), Some(MS + CONFIG.ack_wait_ns));
    pair.now_ns += CONFIG.ack_wait_ns;
    pair.send(&mut || vec![0]);
    pair.arrive();
    assert_eq!((pair.ends[0].waiting(2), pair.ends[0].poll_timeout(), pair.ends[1].poll_timeout()), (0, None, None));
    pair.ends[0].send(2, b"two").unwrap();
    pair.send(&mut Vec::new);
    pair.now_ns += CONFIG.resend_ns - 1;
    pair.send(&mut Vec::new);
    assert_eq!(pair.ends[0].resent(), 0);
    pair.now_ns += 1;
    pair.send(&mut || vec![0]);
    pair.arrive();
    assert_eq!((pair.ends[0].resent(), pair.received(1)), (1, vec![b"one".to_vec(), b"two".to_vec()]));
}

/// The numbers on the wire end, and begin again.
#[test]
fn a_link_goes_on_behind_the_last_number_of_its_segments() {
    for before in [0, 1, 5, 200] {
        let mut pair = Pair::new();
        let at = NUMBERS - before;
        pair.ends[0].links.get_mut(&2).unwrap().last_number = at;
        pair.ends[1].links.get_mut(&1).unwrap().through = at;
        let messages: Vec<Vec<u8>> = (0..2000u32).map(|n| vec![n as u8; 1 + n as usize % PIECE_MAX]).collect();
        let (mut received, mut count) = (Vec::new(), 0);
        for message in &messages {
            pair.ends[0].send(2, message).unwrap();
        }
        // Every seventh segment is lost, every third comes late, and twice.
        let mut fate = || {
            count += 1;
            match count {
                n if n % 7 == 0 => vec![],
                n if n % 3 == 0 => vec![MS / 2, 2 * MS],
                _ => vec![0],
            }
        };
        for _ in 0..10_000 {
            pair.send(&mut fate);
            pair.arrive();
            received.extend(pair.received(1));
            if !pair.step() {
                break;
            }
        }
        assert_eq!(received, messages);
        assert_eq!(pair.ends[0].waiting(2), 0, "all of it is acknowledged");
        assert!(pair.ends[0].links[&2].last_number > NUMBERS + 500);
    }
}

#[test]
fn numbers_of_segments_are_those_nearest_to_what_was_sent_and_received() {
    let mut link = Link::new(1);
    assert_eq!((on_wire(0), on_wire(1), on_wire(NUMBERS), on_wire(NUMBERS + 1)), (0, 1, u32::MAX, 1));
    assert_eq!([0, 1, 7, u32::MAX].map(|n| link.sent_as(n).ok()), [Some(0), None, None, None], "nothing was sent");
    assert_eq!([1, 7, u32::MAX].map(|n| link.came_as(n).ok()), [Some(1), Some(7), None]);
    (link.last_number, link.through) = (NUMBERS + 3, NUMBERS + 3);
    assert_eq!([u32::MAX, 1, 3, 4].map(|n| link.sent_as(n).ok()), [Some(NUMBERS), Some(NUMBERS + 1), Some(NUMBERS + 3), None]);
    assert_eq!([u32::MAX, 3, 4].map(|n| link.came_as(n).ok()), [Some(NUMBERS), Some(NUMBERS + 3), Some(NUMBERS + 4)]);
    for number in [1, 2, NUMBERS - 1, NUMBERS, NUMBERS + 1, 5 * NUMBERS + 77] {
        (link.last_number, link.through) = (number, number);
        assert_eq!((link.sent_as(on_wire(number)), link.came_as(on_wire(number))), (Ok(number), Ok(number)));
        assert_eq!(link.came_as(on_wire(number + 1)), Ok(number + 1));
    }
}

#[test]
fn a_new_life_begins_with_nothing_of_the_former_one() {
    let mut pair = Pair::new();
    pair.ends[0].send(2, b"for the former life").unwrap();
    let mut old = Vec::new();
    pair.ends[0].poll_segment(pair.now_ns, &mut old).unwrap();
    pair.ends[1].begin_incarnation(21);
    assert_eq!(pair.ends[1].handle_segment(pair.now_ns, 1, 10, &old), Err(Refused::OldLife));
    pair.ends[0].handle_life(2, 21);
    assert_eq!((pair.ends[0].waiting(2), pair.ends[0].life(2)), (0, Some(21)));
    pair.ends[0].handle_life(2, 20);
    assert_eq!(pair.ends[0].life(2), Some(21), "lives only grow");
    pair.ends[0].send(2, b"new").unwrap();
    pair.send(&mut || vec![0]);
    pair.arrive();
    assert_eq!(pair.received(1), [b"new"]);
    assert_eq!(pair.ends[0].send(9, b""), Err(Refused::Unknown));
}

/// Agents that are started together have one incarnation, and a switch that does not know where a
/// host is hands its frames to everybody.
#[test]
fn a_segment_for_another_node_of_the_same_incarnation_is_not_taken() {
    let mut one = Links::new(CONFIG, 1, 7);
    let mut others = [Links::new(CONFIG, 2, 7), Links::new(CONFIG, 3, 7)];
    [2, 3].iter().for_each(|node| one.handle_life(*node, 7));
    others.iter_mut().for_each(|other| other.handle_life(1, 7));
    one.send(2, b"for node 2").unwrap();
    let mut body = Vec::new();
    assert!(matches!(one.poll_segment(0, &mut body), Some(Segment::To { node: 2, .. })));
    others[1].handle_segment(MS, 1, 7, &body).unwrap();
    assert_eq!((others[1].poll_message(), others[1].poll_timeout()), (None, None), "nor acknowledged");
    others[0].handle_segment(MS, 1, 7, &body).unwrap();
    assert_eq!(others[0].poll_message(), Some((1, b"for node 2".to_vec())));
}

/// Behind a length that no message has, nothing can be told apart any more: the rest is not read as if it could.
#[test]
fn a_message_longer_than_any_closes_the_link_until_that_node_begins_anew() {
    let mut pair = Pair::new();
    pair.ends[0].send(2, b"before").unwrap();
    pair.send(&mut || vec![0]);
    let mut body = Vec::new();
    pair.ends[0].send(2, b"changed on its way").unwrap();
    pair.ends[0].poll_segment(pair.now_ns, &mut body).unwrap();
    let at = body.len() - 4 - b"changed on its way".len();
    body[at..at + 4].copy_from_slice(&(MESSAGE_MAX as u32 + 1).to_be_bytes());
    pair.arrive();
    assert_eq!(pair.ends[1].handle_segment(pair.now_ns, 1, 10, &body), Err(Refused::Closed));
    pair.ends[0].send(2, b"behind").unwrap();
    pair.ends[0].poll_segment(pair.now_ns, &mut body).unwrap();
    assert_eq!(pair.ends[1].handle_segment(pair.now_ns, 1, 10, &body), Err(Refused::Closed));
    assert_eq!(pair.received(1), [b"before"]);
    pair.ends[0].begin_incarnation(11);
    pair.ends[1].handle_life(1, 11);
    pair.ends[0].send(2, b"of a new life").unwrap();
    pair.ends[0].poll_segment(pair.now_ns, &mut body).unwrap();
    assert_eq!(pair.ends[1].handle_segment(pair.now_ns, 1, 11, &body), Ok(()));
    assert_eq!(pair.received(1), [b"of a new life"]);
}

#[test]
fn what_waits_is_bounded_and_told() {
    let mut pair = Pair::new();
    let large = vec![0; MESSAGE_MAX];
    assert_eq!(pair.ends[0].send(2, &large), Ok(()));
    assert_eq!(pair.ends[0].send(2, &large), Err(Refused::TooMuch));
    let mut segments = 0;
    let mut body = Vec::new();
    while pair.ends[0].poll_segment(pair.now_ns, &mut body).is_some() {
        segments += 1;
    }
    assert_eq!(segments, WINDOW, "no more are in flight");
}

/// When it arrives, from whom, at whom, which segment.
type OnTheWay = (u64, usize, usize, Vec<u8>);

#[test]
fn a_message_for_several_leaves_once_and_what_one_misses_is_sent_to_it_alone() {
    let mut one = Links::new(CONFIG, 1, 10);
    let mut others = [Links::new(CONFIG, 2, 20), Links::new(CONFIG, 3, 30), Links::new(CONFIG, 4, 40)];
    for node in 2..=4u32 {
        one.handle_life(node, 10 * node);
        others[node as usize - 2].handle_life(1, 10);
    }
    let message = vec![7; 3 * PIECE_MAX];
    one.send_to_all(&[2, 3], &message).unwrap();
    one.send(2, b"behind it").unwrap();
    let (mut body, mut frames) = (Vec::new(), 0);
    while let Some(segment) = one.poll_segment(MS, &mut body) {
        let receivers = match segment {
            Segment::Shared { is_one_of_many } => {
                assert!(is_one_of_many);
                frames += 1;
                0..3
            }
            Segment::To { node, .. } => node as usize - 2..node as usize - 1,
        };
        // Node 3 misses the second one.
        for to in receivers.filter(|to| !(*to == 1 && frames == 2)) {
            assert_eq!(others[to].handle_segment(MS, 1, 10, &body), Ok(()), "node 4 is not meant, and knows it");
        }
    }
    assert_eq!(frames, 4, "as many as one node needs");
    assert_eq!(others[0].poll_message(), Some((1, message.clone())));
    assert_eq!(others[0].poll_message(), Some((1, b"behind it".to_vec())));
    assert_eq!((others[1].poll_message(), others[2].poll_message()), (None, None));
    for other in &mut others[..2] {
        assert_eq!(other.poll_segment(2 * MS, &mut body), Some(Segment::To { node: 1, is_again: false }));
        one.handle_segment(2 * MS, other.node, 10 * other.node, &body).unwrap();
    }
    assert_eq!((one.waiting(2), one.waiting(3) > 0), (0, true));
    assert_eq!(one.poll_segment(MS + CONFIG.resend_ns, &mut body), Some(Segment::To { node: 3, is_again: true }));
    others[1].handle_segment(5 * MS, 1, 10, &body).unwrap();
    assert_eq!(others[1].poll_message(), Some((1, message)));
    // Few of many nodes: the others are not bothered.
    (5..=8).for_each(|node| one.handle_life(node, 1));
    one.send_to_all(&[2, 3], b"few").unwrap();
    assert_eq!(one.poll_segment(6 * MS, &mut body), Some(Segment::To { node: 2, is_again: false }));
}

proptest! {
    /// Losses, doubles and delays of any kind: every message arrives once and in order, both ways, and then there is rest.
    #[test]
    fn every_message_arrives_once_and_in_order(
        sizes in prop::collection::vec((0usize..2, 0usize..4000), 1..40),
        fates in prop::collection::vec(prop_oneof![
            4 => Just(vec![100_000]), 1 => Just(vec![]), 1 => Just(vec![50_000, 9 * MS]), 1 => Just(vec![5 * MS])
        ], 1..60),
    ) {
        let mut pair = Pair::new();
        let mut expected = [Vec::new(), Vec::new()];
        for (n, (end, size)) in sizes.into_iter().enumerate() {
            let message = vec![n as u8; size];
            pair.ends[end].send(2 - end as u32, &message).unwrap();
            expected[1 - end].push(message);
        }
        let mut fates = fates.into_iter();
        // Once the list is through, nothing is lost any more.
        let mut fate = || fates.next().unwrap_or_else(|| vec![100_000]);
        let mut steps = 0;
        loop {
            pair.arrive();
            pair.send(&mut fate);
            steps += 1;
            prop_assert!(steps < 10_000, "it comes to rest");
            if !pair.step() {
                break;
            }
        }
        prop_assert_eq!(pair.received(0), std::mem::take(&mut expected[0]));
        prop_assert_eq!(pair.received(1), std::mem::take(&mut expected[1]));
        prop_assert_eq!((pair.ends[0].waiting(2), pair.ends[1].waiting(1)), (0, 0));
    }

    /// Node 1 tells the same to nodes 2 and 3, and each of them something of its own between; frames to everybody reach each as they like.
    #[test]
    fn what_is_for_several_arrives_at_each_once_and_in_order(
        sizes in prop::collection::vec((0usize..4, 0usize..6000), 1..30),
        fates in prop::collection::vec(prop_oneof![
            4 => Just(vec![100_000]), 1 => Just(vec![]), 1 => Just(vec![50_000, 9 * MS]), 1 => Just(vec![5 * MS])
        ], 1..80),
    ) {
        let mut nodes: Vec<Links> = (1..=3).map(|node| Links::new(CONFIG, node, 10 * node)).collect();
        for (at, links) in nodes.iter_mut().enumerate() {
            for other in (0..3).filter(|other| *other != at) {
                links.handle_life(other as u32 + 1, 10 * (other as u32 + 1));
            }
        }
        let mut fates = fates.into_iter();
        let mut sizes = sizes.into_iter().enumerate();
        let (mut way, mut now_ns): (Vec<OnTheWay>, _) = (Vec::new(), MS);
        let (mut expected, mut received) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
        let (mut body, mut steps) = (Vec::new(), 0);
        loop {
            if let Some((n, (kind, size))) = sizes.next() {
                let message = vec![n as u8; size];
                let to: &[u32] = match kind { 0 => &[2], 1 => &[3], _ => &[2, 3] };
                if let [one] = to { nodes[0].send(*one, &message) } else { nodes[0].send_to_all(to, &message) }.unwrap();
                to.iter().for_each(|node| expected[*node as usize - 1].push(message.clone()));
            }
            for (at, links) in nodes.iter_mut().enumerate() {
                while let Some(segment) = links.poll_segment(now_ns, &mut body) {
                    prop_assert!(body.len() <= FRAME_SAFE - BODY_AT);
                    let to = match segment { Segment::To { node, .. } => node as usize - 1..node as usize, Segment::Shared { .. } => 0..3 };
                    for to in to.filter(|to| *to != at) {
                        for after in fates.next().unwrap_or_else(|| vec![100_000]) {
                            way.push((now_ns + after, at, to, body.clone()));
                        }
                    }
                }
            }
            let next = nodes.iter().filter_map(Links::poll_timeout).chain(way.iter().map(|(at, ..)| *at)).min();
            let Some(next) = next else { if sizes.len() == 0 { break } else { continue } };
            now_ns = now_ns.max(next);
            way.sort_by_key(|(at, ..)| *at);
            let due = way.iter().take_while(|(at, ..)| *at <= now_ns).count();
            for (_, from, to, body) in way.drain(..due) {
                nodes[to].handle_segment(now_ns, from as u32 + 1, 10 * (from as u32 + 1), &body).unwrap();
            }
            for (links, received) in nodes.iter_mut().zip(&mut received) {
                received.extend(std::iter::from_fn(|| links.poll_message()).map(|(_, message)| message));
            }
            steps += 1;
            prop_assert!(steps < 10_000, "it comes to rest");
        }
        prop_assert_eq!(received, expected);
        prop_assert_eq!((nodes[0].waiting(2), nodes[0].waiting(3)), (0, 0));
    }

    #[test]
    fn hostile_segments_are_refused_or_taken_and_never_end_it(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..40)) {
        let mut pair = Pair::new();
        for body in bodies {
            let mut shared = [0u32.to_be_bytes(), 1u32.to_be_bytes(), 1u32.to_be_bytes(), 10u32.to_be_bytes()].concat();
            shared.extend(&body);
            let _ = pair.ends[0].handle_segment(MS, 2, 20, &shared);
            let _ = pair.ends[0].handle_segment(MS, 2, 20, &body);
            let mut named = [1u32.to_be_bytes(), 10u32.to_be_bytes()].concat();
            named.extend(body);
            let _ = pair.ends[0].handle_segment(MS, 2, 20, &named);
        }
        let mut body = Vec::new();
        while pair.ends[0].poll_segment(MS, &mut body).is_some() {}
    }
}
