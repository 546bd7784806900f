//! Rights in groups, by real users: what `[access.groups]` says of one group holds for that one.

use crate::common::{Process, Setup, World, until};
use crate::e2e_lab::groups::{create, read, runs, status};
use fide_client::group::{Group, Options, Stage};
use fide_wire::control::GroupOrder;

const ALICE: u32 = 1101;
const BOB: u32 = 1102;
const CAROL: u32 = 1103;
const DAVE: u32 = 1104;

/// A user of a host who does as he is told.
fn user(w: &World, host: u16, uid: u32) -> Process {
    let mut user = w.actor(host, "grouped", &[&uid.to_string()]);
    assert_eq!(user.hear(), "ready");
    user
}

fn ask(user: &mut Process, words: &str) -> String {
    user.say(words);
    user.hear()
}

fn does(user: &mut Process, words: &str) {
    let said = ask(user, words);
    assert!(said.starts_with("ok"), "{words}: {said}");
}

/// What it is told must be in the refusal.
fn is_refused(user: &mut Process, words: &str, says: &[&str]) {
    let said = ask(user, words);
    assert!(said.starts_with("error") && says.iter().all(|part| said.contains(part)), "{words}: {said}");
}

fn ordered(order: &GroupOrder) -> String {
    format!("order {}", serde_json::to_string(order).unwrap())
}

fn leave(name: &str) -> String {
    ordered(&GroupOrder::Leave { name: name.into(), force: false })
}

fn begin(name: &str) -> String {
    ordered(&GroupOrder::Create {
        name: name.into(),
        engine: "huc".into(),
        policy: "trust-contract".into(),
        hosts: vec!["h1".into(), "h2".into()],
        durable: false,
        fresh: false,
    })
}

/// Two hosts with these lines under `[access.groups]`, and groups of these names.
fn two(lines: fn(u16) -> String, groups: &[&str]) -> Option<World> {
    let w = Setup::hosts(2).extra(move |host| format!("[access.groups]\n{}", lines(host))).up()?;
    w.all_alive();
    for name in groups {
        create(&w, 1, name, "huc", &["h1", "h2"]).unwrap();
        (1..=2).for_each(|host| runs(&w, host, name));
    }
    Some(w)
}

