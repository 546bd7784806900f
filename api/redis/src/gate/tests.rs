use super::*;
use proptest::prelude::*;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::fd::IntoRawFd as _;
use std::os::unix::net::UnixStream;

/// A client, and the server's descriptor of it, which the gate closes.
fn client(gate: &Gate) -> (UnixStream, i32) {
    let (client, server) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let fd = server.into_raw_fd();
    assert!(gate.accepted(fd));
    (client, fd)
}

fn write(gate: &Gate, fd: i32, bytes: &[u8]) -> Option<isize> {
    // SAFETY: as many bytes as said.
    gate.write(fd, &[bytes], || unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

/// As the server does.
fn close_as_server(gate: &Gate, fd: i32) {
    if !gate.closes(fd) {
        // SAFETY: it is open, and not used any more.
        unsafe { libc::close(fd) };
    }
}

/// What has come, and whether it was the end.
fn read(client: &mut UnixStream) -> (Vec<u8>, bool) {
    let (mut all, mut buffer) = (Vec::new(), [0; 65536]);
    loop {
        match client.read(&mut buffer) {
            Ok(0) => return (all, true),
            Ok(len) => all.extend_from_slice(&buffer[..len]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return (all, false),
            Err(_) => return (all, true),
        }
    }
}

/// The server's own stream is caught from here on.
fn catch(gate: &Gate) -> (TcpStream, i32) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let fd = listener.accept().unwrap().0.into_raw_fd();
    assert!(gate.accepted(fd));
    assert_eq!(gate.catch(&source), Some(0));
    (source, fd)
}

fn all(gate: &Gate) -> (Option<u64>, Vec<u8>) {
    let mut out = Vec::new();
    (gate.take(&mut out, usize::MAX).ticket, out)
}

#[test]
fn what_is_written_leaves_when_its_turn_is_confirmed_and_not_before() {
    let gate = Gate::default();
    let ((mut one, fd), (mut two, other)) = (client(&gate), client(&gate));
    assert_eq!(write(&gate, fd, b"before"), Some(6));
    assert_eq!(read(&mut one).0, b"before", "a server that does not lead");
    let (_source, source) = catch(&gate);
    gate.hold();
    assert_eq!(write(&gate, fd, b"a"), Some(1));
    assert_eq!(write(&gate, source, b"set a"), Some(5));
    assert!(gate.end_turn(&mut Reads::default()));
    assert_eq!(all(&gate), (Some(1), b"set a".to_vec()));
    assert_eq!(write(&gate, fd, b"b"), Some(1));
    assert_eq!(gate.write(other, &[b"c", b"d"], || unreachable!()), Some(2));
    assert!(gate.end_turn(&mut Reads::default()));
    assert_eq!(all(&gate), (Some(2), Vec::new()), "a turn that only read is confirmed, too");
    assert_eq!((read(&mut one), read(&mut two)), ((vec![], false), (vec![], false)));
    let mut slow = Vec::new();
    gate.release(1, &mut slow);
    assert_eq!((read(&mut one).0, read(&mut two).0), (b"a".to_vec(), vec![]));
    assert_eq!(gate.waiting(), 2);
    gate.release(2, &mut slow);
    assert_eq!((read(&mut one).0, read(&mut two).0, slow.len()), (b"b".to_vec(), b"cd".to_vec(), 0));
    [fd, other, source].into_iter().for_each(|fd| close_as_server(&gate, fd));
}

#[test]
fn a_turn_is_confirmed_by_what_holds_all_of_its_stream() {
    let gate = Gate::default();
    let ((_one, fd), (_source, source)) = (client(&gate), catch(&gate));
    gate.hold();
    write(&gate, fd, b"a").unwrap();
    write(&gate, source, b"0123456789").unwrap();
    gate.end_turn(&mut Reads::default());
    let mut out = Vec::new();
    let mut take = || gate.take(&mut out, 4);
    assert_eq!(take(), Taken { ticket: None, is_any: true, cut: None });
    assert_eq!(take(), Taken { ticket: None, is_any: true, cut: None });
    assert_eq!(take(), Taken { ticket: Some(1), is_any: true, cut: Some(0) });
    assert_eq!(take(), Taken { ticket: None, is_any: false, cut: Some(0) });
    assert_eq!((out.as_slice(), gate.caught()), (&b"0123456789"[..], Some(10)));
    // A stream that is not all confirms nothing any more.
    write(&gate, source, b"lost").unwrap();
    gate.break_off();
    write(&gate, fd, b"b").unwrap();
    assert!(gate.end_turn(&mut Reads::default()));
    assert_eq!((gate.take(&mut out, 100).ticket, gate.caught()), (None, None));
    close_as_server(&gate, source);
    gate.cut();
    close_as_server(&gate, fd);
}

#[test]
fn a_stream_whose_connection_is_closed_goes_on_by_another_one() {
    let gate = Gate::default();
    let ((mut one, fd), (_source, source)) = (client(&gate), catch(&gate));
    gate.hold();
    let end_turn = |expects: bool| assert_eq!(gate.end_turn(&mut Reads::default()), expects);
    write(&gate, fd, b"1").unwrap();
    write(&gate, source, b"set 1 ").unwrap();
    end_turn(true);
    // Two turns whose stream goes nowhere, while a part of what was before is taken.
    close_as_server(&gate, source);
    assert_eq!((gate.gap(), gate.caught()), (Some(6), None));
    write(&gate, fd, b"2").unwrap();
    end_turn(true);
    let mut out = Vec::new();
    assert_eq!(gate.take(&mut out, 4).ticket, None);
    write(&gate, fd, b"3").unwrap();
    end_turn(true);
    assert_eq!(gate.take(&mut out, 100).ticket, Some(1), "what was before");
    assert_eq!((out.as_slice(), gate.take(&mut Vec::new(), 100).is_any), (&b"set 1 "[..], false));
    // The next one: what the server writes there passes, and is caught from somewhere on.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(!gate.admit(&own), "the server does not know it yet");
    let next = listener.accept().unwrap().0.into_raw_fd();
    assert!(gate.accepted(next) && gate.admit(&own));
    write(&gate, next, b"+CONTINUE set 2 ").unwrap();
    let mut passed = [0; 16];
    own.read_exact(&mut passed).unwrap();
    assert_eq!(gate.catch_again(&own), Some(16));
    write(&gate, fd, b"4").unwrap();
    write(&gate, next, b"set 4 ").unwrap();
    end_turn(true);
    assert!(!gate.take(&mut Vec::new(), 100).is_any, "what is missing comes first");
    gate.fill(b"set 2 set 3 ");
    assert_eq!((gate.gap(), gate.caught()), (None, Some(24)));
    end_turn(true);
    assert!(!gate.take(&mut Vec::new(), 100).is_any, "the server may have more to write of it");
    gate.close_gap(23);
    assert!(gate.has_gap(), "it has");
    gate.close_gap(24);
    out.clear();
    assert_eq!(gate.take(&mut out, 8).ticket, None, "a turn in the gap may have written all of it");
    assert_eq!(gate.take(&mut out, 100), Taken { ticket: Some(4), is_any: true, cut: Some(0) });
    assert_eq!(out, b"set 2 set 3 set 4 ");
    gate.release(4, &mut Vec::new());
    assert_eq!(read(&mut one).0, b"1234");
    // All of what was missing is written behind that point.
    close_as_server(&gate, next);
    write(&gate, fd, b"5").unwrap();
    end_turn(true);
    write(&gate, fd, b"6").unwrap();
    end_turn(true);
    let mut own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let next = listener.accept().unwrap().0.into_raw_fd();
    assert!(gate.accepted(next) && gate.catch_again(&own).is_some());
    gate.fill(b"");
    write(&gate, next, b"set 5 set 6 ").unwrap();
    end_turn(true);
    gate.close_gap(36);
    assert_eq!(gate.take(&mut Vec::new(), 6).ticket, None, "its turn may have written the rest");
    assert_eq!(gate.take(&mut Vec::new(), 6), Taken { ticket: Some(6), is_any: true, cut: Some(0) });
    gate.release(6, &mut Vec::new());
    assert_eq!(read(&mut one).0, b"56");
    own.set_nonblocking(true).unwrap();
    assert!(own.read(&mut [0; 1]).is_err(), "it is caught");
    // One that is closed before the gap is filled is one too many.
    close_as_server(&gate, next);
    let (_own, again) = (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0.into_raw_fd());
    assert!(gate.accepted(again) && gate.catch_again(&_own).is_some());
    close_as_server(&gate, again);
    assert_eq!((gate.gap(), gate.caught()), (None, None));
    gate.cut();
    close_as_server(&gate, fd);
}

#[test]
fn clients_of_a_server_that_leads_no_more_are_cut_off() {
    let gate = Gate::default();
    let ((mut one, fd), (mut two, other), (_source, source)) = (client(&gate), client(&gate), catch(&gate));
    gate.hold();
    write(&gate, fd, b"not decided").unwrap();
    write(&gate, other, b"neither").unwrap();
    close_as_server(&gate, other);
    gate.end_turn(&mut Reads::default());
    gate.cut();
    assert_eq!((read(&mut one), read(&mut two)), ((vec![], true), (vec![], true)));
    assert_eq!(write(&gate, fd, b"from the server's own buffer"), Some(28), "it goes nowhere");
    gate.release(u64::MAX, &mut Vec::new());
    assert_eq!(read(&mut one), (vec![], true));
    close_as_server(&gate, fd);
    // The number is another client's now.
    let (mut next, fd) = client(&gate);
    assert_eq!(write(&gate, fd, b"hello"), Some(5));
    assert_eq!(read(&mut next).0, b"hello");
    [fd, source].into_iter().for_each(|fd| close_as_server(&gate, fd));
}

/// The client hangs up, its reply goes nowhere, the server closes it, and leads no more: all in one turn.
#[test]
fn a_client_that_goes_when_leadership_does_leaves_nothing_to_the_next_of_its_number() {
    let gate = Gate::default();
    let ((one, fd), (_source, source)) = (client(&gate), catch(&gate));
    gate.hold();
    write(&gate, fd, b"first").unwrap();
    gate.end_turn(&mut Reads::default());
    drop(one);
    write(&gate, fd, b"second").unwrap();
    gate.release(1, &mut Vec::new());
    assert!(!gate.closes(fd), "nothing of it waits");
    gate.cut();
    let (mut next, server) = UnixStream::pair().unwrap();
    next.set_nonblocking(true).unwrap();
    // SAFETY: the number is the next client's; what was there is closed.
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&server), fd) };
    assert!(gate.accepted(fd));
    gate.hold();
    write(&gate, fd, b"hello").unwrap();
    assert!(gate.end_turn(&mut Reads::default()));
    gate.release(all(&gate).0.unwrap(), &mut Vec::new());
    assert_eq!(read(&mut next).0, b"hello");
    [fd, source].into_iter().for_each(|fd| close_as_server(&gate, fd));
}

