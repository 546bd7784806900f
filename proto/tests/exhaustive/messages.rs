//! Some members on reliable links, with heartbeats that reach all or nobody, and a detector.
//!
//! Anything may be next: the first message of any link, a heartbeat, an entry handed in, a crash, the notice of a crash. What a crashed member
//! had sent may be lost from any point on, on each link by itself: that covers a crash between any two sends of one step, and more. What a
//! member decided before it crashed counts (uniformity), even if nothing of what it sent with it arrives.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::hash::Hash;

use fide_proto::consensus::{Action, Engine, Halted, Instance};
use fide_proto::group::{Batch, Body, Entry, EntryId, MemberId, MemberSet};

use crate::exhaustive::explore::{Model, Part};

/// What may happen to this world.
#[derive(Clone, Debug)]
pub struct World<E> {
    pub build: fn(MemberId, MemberSet, Instance) -> E,
    /// How many entries each member may hand in, at any time. Its length is the number of members.
    pub entries: Vec<u8>,
    pub crashes: u8,
    /// Notices about members that are alive.
    pub suspicions: u8,
    /// A notice may overtake heartbeats of the crashed member: no fail-consistency.
    pub notice_overtakes: bool,
    /// Bytes of an entry's value.
    pub bytes: usize,
    /// For worlds that break an assumption: who waits for ever is no surprise there.
    pub safety_only: bool,
}

impl<E> World<E> {
    pub fn new(build: fn(MemberId, MemberSet, Instance) -> E, entries: &[u8], crashes: u8) -> Self {
        Self { build, entries: entries.to_vec(), crashes, suspicions: 0, notice_overtakes: false, bytes: 0, safety_only: false }
    }

    pub fn hosts(&self) -> usize {
        self.entries.len()
    }
}

#[derive(Clone, Debug, Hash)]
pub struct Host<E> {
    engine: E,
    decided: usize,
    halted: Option<Halted>,
    /// Entries not handed in yet.
    entries: u8,
    /// Whose crash it was told of, as bits.
    told: u8,
}

#[derive(Clone, Debug, Hash)]
pub struct State<M, E> {
    /// Nothing: crashed.
    hosts: Vec<Option<Part<Host<E>>>>,
    /// What the one who decided most has decided: the others are checked against it, so theirs are beginnings of it.
    log: Vec<Batch>,
    /// By sender · hosts + receiver.
    links: Vec<VecDeque<M>>,
    beats: Vec<VecDeque<M>>,
    crashes: u8,
    suspicions: u8,
}

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Propose {
        member: usize,
    },
    Message {
        from: usize,
        to: usize,
    },
    /// What `from`, who crashed, had sent to `to` after what came is lost.
    Lost {
        from: usize,
        to: usize,
    },
    Heartbeat {
        from: usize,
    },
    /// It leaves, and its sender dies before it knows.
    HeartbeatAndCrash {
        from: usize,
    },
    Piggyback {
        from: usize,
        to: usize,
    },
    Crash {
        member: usize,
    },
    Notice {
        crashed: usize,
        to: usize,
    },
    FalseNotice {
        alive: usize,
        to: usize,
    },
}

pub fn id(host: usize) -> MemberId {
    MemberId(host as u16 + 1)
}

fn place(member: MemberId) -> usize {
    usize::from(member.0) - 1
}

