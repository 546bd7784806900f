//! Some members in discrete time: a copy takes 1 to Δ_I ticks, timers are served up to `late` ticks after they are due, all begin within Δ_W.
//!
//! In each tick members take their turns from the lowest to the highest. As nothing arrives in the tick in which it was sent, what they do in one
//! tick does not touch, and one order of turns stands for all. Clocks tell true time: drift only adds to waits, and is not explored.
//!
//! A crash is possible at every turn, between a round and its leader's knowing that it left, and between its paths: then what left on a path
//! reaches everybody or nobody, as one switch copies it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use fide_proto::consensus::{Action, Engine, Halted, Instance};
use fide_proto::group::{Batch, EntryId, MemberId, MemberSet};

use crate::exhaustive::explore::{Model, Part};
use crate::exhaustive::messages::{entry, id, ids};

/// What may happen to this world.
pub struct World<M, E> {
    /// A member that begins at this time.
    pub build: fn(MemberId, MemberSet, u64) -> E,
    /// The number of a broadcast.
    pub round: fn(&M) -> u64,
    pub delta_i: u64,
    pub delta_w: u64,
    pub late: u64,
    pub paths: usize,
    /// Handed in by each member when it begins.
    pub entries: Vec<u8>,
    pub crashes: u8,
    /// Crashes come in this tick at the latest …
    pub crash_until: u64,
    /// … and what was promised is there in this one.
    pub horizon: u64,
    /// Whether crashes are reported, at any time after …
    pub notices: bool,
    /// … but those that there were in this tick at the latest.
    pub notices_by: Option<u64>,
    /// Copies that take longer than Δ_I.
    pub late_copies: u8,
    /// One decision is all.
    pub once: bool,
    pub safety_only: bool,
}

#[derive(Clone, Debug, Hash)]
pub enum Host<E> {
    /// Has not begun.
    Asleep,
    Alive(Part<Member<E>>),
    Halted(Halted),
    Dead,
}

#[derive(Clone, Debug, Hash)]
pub struct Member<E> {
    engine: E,
    decided: usize,
    told: u8,
}

#[derive(Clone, Debug, Hash)]
struct Flight<M> {
    sent: u64,
    late: bool,
    message: M,
}

#[derive(Clone, Debug, Hash)]
pub struct State<M, E> {
    now: u64,
    turn: usize,
    hosts: Vec<Host<E>>,
    log: Vec<Batch>,
    /// By sender, receiver and lane; the lane behind the paths is the reliable link.
    links: Vec<VecDeque<Flight<M>>>,
    speakers: BTreeMap<u64, MemberId>,
    last_speaker: Option<MemberId>,
    crashes: u8,
    late_copies: u8,
    /// A round left on some paths only: all may stop.
    cut: bool,
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "some fields are there to be told in traces")]
pub enum Event {
    Begin {
        member: usize,
    },
    Copy {
        from: usize,
        to: usize,
        path: usize,
    },
    Message {
        from: usize,
        to: usize,
    },
    /// What `from`, who crashed, had sent over its reliable link.
    Lost {
        from: usize,
        to: usize,
    },
    /// This copy takes longer than Δ_I.
    Late {
        from: usize,
        to: usize,
        path: usize,
    },
    Timer {
        member: usize,
    },
    /// Its round leaves on the first paths only, or on all, and it dies before it knows.
    TimerAndCrash {
        member: usize,
        paths: usize,
    },
    Crash {
        member: usize,
    },
    Notice {
        crashed: usize,
        to: usize,
    },
    /// Nothing more in this tick.
    Pass {
        member: usize,
        now: u64,
    },
}

