//! The event history: it survives a death at every byte, a full disk, and never loses anything without saying so.

use fide_agent::history::{Flushed, History, decode_line, encode_line};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Evidence, Grade, VerdictId};
use proptest::prelude::*;
use std::path::Path;

fn event(n: u32) -> HistoryEvent {
    HistoryEvent {
        seq: 0,
        wall_ns: 1_000 + u64::from(n),
        at_ns: u64::from(n),
        observer: "a".into(),
        observer_incarnation: 1,
        id: Some(VerdictId::new(7, n)),
        cause: Cause::Killed,
        grade: Grade::Certain,
        node: "b".into(),
        incarnation: 1,
        app: Some("redis \"é\n".into()),
        code: 9,
        confirms: false,
        text: format!("event {n}"),
        maintenance: None,
        evidence: n.is_multiple_of(3).then(|| Box::new(Evidence { event_ns: 5, ..Evidence::default() })),
    }
}

fn open(path: &Path) -> History {
    let (history, words) = History::open(Some(path), 1 << 20);
    assert!(words.is_empty(), "{words:?}");
    history
}

fn texts(history: &History) -> Vec<String> {
    history.read(0, 0).into_iter().map(|e| e.text).collect()
}

#[test]
fn what_was_written_is_read_back_after_a_restart_and_numbers_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/history.jsonl");
    let mut h = open(&path);
    for n in 0..10 {
        assert_eq!(h.append(event(n)), u64::from(n) + 1);
    }
    assert_eq!(h.flush(), Flushed::Written);
    assert_eq!(h.flush(), Flushed::Idle);
    let before = h.read(0, 0);
    drop(h);
    let mut h = open(&path);
    assert_eq!(h.read(0, 0), before);
    assert_eq!(h.append(event(10)), 11);
    assert_eq!(h.read(9, 0).iter().map(|e| e.seq).collect::<Vec<_>>(), [9, 10, 11]);
    assert_eq!(h.read(0, 2).iter().map(|e| e.seq).collect::<Vec<_>>(), [10, 11]);
    assert_eq!(h.page(3, 2).iter().map(|e| e.seq).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(h.find(VerdictId::new(7, 3))[0].text, "event 3");
    assert_eq!(h.find(VerdictId::new(7, 99)), []);
    // Plain JSON for everybody else.
    for line in std::fs::read_to_string(&path).unwrap().lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["crc"].is_string() && value["cause"] == "killed");
    }
}

#[test]
fn an_agent_killed_at_any_byte_keeps_every_whole_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let mut h = open(&path);
    for n in 0..5 {
        h.append(event(n));
    }
    h.flush();
    drop(h);
    let whole = std::fs::read(&path).unwrap();
    for len in 0..=whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        let torn = dir.path().join("h.torn");
        let _ = std::fs::remove_file(&torn);
        // A line counts when all of it but its newline is there.
        let ends: Vec<usize> = (0..whole.len()).filter(|i| whole[*i] == b'\n').collect();
        let kept = ends.iter().filter(|e| **e <= len).count();
        let good = ends.iter().filter(|e| **e < len).map(|e| e + 1).max().unwrap_or(0);
        let tail = if ends.contains(&len) { 0 } else { len - good };

        let (mut h, words) = History::open(Some(&path), 1 << 20);
        assert_eq!(texts(&h), (0..kept).map(|n| format!("event {n}")).collect::<Vec<_>>(), "cut at {len}");
        assert_eq!(words.len(), usize::from(tail > 0), "cut at {len}: {words:?}");
        if tail > 0 {
            assert!(words[0].to_string().contains(&format!("{tail} bytes")), "{}", words[0]);
            assert_eq!(std::fs::read(&torn).unwrap(), &whole[good..len], "kept aside");
        }
        let seq = h.append(event(77));
        assert_eq!(seq, kept as u64 + 1);
        assert_eq!(h.flush(), Flushed::Written);
        let h = {
            drop(h);
            open(&path)
        };
        assert_eq!(texts(&h).len(), kept + 1, "cut at {len}");
        assert_eq!(texts(&h).last().unwrap(), "event 77");
    }
}

#[test]
fn garbage_and_zeros_behind_the_last_line_are_cut_and_damage_before_it_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let mut h = open(&path);
    for n in 0..3 {
        h.append(event(n));
    }
    h.flush();
    drop(h);
    let whole = std::fs::read(&path).unwrap();
    let mut zeros = whole.clone();
    zeros.extend(std::iter::repeat_n(0u8, 300_000));
    std::fs::write(&path, &zeros).unwrap();
    let (h, words) = History::open(Some(&path), 1 << 20);
    assert_eq!((texts(&h).len(), words.len()), (3, 1));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), whole.len() as u64);
    drop(h);

    let mut flipped = whole.clone();
    let second = whole.iter().position(|b| *b == b'\n').unwrap() + 30;
    flipped[second] ^= 1;
    std::fs::write(&path, &flipped).unwrap();
    let (mut h, words) = History::open(Some(&path), 1 << 20);
    assert_eq!(texts(&h), ["event 0", "event 2"]);
    assert!(words[0].what.contains("1 of its lines"), "{words:?}");
    assert_eq!(h.append(event(9)), 4);
}

