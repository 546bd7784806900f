//! What a leader does about copies of its data: agents may drop entries that every server of the list has read, and no others; a server that does not go
//! on is taken off the list; while one lags, the leader proposes no more. No clock and no socket.

use crate::course::Course;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Bytes of entries that agents keep at most for servers to read. They refuse proposals from
/// 2 MiB on (`fide_proto::services::groups`), so some room is left for what servers say of themselves.
const WINDOW: usize = 1280 << 10;
/// The same before this leader has let agents drop anything: they may keep as much of former terms.
const FIRST_WINDOW: usize = 512 << 10;
/// After so many bytes of entries agents could drop them.
const STEP: usize = 96 << 10;
/// And after this time, however few they are: others may begin from the state then.
const STEP_AFTER: Duration = Duration::from_secs(10);
/// What an entry takes beside its bytes, about.
const ENTRY_LEN: usize = 64;
/// A member of the group, or a server's process, that is gone is taken off the list once; if that is not decided, again after this.
const AGAIN: Duration = Duration::from_millis(500);

/// Entries up to here could be dropped, and this is the state behind them.
#[derive(Debug)]
struct Mark {
    index: u64,
    bytes: usize,
    state: Vec<u8>,
}

/// A server of the list that has not read all that it must.
#[derive(Debug)]
struct Behind {
    index: u64,
    since: Instant,
}

/// What this server keeps in mind of copies, from its first entry on.
#[derive(Debug)]
pub struct Copies {
    marks: VecDeque<Mark>,
    /// Bytes behind the last mark.
    unmarked: usize,
    /// Bytes that agents keep, as far as this server can know.
    kept: usize,
    /// This leader has let agents drop entries.
    has_dropped: bool,
    marked: Instant,
    /// The last entry of the stream.
    stream: u64,
    behind: BTreeMap<u64, Behind>,
    asked: BTreeMap<u64, Instant>,
}

impl Copies {
    /// Nothing is known.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            marks: VecDeque::new(),
            unmarked: 0,
            kept: 0,
            has_dropped: false,
            marked: now,
            stream: 0,
            behind: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Another server leads, or this one begins to.
    pub fn has_leader(&mut self) {
        self.has_dropped = false;
        // Of an earlier leadership: others may have dropped more since.
        self.marks.clear();
        (self.unmarked, self.kept) = (0, 0);
        self.behind.clear();
        self.asked.clear();
    }

    /// An entry was read and applied; `is_stream`: of the leader's stream.
    pub fn read(&mut self, course: &Course, index: u64, len: usize, is_stream: bool, leads: bool, now: Instant) {
        if is_stream {
            self.stream = index;
        }
        if !leads {
            return;
        }
        self.kept += len + ENTRY_LEN;
        self.unmarked += len + ENTRY_LEN;
        if self.unmarked >= STEP || now.duration_since(self.marked) >= STEP_AFTER {
            self.marks.push_back(Mark { index, bytes: std::mem::take(&mut self.unmarked), state: course.snapshot() });
            self.marked = now;
        }
    }

    /// Entries that agents need not keep any more: the last of them, and the state behind it.
    pub fn to_drop(&mut self, course: &Course) -> Option<(u64, Vec<u8>)> {
        let read = course.read_by_all().unwrap_or(u64::MAX);
        let mut last = None;
        while self.marks.front().is_some_and(|mark| mark.index <= read) {
            let Some(mark) = self.marks.pop_front() else { break };
            self.kept = self.kept.saturating_sub(mark.bytes);
            last = Some((mark.index, mark.state));
        }
        self.has_dropped |= last.is_some();
        last
    }

    /// The leader may propose more of its stream, beside so many bytes that are under way.
    #[must_use]
    pub fn has_room(&self, under_way: usize) -> bool {
        self.kept + under_way < if self.has_dropped { WINDOW } else { FIRST_WINDOW }
    }

    /// The last entry of the stream that was read here.
    #[must_use]
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// For how long a server has not read what others have, as this leader knows.
    #[must_use]
    pub fn lag(&self, client: u64, now: Instant) -> Duration {
        self.behind.get(&client).map_or(Duration::ZERO, |behind| now.saturating_duration_since(behind.since))
    }