impl<M, E> World<M, E>
where
    M: Clone + Debug + Hash,
    E: Engine<M> + Clone + Hash,
{
    fn link(&self, from: usize, to: usize, lane: usize) -> usize {
        (from * self.entries.len() + to) * (self.paths + 1) + lane
    }

    /// Does what the engine asks for, and serves the timer again if a round left: its leader decides by that.
    fn act(&self, state: &mut State<M, E>, me: usize, step: impl FnOnce(&mut E)) -> Result<(), String> {
        let (rounds, now) = (state.speakers.len(), state.now);
        self.drain(state, me, self.paths, step)?;
        if state.speakers.len() > rounds {
            self.drain(state, me, self.paths, |engine| engine.handle_timeout(now))?;
        }
        Ok(())
    }

    /// Does what the engine asks for. Copies leave on the first `paths` paths.
    fn drain(&self, state: &mut State<M, E>, me: usize, paths: usize, step: impl FnOnce(&mut E)) -> Result<(), String> {
        let n = self.entries.len();
        let now = state.now;
        let mut halted = None;
        let mut out: Vec<(usize, usize, M)> = Vec::new();
        let (log, speakers, last_speaker) = (&mut state.log, &mut state.speakers, &mut state.last_speaker);
        let Host::Alive(member) = &mut state.hosts[me] else { return Ok(()) };
        member.change(|member| {
            step(&mut member.engine);
            while let Some(action) = member.engine.poll_action() {
                match action {
                    Action::Send { to, message } => out.push((usize::from(to.0) - 1, self.paths, message)),
                    Action::Copies { message } => {
                        let round = (self.round)(&message);
                        let other = *speakers.entry(round).or_insert(id(me));
                        if !self.safety_only && (other != id(me) || last_speaker.is_some_and(|last| last > id(me))) {
                            return Err(format!("leaders: {} speaks in round {round} beside {other}", id(me)));
                        }
                        *last_speaker = (*last_speaker).max(Some(id(me)));
                        let others = (0..n).filter(|&to| to != me);
                        out.extend(
                            others
                                .flat_map(|to| (0..paths).map(move |path| (to, path)))
                                .map(|(to, path)| (to, path, message.clone())),
                        );
                    }
                    Action::Decide { instance, batch } => {
                        if halted.is_some() {
                            return Err(format!("{} decides after it halted", id(me)));
                        }
                        if instance != member.decided as Instance + 1 || batch.is_empty() {
                            return Err(format!("integrity: {} decides instance {instance} after {}", id(me), member.decided));
                        }
                        match log.get(member.decided) {
                            Some(decided) if *decided != batch => {
                                let (this, that) = (ids(&batch), ids(decided));
                                return Err(format!("agreement: in instance {instance} {} decides {this}, not {that}", id(me)));
                            }
                            Some(_) => {}
                            None => {
                                let known = |id: EntryId| id.number <= u64::from(self.entries[usize::from(id.proposer.0) - 1]);
                                if !batch.iter().all(|entry| known(entry.id)) {
                                    return Err(format!("validity: {batch:?} was not proposed"));
                                }
                                if batch.iter().any(|entry| log.iter().any(|before| before.contains(entry))) {
                                    return Err(format!("integrity: {} is decided twice", ids(&batch)));
                                }
                                log.push(batch);
                            }
                        }
                        member.decided += 1;
                    }
                    Action::Halt(why) => halted = Some(why),
                    Action::Memory { .. } | Action::State { .. } => return Err("not of this engine".to_owned()),
                }
            }
            member.engine.invariants();
            if halted != member.engine.halted() {
                return Err(format!("{} halted in silence", id(me)));
            }
            Ok(())
        })?;
        for (to, lane, message) in out {
            if matches!(state.hosts[to], Host::Asleep | Host::Alive(_)) {
                state.links[self.link(me, to, lane)].push_back(Flight { sent: now, late: false, message });
            }
        }
        if let Some(why) = halted {
            self.end(state, me, Host::Halted(why));
        }
        Ok(())
    }

    fn end(&self, state: &mut State<M, E>, me: usize, how: Host<E>) {
        state.hosts[me] = how;
        for from in 0..self.entries.len() {
            for lane in 0..=self.paths {
                state.links[self.link(from, me, lane)].clear();
            }
        }
    }

    fn crash(&self, state: &mut State<M, E>, me: usize) {
        self.end(state, me, Host::Dead);
        state.crashes -= 1;
    }

    /// Whether something is in this tick at the latest. It goes before timers: what came until the clock was read is handed in first.
    fn is_due(&self, state: &State<M, E>, me: usize) -> bool {
        let by_now = |flight: &Flight<M>| !flight.late && flight.sent + self.delta_i <= state.now;
        let froms = (0..self.entries.len()).filter(|&from| from != me);
        let mut links = froms.flat_map(|from| (0..=self.paths).map(move |lane| self.link(from, me, lane)));
        links.any(|link| state.links[link].front().is_some_and(by_now))
    }

    /// Whether it must do something in this tick still.
    fn is_pressed(&self, state: &State<M, E>, me: usize) -> bool {
        match &state.hosts[me] {
            Host::Asleep => state.now >= self.delta_w,
            Host::Alive(member) => {
                let untold = |(i, host): (usize, &Host<E>)| matches!(host, Host::Dead) && member.told & 1 << i == 0;
                self.is_due(state, me)
                    || member.engine.poll_timeout().is_some_and(|due| due + self.late <= state.now)
                    || self.notices_by.is_some_and(|by| state.now >= by) && state.hosts.iter().enumerate().any(untold)
            }
            Host::Halted(_) | Host::Dead => false,
        }
    }

    fn pass(&self, state: &mut State<M, E>) {
        while state.now < self.horizon {
            state.turn += 1;
            if state.turn == self.entries.len() {
                state.turn = 0;
                state.now += 1;
            }
            if matches!(state.hosts[state.turn], Host::Asleep | Host::Alive(_)) {
                return;
            }
            if !state.hosts.iter().any(|host| matches!(host, Host::Asleep | Host::Alive(_))) {
                state.now = self.horizon;
            }
        }
    }
}