#[test]
fn the_size_is_bounded_and_the_newest_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let max = 128 << 10;
    let (mut h, _) = History::open_with(Some(&path), max, 10);
    for n in 0..2_000 {
        h.append(event(n));
        if n % 7 == 0 {
            h.flush();
        }
        assert!(h.bytes() <= max);
    }
    h.flush();
    let on_disk = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
    assert!(on_disk("h") + on_disk("h.1") <= max);
    let check = |h: &History| {
        let all = h.read(0, 0);
        assert!(all.len() > 100, "{}", all.len());
        assert_eq!(all.last().unwrap().seq, 2_000);
        assert!(all.windows(2).all(|w| w[1].seq == w[0].seq + 1), "no gap between disk and memory");
        // Paged, it is the same.
        let mut paged = Vec::new();
        let mut from = 0;
        loop {
            let page = h.page(from, 13);
            let Some(last) = page.last() else { break };
            from = last.seq + 1;
            paged.extend(page);
        }
        assert_eq!(paged, all);
        assert_eq!(h.read(0, 50).len(), 50);
        let old = all[5].clone();
        assert_eq!(h.find(old.id.unwrap()), [old], "found on disk");
    };
    check(&h);
    drop(h);
    let (h, words) = History::open_with(Some(&path), max, 10);
    assert!(words.is_empty());
    check(&h);
}

/// A thread that waits for the disk writes, others read, and nobody waits for another one.
#[test]
fn events_are_read_while_they_wait_for_the_disk_and_while_files_are_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let (mut h, _) = History::open_with(Some(&path), 1 << 20, 10);
    (0..100).for_each(|n| _ = h.append(event(n)));
    let numbers = |events: Vec<HistoryEvent>| events.into_iter().map(|e| e.seq).collect::<Vec<_>>();
    assert!(h.page_at_hand(50, 5).is_none() && h.page_at_hand(95, 5).is_some());
    assert_eq!(numbers(h.page(1, 200)), (1..=100).collect::<Vec<_>>(), "not in memory, and not on disk");
    assert_eq!(h.find(VerdictId::new(7, 3)).len(), 1);
    assert!(h.has_news() && !h.has_news());
    h.files(true).write();
    assert_eq!((h.poll(), h.poll()), (Some(Flushed::Written), None));
    let readings = [h.reading(1, 200), h.reading(60, 10)];
    let mut n = 100;
    while !dir.path().join("h.1").exists() {
        h.append(event(n));
        assert_eq!(h.write(), Flushed::Written);
        n += 1;
    }
    let [all, some] = readings.map(|reading| (reading.next, numbers(reading.run())));
    assert_eq!(all, (101, (1..=100).collect()), "as it was when it was asked for");
    assert_eq!(some, (101, (60..70).collect()));
    // Nothing is written: what waits is bounded, and what was lost is said when it is.
    let long = |n| HistoryEvent { text: "x".repeat(2_000), ..event(n) };
    (0..2_000).for_each(|n| _ = h.append(long(n)));
    let lost = h.lost();
    assert!(lost > 100);
    h.files(false).write();
    assert_eq!(h.poll(), Some(Flushed::Written));
    let marker = h.page(h.next_seq() - 1, 1).remove(0);
    assert!(h.has_news() && marker.text.starts_with(&format!("{lost} events")), "{}", marker.text);
}

#[test]
fn an_end_that_a_former_agent_has_written_is_known_when_it_is_told_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let end = HistoryEvent { cause: Cause::Killed, app: Some("db".into()), id: Some(VerdictId::new(7, 9)), ..event(1) };
    let mut h = open(&path);
    h.append(end.clone());
    assert!(!h.was_told(&end), "what this agent tells comes once by itself");
    h.write();
    drop(h);
    let h = open(&path);
    assert!(h.was_told(&HistoryEvent { at_ns: 5, observer_incarnation: 77, ..end.clone() }));
    for other in [
        HistoryEvent { cause: Cause::Doomed, ..end.clone() },
        HistoryEvent { id: Some(VerdictId::new(7, 10)), ..end.clone() },
        HistoryEvent { incarnation: end.incarnation + 1, ..end.clone() },
        HistoryEvent { app: None, ..end.clone() },
        HistoryEvent { id: None, ..end },
    ] {
        assert!(!h.was_told(&other), "{other:?}");
    }
}