    /// Who is to be taken off the list by this leader: who is gone, and who has not read what others have for `lag_max`.
    pub fn to_take_off(
        &mut self,
        course: &Course,
        is_gone: impl Fn(u64, u16) -> bool,
        lag_max: Duration,
        now: Instant,
    ) -> Vec<u64> {
        self.behind.retain(|client, _| course.holders.contains_key(client));
        self.asked.retain(|client, at| course.holders.contains_key(client) && now.duration_since(*at) < AGAIN);
        let mut off = Vec::new();
        for (client, holder) in &course.holders {
            let lags = if holder.index >= self.stream {
                self.behind.remove(client);
                false
            } else {
                let behind = self.behind.entry(*client).or_insert(Behind { index: holder.index, since: now });
                if behind.index != holder.index {
                    *behind = Behind { index: holder.index, since: now };
                }
                now.duration_since(behind.since) >= lag_max
            };
            if (lags || is_gone(*client, holder.member)) && !self.asked.contains_key(client) {
                self.asked.insert(*client, now);
                off.push(*client);
            }
        }
        off
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::{HolderRef, Proposal};

    fn apply(course: &mut Course, client: u64, proposal: Proposal<'_>) {
        let mut bytes = Vec::new();
        proposal.write(&mut bytes);
        course.apply(client, client as u16, &bytes);
    }

    fn holds(course: &mut Course, client: u64, index: u64) {
        let address = format!("h{client}:6379");
        let holder = HolderRef { index, applied: 0, is_whole: true, zone: "", host: "h", address: &address };
        let (term, breaks) = (course.term, course.breaks);
        (0..2).for_each(|_| apply(course, client, Proposal::Holds { term, breaks, holder }));
    }

    /// A leader that has read so many entries of 64 KiB, and two that follow.
    fn led(entries: u64) -> (Copies, Course, Instant) {
        let (mut course, now) = (Course::default(), Instant::now());
        let mut copies = Copies::new(now);
        apply(
            &mut course,
            1,
            Proposal::Lead { term: 1, is_listed: false, lease_ms: 0, zone: "", host: "h1", address: "h1:6379" },
        );
        holds(&mut course, 2, 0);
        holds(&mut course, 3, 0);
        copies.has_leader();
        for index in 1..=entries {
            copies.read(&course, index, 64 << 10, true, true, now);
        }
        (copies, course, now)
    }

    #[test]
    fn no_entry_is_dropped_that_a_server_of_the_list_has_not_read() {
        let (mut copies, mut course, _) = led(9);
        assert_eq!(copies.to_drop(&course), None);
        assert!(!copies.has_room(0), "nobody has read anything");
        holds(&mut course, 2, 9);
        assert_eq!(copies.to_drop(&course), None);
        holds(&mut course, 3, 5);
        let (index, state) = copies.to_drop(&course).unwrap();
        assert_eq!((index, copies.has_room(0)), (4, true));
        assert!(Course::of_snapshot(&state).is_some());
        apply(&mut course, 1, Proposal::Out { term: 1, client: 3 });
        assert_eq!(copies.to_drop(&course).map(|(index, _)| index), Some(8));
        // A leader that is alone keeps none.
        apply(&mut course, 1, Proposal::Out { term: 1, client: 2 });
        copies.read(&course, 10, 64 << 10, true, true, Instant::now());
        assert_eq!(copies.to_drop(&course).map(|(index, _)| index), Some(10));
    }

    #[test]
    fn who_does_not_go_on_or_is_gone_is_taken_off_the_list_once() {
        let (mut copies, mut course, now) = led(3);
        let lag_max = Duration::from_secs(2);
        let nobody = |_, _| false;
        let at = |s| now + Duration::from_secs(s);
        assert_eq!(copies.to_take_off(&course, nobody, lag_max, now), [0; 0]);
        holds(&mut course, 2, 2);
        assert_eq!(copies.to_take_off(&course, nobody, lag_max, at(1)), [0; 0]);
        assert_eq!(copies.to_take_off(&course, nobody, lag_max, at(2)), [3], "the other one goes on");
        assert_eq!(copies.to_take_off(&course, nobody, lag_max, at(2)), [0; 0]);
        holds(&mut course, 2, 3);
        holds(&mut course, 3, 3);
        assert_eq!(copies.to_take_off(&course, nobody, lag_max, at(60)), [0; 0], "nothing was written");
        assert_eq!(copies.to_take_off(&course, |client, member| client == 2 && member == 2, lag_max, at(60)), [2]);
        assert_eq!(copies.to_take_off(&course, |client, _| client == 2, lag_max, at(61)), [2], "it was not decided");
    }
}
