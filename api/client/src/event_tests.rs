use super::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn process(cause: Cause) -> Record {
    Record {
        kind: RecordKind::Process as u16,
        cause: cause as u8,
        grade: Grade::Certain as u8,
        node: 1,
        app: 2,
        incarnation: 3,
        code: 9,
        ..Record::default()
    }
}

#[derive(Default)]
struct Reader(Instances, Names);

impl Reader {
    fn read(&mut self, record: &Record) -> Option<Event> {
        self.read_with(record, b"")
    }
    fn read_with(&mut self, record: &Record, body: &[u8]) -> Option<Event> {
        let record = Record { body_len: body.len() as u16, ..*record };
        let entry = [record.as_bytes(), body].concat();
        read(&entry, &mut self.0, &mut self.1)
    }
}

#[test]
fn listing_1_on_failure_comes_once_for_each_instance() {
    let mut reader = Reader::default();
    let doomed = process(Cause::Doomed);
    let killed = Record { flags: Record::CONFIRMS, ..process(Cause::Killed) };
    assert!(matches!(reader.read(&doomed), Some(Event::Failure(v)) if v.cause == Cause::Doomed && v.is_crash()));
    assert_eq!(reader.read(&doomed), None, "the copy by the other path");
    assert_eq!(reader.read(&process(Cause::SilentHost)), None, "then its host died: it cannot fail twice");
    assert!(matches!(reader.read(&killed), Some(Event::Confirmed(v)) if v.code == 9 && v.confirms));
    assert_eq!(reader.read(&killed), None);
    // The next instance under this name has another number, or its host another table.
    assert!(matches!(reader.read(&Record { app: 4, ..doomed }), Some(Event::Failure(_))));
    assert_eq!(reader.read(&Record { incarnation: 4, ..doomed }), None, "told by an agent that was restarted");
    let another = Record { incarnation: 4, id: 1 << 32 | 7, event_ns: 1 << 40, ..doomed };
    assert!(matches!(reader.read(&another), Some(Event::Failure(_))));
}

#[test]
fn a_certain_end_confirms_an_inferred_one_and_a_process_that_lives_refutes_it() {
    let mut reader = Reader::default();
    let silent = Record { grade: Grade::Inferred as u8, id: 1 << 32 | 0x8000_0001, ..process(Cause::SilentHost) };
    let killed = Record { incarnation: 4, id: 1 << 32 | 7, ..process(Cause::Killed) };
    assert!(matches!(reader.read(&silent), Some(Event::Failure(_))));
    assert_eq!(
        reader.read(&Record { cause: Cause::Doomed as u8, id: 1 << 32 | 6, ..killed }),
        None,
        "one confirmation is enough"
    );
    assert!(matches!(reader.read(&killed), Some(Event::Confirmed(v)) if v.grade == Grade::Certain));
    assert_eq!(reader.read(&killed), None);
    let mut reader = Reader::default();
    reader.read_with(&process(Cause::Monitored), b"db");
    assert_eq!(reader.0.unsettled(), [(1, 2)]);
    assert!(matches!(reader.read(&silent), Some(Event::Failure(_))));
    assert_eq!(reader.0.unsettled(), [(1, 2)], "its certain end is asked for after a reconnect");
    reader.read_with(&Record { incarnation: 4, ..process(Cause::Monitored) }, b"db");
    assert_eq!(reader.0.unsettled(), [(1, 2)]);
    assert!(matches!(reader.read(&killed), Some(Event::Failure(v)) if v.cause == Cause::Killed));
    assert_eq!(reader.0.unsettled(), []);
}

#[test]
fn a_confirmation_whose_doom_was_lost_is_the_failure() {
    let mut reader = Reader::default();
    let killed = Record { flags: Record::CONFIRMS, ..process(Cause::Killed) };
    assert!(matches!(reader.read(&killed), Some(Event::Failure(_))));
    assert_eq!(reader.read(&killed), None);
    assert_eq!(reader.read(&process(Cause::Doomed)), None, "it comes late: nothing new");
}

#[test]
fn leaving_is_told_but_is_no_crash() {
    let mut reader = Reader::default();
    assert!(matches!(reader.read(&process(Cause::Left)), Some(Event::Failure(v)) if !v.is_crash()));
}