impl<M, E> Model for World<M, E>
where
    M: Clone + Debug + Hash,
    E: Engine<M> + Clone + Hash,
{
    type State = State<M, E>;
    type Event = Event;

    fn start(&self) -> State<M, E> {
        let n = self.entries.len();
        State {
            now: 0,
            turn: 0,
            hosts: (0..n).map(|_| Host::Asleep).collect(),
            log: Vec::new(),
            links: vec![VecDeque::new(); n * n * (self.paths + 1)],
            speakers: BTreeMap::new(),
            last_speaker: None,
            crashes: self.crashes,
            late_copies: self.late_copies,
            cut: false,
        }
    }

    fn events(&self, state: &State<M, E>, events: &mut Vec<Event>) {
        let me = state.turn;
        if state.now >= self.horizon {
            return;
        }
        let may_crash = state.crashes > 0 && state.now <= self.crash_until;
        match &state.hosts[me] {
            Host::Asleep => events.push(Event::Begin { member: me }),
            Host::Alive(member) => {
                for from in (0..self.entries.len()).filter(|&from| from != me) {
                    for lane in 0..=self.paths {
                        let Some(flight) = state.links[self.link(from, me, lane)].front() else { continue };
                        if flight.sent >= state.now {
                            continue;
                        }
                        if lane == self.paths {
                            events.push(Event::Message { from, to: me });
                            if matches!(state.hosts[from], Host::Dead) {
                                events.push(Event::Lost { from, to: me });
                            }
                            continue;
                        }
                        events.push(Event::Copy { from, to: me, path: lane });
                        if !flight.late && state.late_copies > 0 && flight.sent + self.delta_i == state.now {
                            events.push(Event::Late { from, to: me, path: lane });
                        }
                    }
                    if self.notices && matches!(state.hosts[from], Host::Dead) && member.told & 1 << from == 0 {
                        events.push(Event::Notice { crashed: from, to: me });
                    }
                }
                if !self.is_due(state, me) && member.engine.poll_timeout().is_some_and(|due| due <= state.now) {
                    events.push(Event::Timer { member: me });
                    if may_crash {
                        let mut engine = member.engine.clone();
                        engine.handle_timeout(state.now);
                        let speaks =
                            std::iter::from_fn(|| engine.poll_action()).any(|action| matches!(action, Action::Copies { .. }));
                        events
                            .extend((1..=self.paths).filter(|_| speaks).map(|paths| Event::TimerAndCrash { member: me, paths }));
                    }
                }
            }
            Host::Halted(_) | Host::Dead => {}
        }
        if may_crash && matches!(state.hosts[me], Host::Asleep | Host::Alive(_)) {
            events.push(Event::Crash { member: me });
        }
        if !self.is_pressed(state, me) {
            events.push(Event::Pass { member: me, now: state.now });
        }
    }

    fn step(&self, state: &mut State<M, E>, event: &Event) -> Result<(), String> {
        let now = state.now;
        match *event {
            Event::Begin { member } => {
                let engine = (self.build)(id(member), MemberSet::first(self.entries.len() as u16), now);
                state.hosts[member] = Host::Alive(Part::new(Member { engine, decided: 0, told: 0 }));
                self.act(state, member, |engine| {
                    for number in 1..=self.entries[member] {
                        let taken = engine.propose(now, entry(id(member), u64::from(number), 0));
                        assert_eq!(taken, Ok(()), "one entry can always wait");
                    }
                })?;
            }
            Event::Copy { from, to, path } => {
                let link = self.link(from, to, path);
                let Some(flight) = state.links[link].pop_front() else { return Ok(()) };
                self.act(state, to, |engine| {
                    let _ = engine.handle_copy(now, id(from), path, flight.message);
                })?;
            }
            Event::Message { from, to } => {
                let link = self.link(from, to, self.paths);
                let Some(flight) = state.links[link].pop_front() else { return Ok(()) };
                self.act(state, to, |engine| {
                    let _ = engine.handle_message(now, id(from), flight.message);
                })?;
            }
            Event::Lost { from, to } => {
                let link = self.link(from, to, self.paths);
                state.links[link].clear();
            }
            Event::Late { from, to, path } => {
                let link = self.link(from, to, path);
                state.late_copies -= 1;
                if let Some(flight) = state.links[link].front_mut() {
                    flight.late = true;
                }
            }
            Event::Timer { member } => self.act(state, member, |engine| engine.handle_timeout(now))?,
            Event::TimerAndCrash { member, paths } => {
                self.drain(state, member, paths, |engine| engine.handle_timeout(now))?;
                state.cut |= paths < self.paths;
                self.crash(state, member);
            }
            Event::Crash { member } => self.crash(state, member),
            Event::Notice { crashed, to } => {
                if let Host::Alive(member) = &mut state.hosts[to] {
                    member.change(|member| member.told |= 1 << crashed);
                }
                self.act(state, to, |engine| {
                    let _ = engine.handle_crash(now, id(crashed));
                })?;
            }
            Event::Pass { .. } => {
                self.pass(state);
                return Ok(());
            }
        }
        // Who is gone has no turn.
        if !matches!(state.hosts[state.turn], Host::Asleep | Host::Alive(_)) {
            self.pass(state);
        }
        Ok(())
    }

    fn is_optional(&self, _: &Event) -> bool {
        // Time goes on, until the horizon.
        false
    }

    fn quiet(&self, state: &State<M, E>) -> Result<(), String> {
        if self.safety_only {
            return Ok(());
        }
        for (i, host) in state.hosts.iter().enumerate() {
            let me = id(i);
            match host {
                Host::Halted(why) if !state.cut => return Err(format!("termination: {me} halted for {why:?}")),
                Host::Alive(member) if !state.cut => {
                    if member.decided < state.log.len() || self.once && state.log.is_empty() {
                        return Err(format!("termination: {me} decided {} instances of {}", member.decided, state.log.len()));
                    }
                    for number in 1..=u64::from(self.entries[i]) {
                        let own = EntryId { proposer: me, number };
                        let decided = state.log.iter().any(|batch| batch.iter().any(|entry| entry.id == own));
                        if !self.once && !decided {
                            return Err(format!("termination: {own} of a member alive was never decided"));
                        }
                    }
                }
                Host::Asleep => return Err(format!("{me} never began")),
                _ => {}
            }
        }
        Ok(())
    }
}