#[test]
fn what_the_server_closes_gets_its_last_reply_first() {
    let gate = Gate::default();
    let ((mut one, fd), (_source, source)) = (client(&gate), catch(&gate));
    gate.hold();
    write(&gate, fd, b"+OK\r\n").unwrap();
    close_as_server(&gate, fd);
    gate.end_turn(&mut Reads::default());
    assert_eq!(read(&mut one), (vec![], false));
    gate.release(1, &mut Vec::new());
    assert_eq!(read(&mut one), (b"+OK\r\n".to_vec(), true));
    close_as_server(&gate, source);
}

#[test]
fn a_client_that_reads_slowly_gets_everything_and_the_server_waits_for_it() {
    let gate = Gate::default();
    let ((mut one, fd), (_source, source)) = (client(&gate), catch(&gate));
    gate.hold();
    let (mut written, mut came, mut slow) = (0, 0, Vec::new());
    let mut was_full = false;
    while written < 16 << 20 {
        match write(&gate, fd, &[7; 65536]) {
            Some(len) => written += len.cast_unsigned(),
            None => {
                was_full = true;
                came += read(&mut one).0.len();
            }
        }
        gate.end_turn(&mut Reads::default());
        let ticket = all(&gate).0.unwrap_or(0);
        gate.release(ticket, &mut slow);
        gate.resume(&mut slow);
    }
    while came < written {
        gate.resume(&mut slow);
        came += read(&mut one).0.len();
    }
    assert!(was_full && came == written && slow.is_empty());
    [fd, source].into_iter().for_each(|fd| close_as_server(&gate, fd));
}