/// A member's reports, 4,000 a second, once rolled every crash out of the histories of all hosts.
#[test]
fn a_flood_of_one_class_makes_no_other_be_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let max = 64 << 10;
    let open = |path: &Path| History::open_with(Some(path), max, 16).0;
    let mut h = open(&path);
    let report = |n| HistoryEvent { cause: if n % 2 == 0 { Cause::Hung } else { Cause::Progressing }, ..event(n) };
    let crash = h.append(event(1_000_000));
    for n in 0..5_000 {
        h.append(report(n));
        if n % 50 == 0 {
            h.append(HistoryEvent { cause: Cause::ContractBroken, id: None, ..event(n) });
            h.flush();
            assert!(h.bytes() <= max);
        }
    }
    let last = h.append(event(1_000_001));
    h.flush();
    let check = |h: &History| {
        let all = h.read(0, 0);
        assert_eq!((all[0].seq, all.last().unwrap().seq), (crash, last));
        assert!(all.windows(2).all(|w| w[0].seq < w[1].seq), "one sequence");
        assert_eq!(h.next_seq(), last + 1);
        assert_eq!(h.find(VerdictId::new(7, 1_000_000)).len(), 1, "explained still");
        let mut paged = Vec::new();
        while let Some(e) = h.page(paged.last().map_or(0, |e: &HistoryEvent| e.seq + 1), 7).into_iter().next() {
            paged.push(e);
        }
        assert_eq!(paged, all, "in pages it is the same");
        assert_eq!(h.read(0, 3), all[all.len() - 3..]);
    };
    check(&h);
    drop(h);
    check(&open(&path));
    // In memory alone.
    let (mut h, _) = History::open_with(None, max, 16);
    let crash = h.append(event(1_000_000));
    for n in 0..5_000 {
        h.append(report(n));
    }
    assert_eq!(h.page(0, 1)[0].seq, crash);
    assert_eq!(h.read(0, 5).iter().map(|e| e.seq).collect::<Vec<_>>(), [4_997, 4_998, 4_999, 5_000, 5_001]);
}

#[test]
fn a_disk_that_cannot_be_opened_leaves_a_history_in_memory_and_an_error_that_helps() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for path in [dir.path().join("file/history"), dir.path().to_owned()] {
        let (mut h, words) = History::open(Some(&path), 1 << 20);
        assert_eq!(words.len(), 1);
        assert!(words[0].to_string().contains("history.path"), "{}", words[0]);
        h.append(event(1));
        assert_eq!(h.flush(), Flushed::Idle);
        assert_eq!(texts(&h), ["event 1"]);
        assert_eq!(h.find(VerdictId::new(7, 1)).len(), 1);
    }
}

#[test]
fn an_id_that_several_lives_used_is_found_once_for_each() {
    const INFERRED: u32 = 1 << 31;
    let dir = tempfile::tempdir().unwrap();
    let found = |h: &History, number| h.find(VerdictId::new(7, number)).into_iter().map(|e| e.seq).collect::<Vec<_>>();
    for in_memory in [100, 4, 1] {
        let path = dir.path().join(in_memory.to_string());
        let (mut h, _) = History::open_with(Some(&path), 1 << 20, in_memory);
        // A crash and its confirmation are one verdict, of which the newest event is told.
        h.append(HistoryEvent { cause: Cause::Doomed, ..event(1) });
        h.append(HistoryEvent { confirms: true, ..event(1) });
        // What was inferred in one life, about a host and its processes, is one verdict; in the next life it is another, about whomever.
        let inferred = HistoryEvent { grade: Grade::Inferred, observer_incarnation: 10, ..event(INFERRED + 1) };
        h.append(inferred.clone());
        h.append(HistoryEvent { app: None, ..inferred.clone() });
        h.append(HistoryEvent { observer_incarnation: 11, ..inferred });
        // The host's agent was restarted, and numbers its notices from 1 again.
        h.append(HistoryEvent { incarnation: 2, app: Some("other".into()), ..event(1) });
        h.append(HistoryEvent { incarnation: 2, ..event(2) });
        h.flush();
        assert_eq!(found(&h, 1), [2, 6], "{in_memory} in memory");
        assert_eq!(found(&h, 2), [7]);
        assert_eq!(found(&h, INFERRED + 1), [4, 5], "{in_memory} in memory");
    }
}

#[test]
fn two_agents_do_not_write_one_history() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let _first = open(&path);
    let (_second, words) = History::open(Some(&path), 1 << 20);
    assert!(words[0].what.contains("another agent"), "{words:?}");
}

