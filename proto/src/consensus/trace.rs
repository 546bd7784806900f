//! What an engine of HSUC or HUC does, as lines that the TLA+ specifications judge
//! (specs/README.md, "Traces").
//!
//! [`Traced`] stands between a log and its engine, so what is written is what the engine was
//! handed and what it wanted, whether members are simulated or run on real packets. It reads no
//! clock: whoever takes the lines knows the time.
//!
//! A decision of HUC has two lines. The first is written when it is put on a heartbeat, so that it
//! comes before the lines of those that receive it; [`LEFT`] is written when that heartbeat has
//! left. A member that crashed in between may have sent nothing.

use super::log::EngineMessage;
use super::{Action, Engine, Halted, Instance, Kind, hsuc, huc, memory};
use crate::group::{Entry, EntryId, MemberId, MemberSet, Refusals, Refused, Value};
use std::fmt;

/// The line of a member whose heartbeat with the last decision has left.
pub const LEFT: &str = "left";

/// A message as the papers have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// `propose`, `ack` or `decide`.
    pub kind: &'static str,
    /// Of which instance.
    pub instance: Instance,
    /// The entries that it carries, as [`names`] has them.
    pub value: String,
}

/// Entries in a line: ids joined by `+`; `-` for none.
#[must_use]
pub fn names(ids: impl Iterator<Item = EntryId>) -> String {
    let names: Vec<_> = ids.map(|id| id.to_string()).collect();
    if names.is_empty() { "-".into() } else { names.join("+") }
}

fn entries<'a>(batch: impl IntoIterator<Item = &'a Entry>) -> String {
    names(batch.into_iter().map(|entry| entry.id))
}

fn items(items: &[huc::Item]) -> String {
    let id = |item: &huc::Item| match item {
        huc::Item::Direct(entry) => entry.id,
        huc::Item::Ahead(body) => body.id,
    };
    names(items.iter().map(id))
}

/// A message of HSUC; nothing for one that the paper does not have.
#[must_use]
pub fn shown_hsuc(message: &hsuc::Message) -> Option<Shown> {
    let (kind, instance, value) = match message {
        hsuc::Message::Propose { instance, batch } => ("propose", *instance, entries(batch.iter())),
        hsuc::Message::Ack { instance } => ("ack", *instance, "-".into()),
        hsuc::Message::Decided(message) => ("decide", message.id.sequence, entries(message.body.iter())),
        hsuc::Message::Forward { .. } | hsuc::Message::Ask => return None,
    };
    Some(Shown { kind, instance, value })
}

/// A message of HUC; nothing for one that the paper does not have.
#[must_use]
pub fn shown_huc(message: &huc::Message) -> Option<Shown> {
    let (kind, instance, value) = match message {
        huc::Message::Propose { instance, proposal } => ("propose", *instance, items(&proposal.items)),
        huc::Message::Decision(message) => ("decide", message.body.instance, items(&message.body.items)),
        huc::Message::Body(_) | huc::Message::Ask | huc::Message::Answer => return None,
    };
    Some(Shown { kind, instance, value })
}

fn shown(message: &EngineMessage) -> Option<Shown> {
    match message {
        EngineMessage::Hsuc(message) => shown_hsuc(message),
        EngineMessage::Huc(message) => shown_huc(message),
        EngineMessage::Opaque(_) | EngineMessage::Lowi(_) | EngineMessage::Paxos(_) => None,
    }
}

/// Takes lines, in their order. A line of what leaves comes before it leaves.
pub type Sink = Box<dyn FnMut(&str) + Send>;

/// An engine of HSUC or HUC whose lines are written.
pub struct Traced {
    me: MemberId,
    engine: Box<dyn Engine<EngineMessage> + Send>,
    sink: Sink,
}

impl Traced {
    /// The engine of this member.
    #[must_use]
    pub fn new(me: MemberId, engine: Box<dyn Engine<EngineMessage> + Send>, sink: Sink) -> Self {
        Self { me, engine, sink }
    }

    fn line(&mut self, what: fmt::Arguments<'_>) {
        (self.sink)(&format!("{} {what}", self.me));
    }

    fn sends(&mut self, to: &dyn fmt::Display, message: &EngineMessage) {
        let me = self.me;
        if let Some(Shown { kind, instance, value }) = shown(message) {
            self.line(format_args!("send {kind} {instance} {me} {to} {value}"));
        }
    }