impl<E> World<E> {
    fn drain<M>(&self, state: &mut State<M, E>, me: usize, step: impl FnOnce(&mut E)) -> Result<(), String>
    where
        M: Clone + Debug + Hash,
        E: Engine<M> + Clone + Hash,
    {
        let hosts = self.hosts();
        let State { hosts: members, log, links, .. } = state;
        let alive: Vec<bool> = members.iter().map(Option::is_some).collect();
        let Some(member) = &mut members[me] else { return Ok(()) };
        let entries = &self.entries;
        member.change(|member| {
            step(&mut member.engine);
            while let Some(action) = member.engine.poll_action() {
                match action {
                    Action::Send { to, message } => {
                        if to == id(me) {
                            return Err(format!("{} sends to itself", id(me)));
                        }
                        // A message to the dead, or of one that nobody waits for any more, is nothing.
                        if alive[place(to)] {
                            links[me * hosts + place(to)].push_back(message);
                        }
                    }
                    Action::Decide { instance, batch } => {
                        if member.halted.is_some() {
                            return Err(format!("{} decides after it halted", id(me)));
                        }
                        if instance != member.decided as Instance + 1 || batch.is_empty() {
                            return Err(format!("integrity: {} decides instance {instance} after {}", id(me), member.decided));
                        }
                        let proposed = |entry: &Entry| entry.id.number <= u64::from(entries[place(entry.id.proposer)]);
                        if !batch.iter().all(proposed) {
                            return Err(format!("validity: {batch:?} was not proposed"));
                        }
                        match log.get(member.decided) {
                            Some(decided) if *decided != batch => {
                                let (this, that) = (ids(&batch), ids(decided));
                                return Err(format!("agreement: in instance {instance} {} decides {this}, not {that}", id(me)));
                            }
                            Some(_) => {}
                            None => {
                                if let Some(entry) = out_of_order(log, &batch) {
                                    return Err(format!("order: {entry} in {}", ids(&batch)));
                                }
                                log.push(batch);
                            }
                        }
                        member.decided += 1;
                    }
                    Action::Halt(why) => member.halted = Some(why),
                    Action::Copies { .. } | Action::Memory { .. } | Action::State { .. } => {
                        return Err("not of this engine".to_owned());
                    }
                }
            }
            member.engine.invariants();
            if member.halted != member.engine.halted() {
                return Err(format!("{} halted in silence", id(me)));
            }
            Ok(())
        })
    }

    fn crash<M: Clone>(&self, state: &mut State<M, E>, member: usize) {
        state.hosts[member] = None;
        state.crashes -= 1;
        for from in 0..self.hosts() {
            state.links[from * self.hosts() + member].clear();
            state.beats[from * self.hosts() + member].clear();
        }
    }
}

/// Entries of one member are decided in their order. An engine may decide one again that it was handed again (the log drops it), but not twice in
/// one batch.
fn out_of_order(log: &[Batch], batch: &Batch) -> Option<EntryId> {
    let before = |id: EntryId| log.iter().flat_map(|batch| batch.iter()).any(|entry| entry.id == id);
    let ids: Vec<EntryId> = batch.iter().map(|entry| entry.id).collect();
    let follows = |(at, id): (usize, &EntryId)| {
        let previous = EntryId { number: id.number - 1, ..*id };
        !ids[..at].contains(id) && (previous.number == 0 || ids[..at].contains(&previous) || before(previous))
    };
    ids.iter().copied().enumerate().find(|(at, id)| !follows((*at, id))).map(|(_, id)| id)
}

/// `[p1.1 p2.1]`.
pub fn ids(batch: &[Entry]) -> String {
    let ids: Vec<_> = batch.iter().map(|entry| entry.id.to_string()).collect();
    format!("[{}]", ids.join(" "))
}

/// The `number`th entry of this member.
pub fn entry(member: MemberId, number: u64, bytes: usize) -> Entry {
    Entry { id: EntryId { proposer: member, number }, body: Body::Value(vec![0; bytes].into()) }
}

pub struct Links<M, E> {
    pub world: World<E>,
    message: std::marker::PhantomData<M>,
}

impl<M, E> Links<M, E> {
    pub fn new(world: World<E>) -> Self {
        Self { world, message: std::marker::PhantomData }
    }
}

