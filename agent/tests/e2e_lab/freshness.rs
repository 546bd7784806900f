//! A neighbour who records and plays back, and agents that restart with no memory (issue 16): nothing recorded is
//! believed.
//!
//! Host 3 runs no agent: it is the neighbour's.

use crate::common::{Process, Setup, World, until};
use crate::e2e_lab::ways::{PacketSocket, with_keys};
use fide_wire::control::Request;
use fide_wire::frame::Kind;
use fide_wire::verdict::Cause;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Plays recordings back until it is dropped, a frame each millisecond on each path.
struct Playback {
    ends: Arc<AtomicBool>,
    played: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Playback {
    fn start(wire: [PacketSocket; 2], frames: [Vec<Vec<u8>>; 2]) -> Self {
        let (ends, played) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count) = (ends.clone(), played.clone());
        let thread = std::thread::spawn(move || {
            let longest = frames.iter().map(Vec::len).max().unwrap_or(0);
            for i in (0..longest).cycle() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                for (socket, frames) in wire.iter().zip(&frames) {
                    if let Some(frame) = frames.get(i) {
                        count.fetch_add(u64::from(socket.write(frame)), Ordering::Relaxed);
                    }
                }
                // Sleep: interval of the frames.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        Self { ends, played, thread: Some(thread) }
    }

    /// Every recorded frame was played at least once more.
    fn goes_round(&self, frames: u64) {
        let from = self.played.load(Ordering::Relaxed);
        until("the recording goes round", || self.played.load(Ordering::Relaxed) >= from + frames);
    }
}

impl Drop for Playback {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it asserts nothing
        }
    }
}

fn is_of(frame: &[u8], host: &str) -> bool {
    let is_ours = frame.get(12..14) == Some(&[8, 0]) && frame.get(42..44) == Some(&[0xf1, 0xde]);
    is_ours && frame.get(50..54) == Some(&fide_wire::name_id(host).to_be_bytes())
}

/// What h1 sends while its process `db` is reported hung and a second process is killed; and `db`, which moves again.
fn recorded(w: &World, wire: &[PacketSocket; 2]) -> ([Vec<Vec<u8>>; 2], Process) {
    let db = w.sleeper(1);
    w.watch_known(1, "db", db.pid());
    let victim = w.sleeper(1);
    w.watch_known(1, "victim", victim.pid());
    let report = |hung| Request::Report { name: "db".into(), hung, reason: String::new() };
    w.ask(1, &report(true)).unwrap();
    w.event(2, "hung", |e| e.cause == Cause::Hung && e.app.as_deref() == Some("db"));
    victim.kill();
    w.event(2, "the crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("victim"));
    let mut frames: [Vec<Vec<u8>>; 2] = Default::default();
    let mut take = |least: usize| {
        until("packets were recorded", || {
            for (frames, socket) in frames.iter_mut().zip(wire) {
                frames.extend(socket.read().into_iter().filter(|frame| is_of(frame, "h1")));
            }
            frames.iter().all(|frames| frames.len() >= least)
        });
    };
    take(300);
    w.ask(1, &report(false)).unwrap();
    w.event(2, "moves again", |e| e.cause == Cause::Progressing && e.app.as_deref() == Some("db"));
    (frames, db)
}

fn two_and_a_neighbour() -> Option<(World, [PacketSocket; 2])> {
    let mut w = Setup::hosts(3).empty().up()?;
    for host in [1, 2] {
        with_keys(&w, host, (1, 'a'), None);
        w.start(host);
    }
    w.all_alive();
    let wire = w.lab.in_host(3, || ["net0", "net1"].map(PacketSocket::open)).unwrap();
    Some((w, wire))
}

fn restarts(default: u32) -> u32 {
    std::env::var("FIDE_RESTARTS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Row 4: a recorded "hung" marked a live process for good, a recorded "killed" became a certain crash.
#[test]
fn a_receiver_that_restarts_believes_no_recorded_notice() {
    let Some((mut w, wire)) = two_and_a_neighbour() else { return };
    let (mut frames, _db) = recorded(&w, &wire);
    // Announcements and notices alone: they come before the live host's own once in a while.
    frames.iter_mut().for_each(|frames| frames.retain(|f| [Kind::Introduction as u8, Kind::Change as u8].contains(&f[58])));
    let count = frames.iter().map(Vec::len).sum::<usize>() as u64;
    let playback = Playback::start(wire, frames);
    for round in 0..restarts(5) {
        let before = w.history(2).last().map_or(0, |e| e.seq);
        w.kill_agent(2);
        std::fs::remove_file(w.lab.host_dir(2).join("state.json")).unwrap();
        w.start(2);
        w.all_alive();
        w.known(1, "db");
        if round == 0 {
            playback.goes_round(count);
        }
        let believed: Vec<_> = w.history(2).into_iter().filter(|e| e.seq > before && e.app.is_some()).collect();
        let believed: Vec<_> = believed.iter().filter(|e| e.cause != Cause::Monitored).collect();
        assert!(believed.is_empty(), "round {round}: {believed:?}");
        let state = w.view(2, "h1").unwrap().apps.iter().find(|a| a.name == "db").map(|a| a.state.clone());
        assert_eq!(state.as_deref(), Some("alive"), "round {round}");
    }
}

/// Row 4: a host that died meanwhile was held alive for as long as a recording lasted.
#[test]
fn a_receiver_that_restarts_believes_no_recorded_host() {
    let Some((mut w, wire)) = two_and_a_neighbour() else { return };
    let (frames, _db) = recorded(&w, &wire);
    let count = frames.iter().map(Vec::len).sum::<usize>() as u64;
    w.kill_agent(1);
    let playback = Playback::start(wire, frames);
    for round in 0..restarts(2) {
        let before = w.history(2).last().map_or(0, |e| e.seq);
        w.kill_agent(2);
        std::fs::remove_file(w.lab.host_dir(2).join("state.json")).unwrap();
        w.start(2);
        let refused = |w: &World| w.status(2).refused.values().sum::<u64>();
        let from = refused(&w);
        until("the recording comes in and is refused", || refused(&w) > from + 20);
        if round == 0 {
            playback.goes_round(count);
        }
        let heard = w.view(2, "h1");
        assert!(heard.is_none(), "round {round}: {heard:?}");
        let told: Vec<_> = w.history(2).into_iter().filter(|e| e.seq > before && e.node == "h1").collect();
        assert!(told.is_empty(), "round {round}: {told:?}");
    }
    // And the host itself, when it is back, is believed at once.
    w.start(1);
    until("h1 is alive", || w.state(2, "h1") == "alive");
}