    /// Also what it will refuse: that has no effect, and the specifications know it.
    fn receives(&mut self, from: MemberId, message: &EngineMessage) {
        let me = self.me;
        if let Some(Shown { kind, instance, value }) = shown(message) {
            self.line(format_args!("recv {kind} {instance} {from} {me} {value}"));
        }
    }
}

impl Engine<EngineMessage> for Traced {
    fn kind(&self) -> Kind {
        self.engine.kind()
    }

    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused> {
        let id = entry.id;
        self.engine.propose(now_ns, entry)?;
        self.line(format_args!("propose {id}"));
        Ok(())
    }

    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: EngineMessage) -> Result<(), Refused> {
        self.receives(from, &message);
        self.engine.handle_message(now_ns, from, message)
    }

    fn handle_copy(&mut self, now_ns: u64, from: MemberId, path: usize, message: EngineMessage) -> Result<(), Refused> {
        self.engine.handle_copy(now_ns, from, path, message)
    }

    fn handle_copies_sent(&mut self, now_ns: u64) {
        self.engine.handle_copies_sent(now_ns);
    }

    fn handle_copies_void(&mut self, now_ns: u64) {
        self.engine.handle_copies_void(now_ns);
    }

    fn poll_piggyback(&mut self, now_ns: u64) -> Option<EngineMessage> {
        let message = self.engine.poll_piggyback(now_ns)?;
        self.sends(&"*", &message);
        Some(message)
    }

    fn handle_piggyback_sent(&mut self, now_ns: u64) {
        self.engine.handle_piggyback_sent(now_ns);
        self.line(format_args!("{LEFT}"));
    }

    fn handle_piggyback(&mut self, now_ns: u64, from: MemberId, message: EngineMessage) -> Result<(), Refused> {
        self.receives(from, &message);
        self.engine.handle_piggyback(now_ns, from, message)
    }

    fn handle_memory(
        &mut self,
        now_ns: u64,
        from: MemberId,
        id: memory::RequestId,
        answer: memory::Answer,
    ) -> Result<(), Refused> {
        self.engine.handle_memory(now_ns, from, id, answer)
    }

    /// One that is refused, because it is known or of no member any more, is no event.
    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.engine.handle_crash(now_ns, member)?;
        self.line(format_args!("report {member}"));
        Ok(())
    }

    fn handle_alive(&mut self, now_ns: u64, member: MemberId) {
        self.engine.handle_alive(now_ns, member);
    }

    fn handle_network_fault(&mut self, now_ns: u64) {
        self.engine.handle_network_fault(now_ns);
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.engine.poll_timeout()
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.engine.handle_timeout(now_ns);
    }

    fn set_members(&mut self, now_ns: u64, from: Instance, members: MemberSet) -> Result<(), Refused> {
        self.engine.set_members(now_ns, from, members)
    }

    fn handle_state(
        &mut self,
        now_ns: u64,
        from: MemberId,
        through: Instance,
        members: &MemberSet,
        start: Option<&[u8]>,
    ) -> Result<(), Refused> {
        self.engine.handle_state(now_ns, from, through, members, start)
    }

    fn set_leaving(&mut self, now_ns: u64, from: Instance, members: MemberSet) {
        self.engine.set_leaving(now_ns, from, members);
    }

    fn may_leave(&self) -> bool {
        self.engine.may_leave()
    }

    fn quorums(&self) -> Vec<MemberSet> {
        self.engine.quorums()
    }

    fn start_point(&self) -> Option<Value> {
        self.engine.start_point()
    }

    fn poll_action(&mut self) -> Option<Action<EngineMessage>> {
        let action = self.engine.poll_action()?;
        match &action {
            Action::Send { to, message } => self.sends(to, message),
            Action::Decide { instance, batch } => {
                let value = entries(batch.iter());
                self.line(format_args!("decide {instance} {value}"));
            }
            // The specifications have no such line: a trace must end before it.
            Action::Halt(why) => self.line(format_args!("halt {why:?}")),
            Action::Copies { .. } | Action::Memory { .. } | Action::State { .. } => {}
        }
        Some(action)
    }

    fn decided_through(&self) -> Instance {
        self.engine.decided_through()
    }

    fn stable_through(&self) -> Instance {
        self.engine.stable_through()
    }

    fn leader(&self) -> Option<MemberId> {
        self.engine.leader()
    }

    fn halted(&self) -> Option<Halted> {
        self.engine.halted()
    }

    fn refusals(&self) -> &Refusals {
        self.engine.refusals()
    }

    fn refuse(&mut self, why: Refused) -> Refused {
        self.engine.refuse(why)
    }

    fn invariants(&self) {
        self.engine.invariants();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::hsuc::Hsuc;
    use crate::consensus::huc::Huc;
    use crate::consensus::log::Carried;
    use crate::group::Body;
    use std::sync::mpsc::{Receiver, channel};

    const ONE: MemberId = MemberId(1);
    const TWO: MemberId = MemberId(2);

    fn traced(me: MemberId, engine: Box<dyn Engine<EngineMessage> + Send>) -> (Traced, Receiver<String>) {
        let (tell, lines) = channel();
        (Traced::new(me, engine, Box::new(move |line| tell.send(line.into()).unwrap())), lines)
    }

    fn propose(engine: &mut Traced, proposer: MemberId) {
        let id = EntryId { proposer, number: 1 };
        engine.propose(0, Entry { id, body: Body::Value(vec![0].into()) }).unwrap();
    }

    /// What it wants to send, taken out of it.
    fn sent(engine: &mut Traced) -> Vec<EngineMessage> {
        let message = |action| if let Action::Send { message, .. } = action { Some(message) } else { None };
        std::iter::from_fn(|| engine.poll_action()).filter_map(message).collect()
    }

    #[test]
    fn an_instance_of_hsuc_is_written_as_the_paper_has_it() {
        let engine = |me| Box::new(Carried::new(Hsuc::new(me, MemberSet::first(2), 1)));
        let (mut one, of_one) = traced(ONE, engine(ONE));
        let (mut two, of_two) = traced(TWO, engine(TWO));
        // An entry that goes to the leader is no message of the paper.
        propose(&mut two, TWO);
        for message in sent(&mut two) {
            one.handle_message(0, TWO, message).unwrap();
        }
        for _ in 0..2 {
            sent(&mut one).into_iter().for_each(|message| two.handle_message(0, ONE, message).unwrap());
            sent(&mut two).into_iter().for_each(|message| one.handle_message(0, TWO, message).unwrap());
        }
        two.handle_crash(0, ONE).unwrap();
        assert_eq!(two.handle_crash(0, ONE), Err(Refused::Duplicate), "which is no event");
        assert_eq!(
            of_one.try_iter().collect::<Vec<_>>(),
            ["p1 send propose 1 p1 p2 p2.1", "p1 recv ack 1 p2 p1 -", "p1 send decide 1 p1 p2 p2.1", "p1 decide 1 p2.1"]
        );
        assert_eq!(
            of_two.try_iter().collect::<Vec<_>>(),
            [
                "p2 propose p2.1",
                "p2 recv propose 1 p1 p2 p2.1",
                "p2 send ack 1 p2 p1 -",
                "p2 recv decide 1 p1 p2 p2.1",
                "p2 decide 1 p2.1",
                "p2 report p1"
            ]
        );
    }

    #[test]
    fn a_decision_of_huc_is_written_before_its_heartbeat_leaves_and_once_it_has_left() {
        let engine = |me| Box::new(Carried::new(Huc::new(me, MemberSet::first(2), 1)));
        let (mut one, of_one) = traced(ONE, engine(ONE));
        let (mut two, of_two) = traced(TWO, engine(TWO));
        propose(&mut one, ONE);
        assert_eq!(one.poll_piggyback(0), None, "the other one has proposed nothing yet");
        sent(&mut two).into_iter().for_each(|message| one.handle_message(0, TWO, message).unwrap());
        let ride = one.poll_piggyback(0).unwrap();
        let lines = ["p1 propose p1.1", "p1 recv propose 1 p2 p1 -", "p1 send decide 1 p1 * p1.1"];
        assert_eq!(of_one.try_iter().collect::<Vec<_>>(), lines);
        one.handle_piggyback_sent(0);
        sent(&mut one);
        assert_eq!(of_one.try_iter().collect::<Vec<_>>(), ["p1 left", "p1 decide 1 p1.1"]);
        two.handle_piggyback(0, ONE, ride).unwrap();
        sent(&mut two);
        let lines = ["p2 send propose 1 p2 p1 -", "p2 recv decide 1 p1 p2 p1.1", "p2 decide 1 p1.1", "p2 send propose 2 p2 p1 -"];
        assert_eq!(of_two.try_iter().collect::<Vec<_>>(), lines);
    }
}