#[test]
fn a_right_in_one_group_is_none_in_another() {
    let lines = |_| {
        format!("a = [\"{ALICE}\"]\n\"r-*\" = {{ open = [\"{BOB}\"], propose = [\"{ALICE}\"], administer = [\"{CAROL}\"] }}\n")
    };
    let Some(w) = two(lines, &["a", "b", "r-1"]) else { return };
    let [mut alice, mut bob, mut carol] = [ALICE, BOB, CAROL].map(|uid| user(&w, 1, uid));

    // Who may propose may open, and nothing else; nowhere else.
    does(&mut alice, "open a 0");
    does(&mut alice, "propose one");
    does(&mut alice, "hand-in");
    is_refused(&mut alice, &leave("a"), &["1101", "group a", "`administer`", "a = { administer = [\"1101\"] }"]);
    is_refused(&mut alice, "open b 0", &["1101", "group b", "`open`", "[access.groups]", "b = { open = [\"1101\"] }"]);
    is_refused(&mut alice, "open no-such-group 0", &["`open`"]);
    for refused in [leave("b"), begin("b"), begin("c"), ordered(&GroupOrder::Join { name: "b".into() })] {
        is_refused(&mut alice, &refused, &["`administer`", "[access.groups]"]);
    }
    for refused in [
        GroupOrder::Switch { name: "a".into(), engine: "hsuc".into() },
        GroupOrder::Resume { name: "a".into() },
        GroupOrder::Leave { name: "a".into(), force: true },
    ] {
        is_refused(&mut alice, &ordered(&refused), &["`administer`"]);
    }
    does(&mut alice, &ordered(&GroupOrder::Status));

    // Who may open reads, and neither proposes nor hands in states.
    is_refused(&mut bob, "open a 0", &["`open`"]);
    does(&mut bob, "open r-1 0");
    does(&mut alice, "open r-1 0");
    does(&mut alice, "propose two");
    does(&mut bob, "read two");
    for words in ["propose three", "propose four", "hand-in"] {
        is_refused(&mut bob, words, &["1102", "group r-1", "`propose`", "r-1 = { propose = [\"1102\"] }"]);
    }
    does(&mut alice, "propose five");
    does(&mut bob, "read five");
    assert_eq!(status(&w, 1, "r-1").unwrap().index, 2, "nothing of the reader's is decided");
    // Nor is what a program hands in that asks no library.
    let kept = status(&w, 1, "r-1").unwrap().kept_bytes;
    is_refused(&mut bob, "raw-hand-in r-1 2", &["`propose`"]);
    assert!(kept > 0 && status(&w, 1, "r-1").unwrap().kept_bytes == kept, "entries are kept as long as nobody hands in a state");

    // Who administers opens, and does not propose.
    does(&mut carol, "open r-1 0");
    does(&mut carol, "read five");
    is_refused(&mut carol, "propose six", &["1103", "`propose`"]);
    does(&mut carol, "hand-in");
    until("her state takes the place of the entries", || status(&w, 1, "r-1").unwrap().kept_bytes < kept);
    is_refused(&mut carol, &begin("c"), &["group c", "`administer`"]);
    does(&mut carol, &begin("r-2"));
    runs(&w, 2, "r-2");
    does(&mut carol, &leave("r-2"));
    until("it left", || status(&w, 1, "r-2").is_none_or(|group| group.stage == Stage::Left));
    assert!(status(&w, 1, "c").is_none() && status(&w, 1, "b").unwrap().stage == Stage::Running);
}

#[test]
fn a_client_id_belongs_to_the_user_of_its_host() {
    let lines = |_| format!("a = {{ open = [\"{BOB}\"], propose = [\"{ALICE}\", \"{DAVE}\"] }}\nb = [\"{DAVE}\"]\n");
    let Some(w) = two(lines, &["a", "b"]) else { return };
    let [mut alice, mut bob, mut dave] = [ALICE, BOB, DAVE].map(|uid| user(&w, 1, uid));
    does(&mut alice, "open a 77");
    does(&mut alice, "propose one");
    let theirs = ["client id 77 of the group a belongs to user 1101", "0: the agent makes one"];
    is_refused(&mut dave, "open a 77", &theirs);
    is_refused(&mut bob, "open a 77", &theirs);
    does(&mut dave, "open b 77");
    does(&mut dave, "open a 0");
    does(&mut dave, "propose two");
    // Also while she is not there, and also of an id that the agent has made.
    let own: u64 = ask(&mut alice, "open a 0").strip_prefix("ok ").unwrap().parse().unwrap();
    does(&mut alice, "propose three");
    is_refused(&mut dave, "open a 77", &theirs);
    is_refused(&mut dave, &format!("open a {own}"), &["belongs to user 1101"]);
    does(&mut alice, "open a 77");
    // Who only reads takes none.
    does(&mut bob, "open a 78");
    does(&mut dave, "open a 78");
    // On another host the right to propose is enough.
    let mut there = user(&w, 2, DAVE);
    does(&mut there, "open a 77");
    // Root may be whom it likes, and keeps the id.
    let options = Options { path: Some(w.socket(1)), client: 77, ..Options::default() };
    let mut root = Group::open_with("a", options).unwrap();
    let mut entries = Vec::new();
    read(&mut root, &mut entries, 3);
    assert_eq!(entries.iter().map(|entry| entry.bytes.as_slice()).collect::<Vec<_>>(), [&b"one"[..], b"two", b"three"]);
    is_refused(&mut alice, "open a 77", &["belongs to user 0"]);
}