impl<M, E> Model for Links<M, E>
where
    M: Clone + Debug + Hash,
    E: Engine<M> + Clone + Hash,
{
    type State = State<M, E>;
    type Event = Event;

    fn start(&self) -> State<M, E> {
        let World { build, entries, crashes, suspicions, .. } = &self.world;
        let n = entries.len();
        let host = |(i, &entries): (usize, &u8)| {
            let engine = build(id(i), MemberSet::first(n as u16), 1);
            Some(Part::new(Host { engine, decided: 0, halted: None, entries, told: 0 }))
        };
        let mut state = State {
            hosts: entries.iter().enumerate().map(host).collect(),
            log: Vec::new(),
            links: vec![VecDeque::new(); n * n],
            beats: vec![VecDeque::new(); n * n],
            crashes: *crashes,
            suspicions: *suspicions,
        };
        for me in 0..n {
            self.world.drain(&mut state, me, |_| {}).expect("nothing is wrong at the start");
        }
        state
    }

    fn events(&self, state: &State<M, E>, events: &mut Vec<Event>) {
        let n = self.world.hosts();
        let alive = |host: usize| state.hosts[host].is_some();
        for from in 0..n {
            for to in (0..n).filter(|&to| to != from) {
                if !state.links[from * n + to].is_empty() {
                    events.push(Event::Message { from, to });
                    if !alive(from) {
                        events.push(Event::Lost { from, to });
                    }
                }
                if !state.beats[from * n + to].is_empty() {
                    events.push(Event::Piggyback { from, to });
                }
                let Some(observer) = &state.hosts[to] else { continue };
                if observer.told & 1 << from == 0 {
                    let heard = state.beats[from * n + to].is_empty() || self.world.notice_overtakes;
                    match alive(from) {
                        false if heard => events.push(Event::Notice { crashed: from, to }),
                        true if state.suspicions > 0 => events.push(Event::FalseNotice { alive: from, to }),
                        _ => {}
                    }
                }
            }
            let Some(host) = &state.hosts[from] else { continue };
            if host.entries > 0 && host.halted.is_none() {
                events.push(Event::Propose { member: from });
            }
            if state.crashes > 0 {
                events.push(Event::Crash { member: from });
            }
            if host.engine.clone().poll_piggyback(0).is_some() {
                events.push(Event::Heartbeat { from });
                if state.crashes > 0 {
                    events.push(Event::HeartbeatAndCrash { from });
                }
            }
        }
    }

    fn step(&self, state: &mut State<M, E>, event: &Event) -> Result<(), String> {
        let (world, n) = (&self.world, self.world.hosts());
        match *event {
            Event::Propose { member } => {
                let Some(host) = &mut state.hosts[member] else { return Ok(()) };
                let number = world.entries[member] - host.entries + 1;
                host.change(|host| host.entries -= 1);
                world.drain(state, member, |engine| {
                    let taken = engine.propose(0, entry(id(member), u64::from(number), world.bytes));
                    assert_eq!(taken, Ok(()), "one entry can always wait");
                })
            }
            Event::Message { from, to } => {
                let Some(message) = state.links[from * n + to].pop_front() else { return Ok(()) };
                world.drain(state, to, |engine| {
                    let _ = engine.handle_message(0, id(from), message);
                })
            }
            Event::Lost { from, to } => {
                state.links[from * n + to].clear();
                Ok(())
            }
            Event::Heartbeat { from } | Event::HeartbeatAndCrash { from } => {
                let alive: Vec<_> = (0..n).filter(|&to| to != from && state.hosts[to].is_some()).collect();
                let Some(host) = &mut state.hosts[from] else { return Ok(()) };
                let Some(message) = host.change(|host| host.engine.poll_piggyback(0)) else { return Ok(()) };
                for to in alive {
                    state.beats[from * n + to].push_back(message.clone());
                }
                if matches!(event, Event::HeartbeatAndCrash { .. }) {
                    world.crash(state, from);
                    return Ok(());
                }
                world.drain(state, from, |engine| engine.handle_piggyback_sent(0))
            }
            Event::Piggyback { from, to } => {
                let Some(message) = state.beats[from * n + to].pop_front() else { return Ok(()) };
                world.drain(state, to, |engine| {
                    let _ = engine.handle_piggyback(0, id(from), message);
                })
            }
            Event::Crash { member } => {
                world.crash(state, member);
                Ok(())
            }
            Event::Notice { crashed, to } | Event::FalseNotice { alive: crashed, to } => {
                if matches!(event, Event::FalseNotice { .. }) {
                    state.suspicions -= 1;
                }
                if let Some(host) = &mut state.hosts[to] {
                    host.change(|host| host.told |= 1 << crashed);
                }
                world.drain(state, to, |engine| {
                    let _ = engine.handle_crash(0, id(crashed));
                })
            }
        }
    }

    fn is_optional(&self, event: &Event) -> bool {
        matches!(
            event,
            Event::Propose { .. }
                | Event::Crash { .. }
                | Event::HeartbeatAndCrash { .. }
                | Event::Lost { .. }
                | Event::FalseNotice { .. }
        )
    }

    fn quiet(&self, state: &State<M, E>) -> Result<(), String> {
        if self.world.safety_only {
            return Ok(());
        }
        for (i, host) in state.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            let me = id(i);
            if let Some(why) = host.halted {
                return Err(format!("termination: {me} halted for {why:?}"));
            }
            if host.decided < state.log.len() {
                return Err(format!("termination: {me} decided {} instances of {}", host.decided, state.log.len()));
            }
            for number in 1..=self.world.entries[i] - host.entries {
                let id = EntryId { proposer: me, number: u64::from(number) };
                if !state.log.iter().any(|batch| batch.iter().any(|entry| entry.id == id)) {
                    return Err(format!("termination: {id} of a member alive was never decided"));
                }
            }
        }
        Ok(())
    }
}