#[test]
fn within_a_lease_replies_leave_at_once_but_for_those_that_show_what_is_not_decided() {
    use crate::reads::{Access, Keys};
    let gate = Gate::default();
    let (mut reads, mut clients) = (Reads::default(), [(); 3].map(|()| client(&gate)));
    let (_source, source) = catch(&gate);
    reads.begin(true);
    gate.hold();
    let fds = [0, 1, 2].map(|at| clients[at].1);
    let run = |reads: &mut Reads, at: usize, words: [&str; 2], reply: &[u8]| {
        let keys = Keys { first: 1, last: 1, step: 1 };
        reads.reads_from(fds[at]);
        let access = if words[0] == "get" { Access::Reads(keys) } else { Access::Writes(keys) };
        reads.executes(access, 2, |at| words[at].as_bytes());
        write(&gate, fds[at], reply).unwrap();
    };
    let mut told = |at: usize| String::from_utf8(read(&mut clients[at].0).0).unwrap();
    let later = |ms: u64| gate.set_lease(now_ns() + ms * 1_000_000);
    run(&mut reads, 0, ["get", "a"], b"1");
    write(&gate, source, b"ping").unwrap();
    assert!(gate.end_turn(&mut reads), "without a lease an entry is needed");
    assert_eq!((told(0).as_str(), all(&gate)), ("", (Some(1), b"ping".to_vec())));
    gate.release(1, &mut Vec::new());
    assert_eq!(told(0), "1");
    later(10_000);
    run(&mut reads, 0, ["get", "a"], b"1");
    assert!(!gate.end_turn(&mut reads));
    assert_eq!((told(0).as_str(), all(&gate)), ("1", (None, vec![])));
    // One writes, one reads that, and one something else.
    run(&mut reads, 0, ["set", "a"], b"+OK");
    write(&gate, source, b"set a 2").unwrap();
    run(&mut reads, 1, ["get", "a"], b"2");
    run(&mut reads, 2, ["get", "b"], b"b");
    assert!(gate.end_turn(&mut reads));
    assert_eq!([told(0), told(1), told(2)], ["", "", "b"]);
    run(&mut reads, 1, ["get", "b"], b"b");
    run(&mut reads, 2, ["get", "a"], b"2");
    gate.end_turn(&mut reads);
    assert_eq!([told(1), told(2)], ["", ""], "in the order of its commands; and it shows what is not decided");
    assert_eq!(all(&gate), (Some(2), b"set a 2".to_vec()), "one entry for all of them");
    gate.release(2, &mut Vec::new());
    assert_eq!([told(0), told(1), told(2)], ["+OK", "2b", "2"]);
    run(&mut reads, 2, ["get", "a"], b"2");
    gate.end_turn(&mut reads);
    assert_eq!(told(2), "2", "it is decided");
    // An operator's command is to be confirmed, and its client waits.
    let turn = gate.turn();
    run(&mut reads, 2, ["get", "a"], b"2");
    assert!(gate.end_turn(&mut reads) && told(2).is_empty());
    gate.release(all(&gate).0.filter(|ticket| *ticket >= turn).unwrap(), &mut Vec::new());
    assert_eq!(told(2), "2");
    // A lease that ends soon is renewed; one that has ended is none.
    later(30);
    run(&mut reads, 2, ["get", "a"], b"2");
    assert!(gate.end_turn(&mut reads) && gate.take(&mut Vec::new(), 1).is_any, "an entry for the lease alone");
    told(2);
    gate.set_lease(now_ns());
    run(&mut reads, 2, ["get", "a"], b"2");
    assert!(gate.end_turn(&mut reads) && told(2).is_empty());
    gate.cut();
    fds.into_iter().chain([source]).for_each(|fd| close_as_server(&gate, fd));
}