#[test]
fn a_right_that_is_taken_away_ends_the_sessions_that_had_it() {
    let lines = |_| format!("a = [\"{ALICE}\", \"{BOB}\"]\nb = [\"{ALICE}\"]\n");
    let Some(w) = two(lines, &["a", "b"]) else { return };
    let [mut alice, mut also_alice, mut bob] = [ALICE, ALICE, BOB].map(|uid| user(&w, 1, uid));
    does(&mut alice, "open a 0");
    does(&mut also_alice, "open b 0");
    does(&mut bob, "open a 0");
    let text = std::fs::read_to_string(w.config(1)).unwrap();
    let reload = |lines: &str| {
        let (before, _) = text.split_once("[access.groups]").unwrap();
        w.write_config(1, &format!("{before}{lines}"));
        w.ask(1, &fide_wire::control::Request::Reload).unwrap()
    };
    // More than before ends nothing.
    reload(&format!("[access.groups]\n\"*\" = {{ propose = [\"{ALICE}\", \"{BOB}\"], administer = [\"{ALICE}\"] }}\n"));
    for user in [&mut alice, &mut also_alice, &mut bob] {
        does(user, "propose one");
    }
    reload(&format!("[access.groups]\na = {{ open = [\"{ALICE}\"], propose = [\"{BOB}\"] }}\nb = [\"{ALICE}\"]\n"));
    // She may open it still, and comes back as who only reads.
    does(&mut alice, "lost");
    is_refused(&mut alice, "propose two", &["`propose`"]);
    does(&mut also_alice, "propose two");
    does(&mut bob, "propose two");
    // The old list grants nothing, and says so.
    let reloaded = format!("{:?}", reload(&format!("[access]\ngroups = [\"{ALICE}\"]\n")));
    assert!(reloaded.contains("names no groups, so it grants nothing"), "{reloaded}");
    until("its log says so", || w.log(1).contains("names no groups, so it grants nothing"));
    for user in [&mut alice, &mut also_alice, &mut bob] {
        is_refused(user, "lost", &["`open`", "[access.groups]"]);
    }
    is_refused(&mut alice, "open a 0", &["`open`"]);
    until("no session is left", || ["a", "b"].into_iter().all(|name| status(&w, 1, name).unwrap().sessions == 0));
}

/// Places of groups are shared like everything else that all users of a host have together.
#[test]
fn one_user_cannot_take_all_places_of_groups() {
    let lines = |_| format!("\"a-*\" = {{ administer = [\"{ALICE}\"] }}\n\"b-*\" = {{ administer = [\"{BOB}\"] }}\n");
    let Some(w) = two(lines, &[]) else { return };
    let [mut alice, mut bob] = [ALICE, BOB].map(|uid| user(&w, 1, uid));
    let places = fide_agent::shares::GROUPS.per_user;
    for number in 0..places {
        does(&mut alice, &begin(&format!("a-{number}")));
    }
    let whole = format!("user {ALICE} has {places} groups, and one user may have {places}");
    is_refused(&mut alice, &begin("a-more"), &[&whole, "fide group leave"]);
    is_refused(&mut alice, &ordered(&GroupOrder::Join { name: "a-more".into() }), &[&whole]);
    does(&mut bob, &begin("b-0"));
    create(&w, 1, "roots", "huc", &["h1", "h2"]).unwrap();
    (1..=2).for_each(|host| runs(&w, host, "roots"));
    // The name of one that was left may be used again at once, and its place with it.
    (1..=2).for_each(|host| runs(&w, host, "a-0"));
    does(&mut alice, &leave("a-0"));
    until("alice's host has left it", || status(&w, 1, "a-0").is_none_or(|group| group.me.is_none()));
    let left = w.ask(2, &fide_wire::control::Request::Group { order: GroupOrder::Leave { name: "a-0".into(), force: false } });
    left.unwrap();
    until("the other one has, too", || status(&w, 2, "a-0").is_none_or(|group| group.me.is_none()));
    does(&mut alice, &begin("a-0"));
    is_refused(&mut alice, &begin("a-more"), &[&whole]);
}