#[test]
fn a_history_removed_under_the_agent_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h");
    let mut h = open(&path);
    h.append(event(0));
    h.flush();
    std::fs::remove_file(&path).unwrap();
    h.append(event(1));
    assert_eq!(h.flush(), Flushed::Written);
    assert_eq!(texts(&h), ["event 0", "event 1"]);
    drop(h);
    assert_eq!(texts(&open(&path)), ["event 1"]);
}

/// A small file system of its own that really fills up; `None` where it cannot be mounted.
struct Tmpfs(tempfile::TempDir);
impl Tmpfs {
    fn new(bytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().ok()?;
        fide_lab::Leftover::Directory(dir.path().into()).goes_with_caller().ok()?;
        let out = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(dir.path())
            .output()
            .ok()?;
        out.status.success().then_some(Self(dir))
    }
}
impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_said_once_and_made_up_for_when_there_is_room() {
    let Some(disk) = Tmpfs::new(256 << 10) else {
        println!("SKIPPED a full disk: a small file system needs root; run the tests with sudo");
        return;
    };
    let path = disk.0.path().join("h");
    let (mut h, _) = History::open_with(Some(&path), 100 << 20, 100);
    let filler = disk.0.path().join("filler");
    std::fs::write(&filler, vec![1; 128 << 10]).unwrap();
    let mut n = 0;
    let failed = loop {
        h.append(event(n));
        n += 1;
        match h.flush() {
            Flushed::Written => assert!(n < 10_000),
            Flushed::Failed(e) => break e,
            other => panic!("{other:?}"),
        }
    };
    assert!(failed.to_string().contains("make room"), "{failed}");
    h.append(event(n));
    assert_eq!(h.flush(), Flushed::StillFailing);
    assert_eq!(h.failures(), 2);
    assert_eq!(h.lost(), 0, "they wait");
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(h.flush(), Flushed::Recovered { lost: 0 });
    assert_eq!(h.read(0, 0).len(), n as usize + 1);

    // So long that lines must be dropped: the history says so itself.
    std::fs::write(&filler, vec![1; 64 << 10]).unwrap_or_default();
    let long = |n| HistoryEvent { text: "x".repeat(2_000), ..event(n) };
    let mut failed = 0;
    for n in 0..2_000 {
        h.append(long(n));
        failed += u32::from(matches!(h.flush(), Flushed::Failed(_)));
    }
    assert_eq!(failed, 1);
    assert!(h.lost() > 0);
    assert_eq!(h.page(h.next_seq() - 100, 1_000).len(), 100, "memory goes on");
    std::fs::remove_file(&filler).unwrap();
    std::fs::remove_file(&path).unwrap();
    h.set_max_bytes(128 << 10);
    let Flushed::Recovered { lost } = h.flush() else { panic!("room again") };
    assert_eq!(lost, h.lost());
    let marker = h.read(0, 1).remove(0);
    assert_eq!(marker.cause, Cause::Local);
    assert!(marker.text.starts_with(&format!("{lost} events")), "{}", marker.text);
    drop(h);
    let (h, _) = History::open(Some(&path), 128 << 10);
    assert_eq!(h.read(0, 1)[0].text, marker.text);
}

#[test]
fn an_event_too_long_for_a_line_is_shortened_not_lost() {
    let big = HistoryEvent { text: "é".repeat(200_000), ..event(0) };
    let back = decode_line(encode_line(&big).as_bytes()).unwrap();
    assert_eq!(back.text.chars().count(), 1000);
}

proptest! {
    #[test]
    fn no_bytes_make_a_line_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode_line(&bytes).is_none());
    }

    #[test]
    fn one_changed_byte_is_always_noticed(n in 0u32..9, at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let mut line = encode_line(&event(n)).into_bytes();
        let at = at.index(line.len());
        prop_assume!(line[at] != with && !line[at].eq_ignore_ascii_case(&with));
        line[at] = with;
        prop_assert!(decode_line(&line).is_none());
    }

    #[test]
    fn any_file_can_be_opened(bytes in proptest::collection::vec(any::<u8>(), 0..2000), lines in proptest::collection::vec(0u32..5, 0..4)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h");
        let mut content = bytes;
        for n in lines {
            content.extend(encode_line(&event(n)).bytes());
            content.push(b'\n');
        }
        std::fs::write(&path, &content).unwrap();
        let (mut h, words) = History::open(Some(&path), 1 << 20);
        h.append(event(50));
        h.flush();
        if words.iter().any(|w| w.what.contains("no history")) {
            prop_assert_eq!(std::fs::read(&path).unwrap(), content, "somebody else's file");
            return Ok(());
        }
        let before = h.read(0, 0);
        drop(h);
        let (h, _) = History::open(Some(&path), 1 << 20);
        prop_assert_eq!(h.read(0, 0), before);
    }
}