#[test]
fn what_is_said_of_hosts_is_never_a_failure() {
    let mut reader = Reader::default();
    for cause in Cause::ALL {
        let record = Record { kind: RecordKind::Host as u16, app: 0, ..process(cause) };
        assert!(matches!(reader.read(&record), Some(Event::Host(v)) if v.cause == cause));
    }
}

#[test]
fn b10_of_copies_in_any_order_each_hang_is_told_once_and_none_after_the_end() {
    let mut reader = Reader::default();
    let said = |cause, number: u64| Record { id: 1 << 32 | number, ..process(cause) };
    assert_eq!(reader.read(&said(Cause::Progressing, 1)), None, "of a hang that was never heard of");
    assert!(matches!(reader.read(&said(Cause::Hung, 4)), Some(Event::Hung(_))));
    for (cause, number) in [(Cause::Hung, 4), (Cause::Progressing, 3), (Cause::Hung, 2)] {
        assert_eq!(reader.read(&said(cause, number)), None);
    }
    assert!(matches!(reader.read(&said(Cause::Progressing, 5)), Some(Event::Progressing(_))));
    assert_eq!(reader.read(&said(Cause::Hung, 4)), None);
    assert!(matches!(reader.read(&said(Cause::Hung, 6)), Some(Event::Hung(_))));
    assert!(matches!(reader.read(&said(Cause::Killed, 7)), Some(Event::Failure(_))));
    assert_eq!(reader.read(&said(Cause::Progressing, 8)), None);
    // The next incarnation's numbers begin anew.
    assert!(matches!(reader.read(&Record { incarnation: 4, ..said(Cause::Hung, 1) }), Some(Event::Hung(_))));
}

#[test]
fn this_hosts_own_fence_is_told_apart_from_what_is_said_of_others() {
    let mut reader = Reader::default();
    let about = |cause, flags| Record { kind: RecordKind::Host as u16, app: 0, flags, code: 2, ..process(cause) };
    let own = reader.read(&about(Cause::Fenced, Record::LOCAL));
    assert!(matches!(own, Some(Event::Fenced(v)) if v.code == 2 && v.local));
    assert!(matches!(reader.read(&about(Cause::Recovered, Record::LOCAL)), Some(Event::Recovered(_))));
    assert!(matches!(reader.read(&about(Cause::Fenced, 0)), Some(Event::Host(_))));
}

#[test]
fn causes_that_end_nothing_are_no_failures() {
    let mut reader = Reader::default();
    for cause in Cause::ALL.into_iter().filter(|c| !c.ends_process() && !c.is_progress()) {
        let event = reader.read(&process(cause));
        assert!(matches!(event, Some(Event::Monitored(_) | Event::Other { .. })), "{cause}: {event:?}");
    }
    assert!(matches!(reader.read(&Record { app: 0, ..process(Cause::Killed) }), Some(Event::Other { .. })));
    assert!(matches!(reader.read(&Record { cause: 99, ..process(Cause::Killed) }), Some(Event::Other { .. })));
    assert!(matches!(reader.read(&Record { grade: 0, ..process(Cause::Killed) }), Some(Event::Other { .. })));
    assert!(matches!(reader.read(&Record { kind: 999, ..process(Cause::Killed) }), Some(Event::Other { .. })));
}

fn name_of(event: Option<Event>) -> Option<String> {
    event.and_then(|e| e.subject().and_then(|s| s.name.as_deref().map(str::to_owned)))
}

#[test]
fn names_hold_in_later_incarnations_too() {
    let later = Record { incarnation: 4, id: 1 << 32 | 7, event_ns: 1 << 40, ..process(Cause::Killed) };
    let mut reader = Reader::default();
    reader.1.learn_app(1, 2, None, "db@a");
    assert_eq!(name_of(reader.read(&process(Cause::Killed))).as_deref(), Some("db@a"));
    assert_eq!(name_of(reader.read(&later)).as_deref(), Some("db@a"));
    // A host that was given up wrongly comes back, and its process ends before it is introduced again.
    let mut reader = Reader::default();
    reader.read_with(&process(Cause::Monitored), b"db");
    let silent = Record { grade: Grade::Inferred as u8, id: 1 << 32 | 0x8000_0001, ..process(Cause::SilentHost) };
    assert!(matches!(reader.read(&silent), Some(Event::Failure(_))));
    let told = reader.read(&later);
    assert!(matches!(told, Some(Event::Confirmed(_))));
    assert_eq!(name_of(told).as_deref(), Some("db@00000001"));
    let again = Record { incarnation: 4, ..process(Cause::Monitored) };
    assert_eq!(reader.read_with(&again, b"db"), None, "its end has overtaken its introduction");
    // What an earlier one had is another process.
    assert_eq!(name_of(reader.read(&Record { app: 2, incarnation: 2, ..process(Cause::Hung) })), None);
}