#[test]
fn other_descriptors_pass() {
    let gate = Gate::default();
    gate.hold();
    let (mut one, mut two) = io::pipe().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&two);
    assert_eq!(gate.write(fd, &[b"x"], || 1), Some(1));
    assert!(!gate.closes(fd) && !gate.closes(-1) && !gate.accepted(-1) && !gate.accepted(i32::MAX));
    two.write_all(b"y").unwrap();
    let mut byte = [0];
    one.read_exact(&mut byte).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the order: a client has what was written to it in turns that were confirmed, and nothing else; and what is taken is the stream.
    #[test]
    fn no_client_gets_what_is_not_confirmed(steps in prop::collection::vec((0u8..6, 0usize..3, 1usize..300), 1..120)) {
        let gate = Gate::default();
        let mut clients: Vec<(UnixStream, i32)> = (0..3).map(|_| client(&gate)).collect();
        let (source, own) = catch(&gate);
        gate.hold();
        // What each has got, what was written to it, and how much of that when each turn ended.
        let (mut got, mut written) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
        let (mut ends, mut stream, mut taken) = (vec![([0; 3], 0)], Vec::new(), Vec::new());
        let (mut proposed, mut slow) = (0, Vec::new());
        let mut touched = false;
        for (at, (what, which, len)) in steps.into_iter().enumerate() {
            let bytes = vec![at as u8; len];
            match what {
                0 | 1 => {
                    prop_assert_eq!(write(&gate, clients[which].1, &bytes), Some(len.cast_signed()));
                    written[which].extend(bytes);
                    touched = true;
                }
                2 => {
                    write(&gate, own, &bytes).unwrap();
                    stream.extend(bytes);
                }
                3 => {
                    gate.end_turn(&mut Reads::default());
                    if std::mem::take(&mut touched) {
                        ends.push((std::array::from_fn(|n| written[n].len()), stream.len()));
                    }
                }
                4 => {
                    if let Some(ticket) = gate.take(&mut taken, len).ticket {
                        prop_assert!(ends[ticket as usize].1 <= taken.len(), "all of the turn's stream is proposed");
                        proposed = ticket;
                    }
                }
                _ => {
                    gate.release(proposed, &mut slow);
                    for (n, (client, _)) in clients.iter_mut().enumerate() {
                        let end = ends[proposed as usize].0[n];
                        while got[n].len() < end {
                            got[n].extend(read(client).0);
                        }
                        prop_assert_eq!(&got[n][..], &written[n][..end]);
                    }
                }
            }
        }
        prop_assert!(stream.starts_with(&taken));
        gate.cut();
        drop(source);
        clients.iter().map(|(_, fd)| *fd).chain([own]).for_each(|fd| close_as_server(&gate, fd));
    }
}
