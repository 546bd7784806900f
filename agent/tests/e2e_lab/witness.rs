//! Groups under the policy *witness* on real agents: a command says whether members go on without
//! a host that is silent.

use crate::common::{Setup, World, until, wait_for};
use crate::e2e_lab::groups::{open, order, read, refused, runs, status, values};
use fide_client::group::{Entry, Event, Group, Stage};
use fide_lab::Cut;
use fide_wire::control::{ErrorCode, GroupOrder, GroupStatus, Reply, Request};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// No.
pub(super) const REFUSES: &str = "exit 1";
/// By a signal.
const IS_KILLED: &str = "kill -9 $$";
/// For as long as it may.
const HANGS: &str = "exec sleep 100";
/// What a power controller does, to the agent of the host; it says so once nothing of it runs.
pub(super) const SWITCHES_OFF: &str = r#"pid=$(cat "$dir/pid-$1") || exit 1
kill -9 "$pid" 2>/dev/null
while [ -e "/proc/$pid" ] && ! { grep -q '^State:.Z' "/proc/$pid/status" && [ "$(ls "/proc/$pid/task" | wc -l)" = 1 ]; } 2>/dev/null
do sleep 0.01; done
exit 0"#;

/// The witness of each host: a script that notes what it is asked, and does as the test says.
pub(super) struct Witnesses(PathBuf);

impl Witnesses {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fide-e2e-witness-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    /// `[witness]` of one host.
    pub(super) fn config(&self, host: u16, timeout: &str) -> String {
        let script = self.0.join(format!("witness-h{host}"));
        format!("[witness]\ncommand = [\"/bin/sh\", {script:?}]\ntimeout = \"{timeout}\"\n")
    }

    /// From now on the witness of this host does that. `$1`: the name of whom it is asked about.
    pub(super) fn set(&self, host: u16, body: &str) {
        let dir = self.0.display();
        let note = format!("echo \"$1 $FIDE_NODE $FIDE_OBSERVER $FIDE_INCARNATION $FIDE_ADDRESSES\" >> \"$dir/asked-h{host}\"");
        let text = format!("dir={dir}\necho $$ > \"$dir/child-h{host}\"\n{note}\n{body}\n");
        let draft = self.0.join(format!("draft-h{host}"));
        fs::write(&draft, text).unwrap();
        fs::rename(draft, self.0.join(format!("witness-h{host}"))).unwrap();
    }

    /// What [`SWITCHES_OFF`] ends.
    pub(super) fn note_agent(&self, w: &World, host: u16) {
        fs::write(self.0.join(format!("pid-h{host}")), w.agent_pid(host).to_string()).unwrap();
    }