#[test]
fn an_end_that_the_next_agent_tells_again_is_the_same() {
    let mut reader = Reader::default();
    let killed = Record { event_ns: 1 << 40, ..process(Cause::Killed) };
    assert!(matches!(reader.read(&killed), Some(Event::Failure(_))));
    let again = Record { incarnation: 4, id: 1 << 32 | 7, event_ns: killed.event_ns + 20_000, ..killed };
    assert_eq!(reader.read(&again), None);
    let another = Record { event_ns: killed.event_ns + 1_000_000_000, ..again };
    assert!(matches!(reader.read(&another), Some(Event::Failure(_))), "in another table");
}

#[test]
fn names_come_with_records_too() {
    let mut reader = Reader::default();
    let came = process(Cause::Monitored);
    assert_eq!(name_of(reader.read_with(&came, b"db")).as_deref(), Some("db@00000001"));
    reader.read_with(&Record { kind: RecordKind::Host as u16, app: 0, ..process(Cause::Returned) }, b"a");
    assert_eq!(name_of(reader.read_with(&came, b"db")).as_deref(), Some("db@a"));
    assert_eq!(name_of(reader.read(&process(Cause::Killed))).as_deref(), Some("db@a"));
    for odd in [&b"\xff"[..], b"a\nb", &[b'x'; 256]] {
        reader.read_with(&came, odd);
    }
    assert_eq!(reader.1.target(1, 2).as_deref(), Some("db@a"));
    let other = Subject { node: 0xab, app: 0, incarnation: 0, name: None };
    assert_eq!(other.to_string(), "@000000ab");
    assert_eq!(Subject { app: 7, ..other }.to_string(), "7@000000ab");
}

#[test]
fn who_monitors_is_a_node_and_never_one_of_its_processes() {
    let mut reader = Reader::default();
    reader.1.learn_node(1, "a");
    reader.1.learn_app(1, 2, None, "db@a");
    let request = Record { kind: RecordKind::MonitorRequest as u16, code: 40, ..process(Cause::Local) };
    let Some(Event::MonitorRequest { by, pbsize: 40 }) = reader.read(&request) else { panic!() };
    assert_eq!(by.to_string(), "@a");
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut reader = Reader::default();
    for app in 1..=REMEMBERED as u32 + 10 {
        assert!(reader.read_with(&Record { app, ..process(Cause::Killed) }, b"x").is_some());
    }
    assert!(reader.0.failed.len() <= REMEMBERED && reader.0.order.len() <= REMEMBERED);
    assert!(reader.1.apps.len() <= REMEMBERED);
}

#[test]
fn stamps_are_subtracted_only_on_one_clock() {
    let mut reader = Reader::default();
    let record = Record { event_ns: 1_000, sent_ns: 1_700, received_ns: 50, ..process(Cause::Killed) };
    let Some(Event::Failure(v)) = reader.read(&record) else { panic!() };
    assert_eq!((v.event_to_sent_ns(), v.received_to_ns(80)), (Some(700), Some(30)));
    let inferred = Verdict { sent_ns: 0, received_ns: 0, ..v };
    assert_eq!((inferred.event_to_sent_ns(), inferred.received_to_ns(80)), (None, None));
}

proptest! {
    #[test]
    fn no_entry_can_do_harm(entry in prop::collection::vec(any::<u8>(), 0..200), kind in 0..12_u16) {
        let mut reader = Reader::default();
        let _ = read(&entry, &mut reader.0, &mut reader.1);
        let mut entry = entry;
        if entry.len() >= 2 {
            entry[..2].copy_from_slice(&kind.to_ne_bytes());
        }
        if entry.len() < size_of::<Record>() {
            prop_assert_eq!(read(&entry, &mut reader.0, &mut reader.1), Some(Event::Lost { count: 1 }));
        } else {
            entry[22..24].copy_from_slice(&[0, 0]);
            let _ = read(&entry, &mut reader.0, &mut reader.1);
        }
    }
}