    /// What the witness of this host was asked.
    fn asked(&self, host: u16) -> Vec<String> {
        let text = fs::read_to_string(self.0.join(format!("asked-h{host}"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn child(&self, host: u16) -> Option<String> {
        let text = fs::read_to_string(self.0.join(format!("child-h{host}"))).ok()?;
        text.ends_with('\n').then(|| text.trim().to_owned())
    }
}

impl Drop for Witnesses {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn runs_still(pid: &str) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

fn plan(name: &str, engine: &str) -> GroupOrder {
    GroupOrder::Create {
        name: name.into(),
        engine: engine.into(),
        policy: "witness".into(),
        hosts: (1..=3).map(|host| format!("h{host}")).collect(),
        durable: false,
        fresh: false,
    }
}

/// Three hosts with a group under the policy *witness*, whose witnesses do this.
fn three(of: &std::rc::Rc<Witnesses>, engine: &str, timeout: &'static str, body: &str) -> Option<World> {
    let config = std::rc::Rc::clone(of);
    (1..=3).for_each(|host| of.set(host, body));
    let w = Setup::hosts(3).extra(move |host| config.config(host, timeout)).up()?;
    (1..=3).for_each(|host| of.note_agent(&w, host));
    order(&w, 1, plan("orders", engine)).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    Some(w)
}

fn cut_off(w: &World, host: u16) {
    (0..2).for_each(|path| w.lab.cut(host, path, Cut::Silent).unwrap());
}

fn heal(w: &World, host: u16) {
    (0..2).for_each(|path| w.lab.heal(host, path).unwrap());
}

/// No entry comes, for a while or until the session ends.
fn tells_nothing(group: &mut Group) {
    while let Ok(Some(event)) = group.poll(Some(Duration::from_millis(200))) {
        assert!(!matches!(event, Event::Entry(_)), "it tells of an entry: {event:?}");
    }
}

fn others_lead(w: &World, name: &str) {
    let is_led = |group: GroupStatus| group.leader.is_some_and(|leader| leader != 1);
    until("the others go on", || status(w, 2, name).is_some_and(is_led));
}

#[test]
fn a_host_that_is_cut_off_is_switched_off_once_and_the_others_go_on() {
    for engine in ["huc", "hsuc"] {
        let of = std::rc::Rc::new(Witnesses::new());
        let Some(mut w) = three(&of, engine, "10s", SWITCHES_OFF) else { return };
        of.set(1, REFUSES);
        order(&w, 1, plan("more", engine)).unwrap();
        (1..=3).for_each(|host| runs(&w, host, "more"));
        let (mut on_1, mut on_2) = (open(&w, 1, 11, 0, 0), open(&w, 2, 22, 0, 0));
        let (mut log_1, mut log_2) = (Vec::new(), Vec::new());
        on_1.propose(b"one").unwrap();
        read(&mut on_1, &mut log_1, 1);
        read(&mut on_2, &mut log_2, 1);

        cut_off(&w, 1);
        on_1.propose(b"by who is cut off").unwrap();
        ["orders", "more"].iter().for_each(|name| others_lead(&w, name));
        on_2.propose(b"two").unwrap();
        read(&mut on_2, &mut log_2, 2);
        tells_nothing(&mut on_1);
        w.agent_ended(1);
        for host in [2, 3] {
            let [asked] = &of.asked(host)[..] else { panic!("asked not once: {:?}", of.asked(host)) };
            let words: Vec<&str> = asked.split(' ').collect();
            assert_eq!(words[..3], ["h1", "h1", &format!("h{host}")], "{asked}");
            assert!(
                words[3].parse::<u32>().is_ok_and(|life| life > 0) && words.len() == 6,
                "its incarnation, two addresses: {asked}"
            );
            assert!(words[4..].iter().all(|word| word.parse::<std::net::IpAddr>().is_ok()), "{asked}");
            w.event(host, "the witness's word is in the history", |event| event.text.contains("go on without h1"));
        }

        heal(&w, 1);
        w.start(1);
        runs(&w, 1, "orders");
        wait_for("its client goes on", || on_1.reconnect().ok());
        read(&mut on_1, &mut log_1, 3);
        read(&mut on_2, &mut log_2, 3);
        assert_eq!(log_1, log_2);
        assert_eq!(values(&log_1), ["one", "two", "by who is cut off"]);
    }
}

#[test]
fn a_witness_that_does_not_grant_it_stops_who_asks_and_nothing_is_decided() {
    for (engine, body) in [("huc", REFUSES), ("hsuc", HANGS), ("huc", IS_KILLED)] {
        let of = std::rc::Rc::new(Witnesses::new());
        let Some(w) = three(&of, engine, "500ms", body) else { return };
        let mut groups: Vec<Group> = (1..=3).map(|host| open(&w, host, u64::from(host), 0, 0)).collect();
        groups[1].propose(b"one").unwrap();
        groups.iter_mut().for_each(|group| read(group, &mut Vec::new(), 1));

        cut_off(&w, 1);
        groups.iter_mut().for_each(|group| _ = group.propose(b"two").unwrap());
        for host in [2, 3] {
            let stopped = |group: GroupStatus| group.me.is_none() && group.halted.contains("the witness did not let it");
            until("its member has stopped", || status(&w, host, "orders").is_some_and(stopped));
            let child = of.child(host).unwrap();
            until("the command is ended", || !runs_still(&child));
            assert_eq!(of.asked(host).len(), 1);
            w.event(host, "a refusal is in the history", |event| event.text.contains("does not let groups go on without h1"));
        }
        groups.iter_mut().for_each(tells_nothing);

        // Also the one that was cut off stops when it is heard: its members were given up. Then every log is there, and the
        // group goes on.
        heal(&w, 1);
        let mut told: Vec<Vec<Entry>> = vec![Vec::new(); 3];
        until("every client has proposed again", || {
            for (group, told) in groups.iter_mut().zip(&mut told) {
                if let Ok(Some(Event::Entry(entry))) = group.poll(Some(Duration::from_millis(5))) {
                    told.push(entry);
                }
            }
            told.iter().all(|told| told.len() >= 3)
        });
        assert!(told.iter().all(|told| values(told) == ["two", "two", "two"]), "{told:?}");
    }
}

#[test]
fn a_witness_is_not_asked_about_an_end_that_is_certain() {
    for engine in ["huc", "hsuc"] {
        let of = std::rc::Rc::new(Witnesses::new());
        let Some(mut w) = three(&of, engine, "10s", REFUSES) else { return };
        let mut on_2 = open(&w, 2, 22, 0, 0);
        w.kill_agent(1);
        on_2.propose(b"one").unwrap();
        read(&mut on_2, &mut Vec::new(), 1);
        others_lead(&w, "orders");
        assert_eq!([of.asked(2), of.asked(3)].concat(), Vec::<String>::new());
    }
}

#[test]
fn an_agent_that_ends_ends_what_it_asked_with() {
    let of = std::rc::Rc::new(Witnesses::new());
    let Some(mut w) = three(&of, "huc", "60s", HANGS) else { return };
    // Its agent is killed at the end, and would leave it behind.
    of.set(3, REFUSES);
    cut_off(&w, 1);
    let child = wait_for("h2 asks", || of.child(2));
    assert!(runs_still(&child));
    w.signal_agent(2, libc::SIGTERM);
    w.agent_ended(2);
    until("the command is ended", || !runs_still(&child));
}

#[test]
fn a_group_without_a_witness_is_refused_with_the_reason() {
    let of = std::rc::Rc::new(Witnesses::new());
    let config = std::rc::Rc::clone(&of);
    let with = move |host: u16| if host == 1 { config.config(host, "1s") } else { String::new() };
    let Some(w) = Setup::hosts(3).extra(with).up() else { return };
    let (code, what) = refused(order(&w, 2, plan("orders", "huc")));
    assert!(code == ErrorCode::Invalid && what.contains("[witness]"), "{what}");
    let (code, what) = refused(order(&w, 1, plan("orders", "lowi")));
    assert!(code == ErrorCode::Invalid && what.contains("lowi") && what.contains("witness"), "{what}");
    // One of the others has none.
    order(&w, 1, plan("orders", "huc")).unwrap();
    until("it says who has none", || {
        status(&w, 1, "orders").is_some_and(|group| group.stage == Stage::Failed && group.why.contains("has no witness"))
    });
    // A file with such a group and without a command is refused whole.
    let head = |host: u16| w.head(host, &format!("h{host}"), "2ms");
    let block = "[[group]]\nname = \"orders\"\nhosts = [\"h1\", \"h2\", \"h3\"]\npolicy = \"witness\"\n";
    w.write_config(2, &(head(2) + block));
    let (_, what) = refused(w.ask(2, &Request::Reload));
    assert!(what.contains("rests on a witness") && what.contains("[witness]"), "{what}");
    for host in 1..=3 {
        w.write_config(host, &(head(host) + &of.config(host, "2s") + block));
        let Ok(Reply::Reloaded(reloaded)) = w.ask(host, &Request::Reload) else { panic!("no account of the reload") };
        assert_eq!(reloaded.changed, ["group", "witness"]);
    }
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    assert_eq!(status(&w, 3, "orders").unwrap().policy, "witness");
    // Without its command a running group changes to no engine that would ask.
    w.write_config(1, &head(1));
    assert!(w.ask(1, &Request::Reload).is_ok());
    let (code, what) = refused(order(&w, 1, GroupOrder::Switch { name: "orders".into(), engine: "hsuc".into() }));
    assert!(code == ErrorCode::Invalid && what.contains("[witness]"), "{what}");
}
