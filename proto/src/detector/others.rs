//! What other observers hear of a host that is silent here (SWIM's indirect probe).
//!
//! # In one head
//! A watchman who hears a bell no more asks the other watchmen for the number of the last stroke that they have counted. Whoever has
//! counted a later one than he has shows that the bell still rings: then his own ears, or the wind between him and the bell, are at
//! fault, and nobody died. Whoever passes on what a third one counted is believed as well. Who is himself not heard is not waited for.
//!
//! # The rule
//! A host is *heard by others* when somebody is known to have received a heartbeat of it with a higher number than any received here,
//! in this silence, or has its kernel's answer (then its agent may be gone, and its processes are not). A number that is known cannot become smaller, and heartbeats are numbered by their sender: so whatever way a
//! statement takes, over however many observers, it is as good as a direct one. A host that has ended sends no later number, so its
//! number stops growing, and it is *not heard* once nobody has named a higher one for a while ([`Others::quiet_ns`]).
//!
//! While all who state hear the same hosts as this one, nobody else can know better. Where one of them hears others, the network has
//! failed in part, and somebody whom we do not hear may hear the silent host: what it hears comes over others, each of which has to ask
//! first, or to wait for a report. So much longer their word is waited for ([`Around::spread_ns`]).
//!
//! A host that is heard here and has stated nothing since the next heartbeat was due is waited for: over two questions, each as long as
//! an answer may take. One that does not hear *us* cannot be asked, but reports every second what it hears, and is waited for so long.
//! One that is late itself may stand still for a moment, and know better when it goes on: if it was the last to name a later heartbeat, it is
//! waited for as long as a stuck agent is given.

use super::config::Config;
use super::peer::Peer;
use super::state::State;

/// A heartbeat: incarnation and number. A later incarnation is a later sign of life.
pub(super) type Beat = (u32, u64);

/// So many questions a host may leave unanswered before it is not waited for any more.
const QUESTIONS: u32 = 2;
/// What a host states is good for so many questions.
const GOOD_FOR: u64 = 3;
/// So many hosts may pass it on, one behind the other. Each asks, or waits for a report, which comes once in the time that a stuck agent may be
/// silent for.
const RELAYS: u64 = 3;

/// What others have stated of one host in one silence.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    /// The latest heartbeat that anybody is known to have received, if it is one that was not received here.
    best: Option<Beat>,
    /// When a later one was named last, or an answer, by whom, and how it was known; 0: never.
    grew_ns: u64,
    grew_by: u32,
    grew_how: Option<How>,
    /// When that was the first time; 0: never.
    grew_first_ns: u64,
    /// When each of them made its last statement, and whom it heard then.
    stated: Vec<(u32, u64, u16)>,
    /// When they were asked first since the latest growth, and how often since; 0: not yet.
    asked_ns: u64,
    asked: u32,
    /// Who was heard when they were asked last: whoever is heard since has not been asked.
    asked_company: u16,
    /// When they are to be asked next.
    next_ns: u64,
    /// That it is heard by others was told; and they have not said since that it is not.
    was_told: bool,
    pub is_told: bool,
}

/// How an observer knows of what it states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It has received it.
    Heard,
    /// It has received it, and the host's kernel answers it now.
    Answered,
    /// Others have stated it.
    Relayed,
}

/// Whom else this observer hears, and what it does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    /// Whom this host hears, and itself.
    pub company: u16,
    /// The longest of all timeouts: by then everybody doubts a host that is silent for all.
    pub slowest_ns: u64,
}

impl Around {
    /// How long what a host that is not heard here hears may take to get here, passed on by some.
    fn spread_ns(self, between_ns: u64, config: &Config) -> u64 {
        let asking_ns = self.slowest_ns.saturating_add(between_ns.saturating_mul(2 * RELAYS));
        asking_ns.saturating_add(config.agent_timeout_ns.saturating_mul(RELAYS))
    }
}

/// Another host whose word counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observer {
    pub node: u32,
    /// It says that it hears this host.
    pub hears_us: bool,
    /// It is late itself, and not given up.
    pub is_late: bool,
}

/// What others say of a silence, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Somebody hears it.
    Heard,
    /// Somebody who is heard has not said anything yet.
    Awaited,
    /// Nobody hears it.
    NotHeard,
}

impl Others {
    /// An observer states the latest heartbeat that it knows of. `own`: the latest received here.
    pub fn stated(&mut self, (by, company): (u32, u16), beat: Beat, how: How, own: Beat, now_ns: u64) {
        if how != How::Relayed {
            self.stated.retain(|(node, ..)| *node != by);
            self.stated.push((by, now_ns, company));
        }
        let is_later = beat > self.best.unwrap_or(own).max(own);
        if is_later {
            self.best = Some(beat);
        }
        if is_later || how == How::Answered {
            (self.grew_ns, self.grew_by, self.grew_how) = (now_ns, by, Some(how));
            self.grew_first_ns = if self.grew_first_ns == 0 { now_ns } else { self.grew_first_ns };
            (self.asked_ns, self.asked, self.next_ns) = (0, 0, 0);
        }
    }

    /// The latest heartbeat that is known of by others.
    pub const fn best(&self) -> Option<Beat> {
        self.best
    }

    /// Whether this observer was the last to name a later heartbeat.
    pub const fn was_named_by(&self, node: u32) -> bool {
        self.grew_ns != 0 && self.grew_by == node
    }

    /// Who showed last that it lives.
    pub fn heard_by(&self) -> Option<u32> {
        (self.grew_ns != 0).then_some(self.grew_by)
    }

    /// Whether it is to be told that they hear it: once, when later heartbeats are named for longer than the last ones of a host that has
    /// ended take to be known.
    pub fn tell(&mut self, timeout_ns: u64, config: &Config) -> bool {
        let last_ones_ns = match self.grew_how {
            Some(How::Relayed) => config.agent_timeout_ns,
            // Who is asked so seldom has answered before it ended.
            Some(How::Answered) => config.agent_lost_probe_ns.saturating_add(timeout_ns).saturating_mul(2),
            _ => timeout_ns.saturating_mul(2),
        };
        let heard = self.grew_ns.saturating_sub(self.grew_first_ns) > last_ones_ns;
        self.is_told |= heard;
        heard && !std::mem::replace(&mut self.was_told, heard)
    }

    /// They hear it no more, and it is asked anew before it is judged. Whether they did.
    pub fn is_over(&mut self) -> bool {
        self.grew_first_ns = 0;
        std::mem::take(&mut self.is_told)
    }

    /// Until when a later heartbeat that was named shows that the host lives: an observer that heard it itself would have heard the next
    /// one within a timeout, and one that passes it on hears of the next one by asking, now and then.
    fn quiet_ns(&self, peer: &Peer, config: &Config) -> u64 {
        let patience_ns = match self.grew_how {
            Some(How::Relayed) => config.agent_timeout_ns.saturating_mul(RELAYS),
            _ => peer.timeout_ns(),
        };
        if self.grew_ns == 0 { 0 } else { self.grew_ns.saturating_add(patience_ns) }
    }

    /// When they are to be asked next. `None`: that leads to nothing now.
    pub fn ask_at_ns(&self, peer: &Peer, config: &Config, now_ns: u64) -> Option<u64> {
        if !matches!(peer.state, State::Late | State::AgentLost) {
            return None;
        }
        let between_ns = between_ns(peer, config);
        let soon_ns = now_ns.saturating_add(between_ns.saturating_mul(GOOD_FOR - 1));
        let is_near = if answers(peer) {
            let since_ns = peer.silent_since_ns().max(peer.probing.answering_since_ns);
            peer.state == State::Late && soon_ns >= since_ns.saturating_add(config.agent_timeout_ns)
        } else {
            peer.probing.unanswered > 0 && peer.fence_until_ns().is_none_or(|until| soon_ns >= until)
        };
        if !is_near {
            return None;
        }
        // Of a host that others hear it is asked now and then whether they still do.
        let seldom_ns = if self.is_told { config.agent_timeout_ns / 4 } else { 0 };
        let quiet_ns = self.quiet_ns(peer, config).max(self.grew_ns.saturating_add(seldom_ns));
        Some(self.next_ns.max(quiet_ns))
    }

    /// They are asked now, and again so much later.
    pub fn asked(&mut self, company: u16, between_ns: u64, now_ns: u64) {
        if std::mem::replace(&mut self.asked_company, company) != company {
            self.asked = 0;
        }
        if self.asked == 0 {
            self.asked_ns = now_ns;
        }
        self.asked = self.asked.saturating_add(1);
        self.next_ns = now_ns.saturating_add(between_ns);
    }

    /// What the observers in `heard` say, each with whether it hears us.
    pub fn word(&self, peer: &Peer, config: &Config, around: Around, heard: impl Iterator<Item = Observer>, now_ns: u64) -> Word {
        let quiet_ns = self.quiet_ns(peer, config);
        if now_ns <= quiet_ns {
            return Word::Heard;
        }
        let between_ns = between_ns(peer, config);
        // What was named last is the latest word of somebody who hears it, until it is known to be otherwise.
        let not_yet = if self.is_told { Word::Heard } else { Word::Awaited };
        let mut hear_the_same = true;
        for Observer { node, hears_us, is_late } in heard {
            let (patience_ns, good_for_ns) = if hears_us {
                (between_ns.saturating_mul(QUESTIONS.into()), between_ns.saturating_mul(GOOD_FOR))
            } else {
                let report_ns = config.agent_timeout_ns.saturating_add(config.agent_timeout_ns / 2);
                (report_ns, report_ns)
            };
            let from_ns = peer.due_at_ns().max(quiet_ns).max(now_ns.saturating_sub(good_for_ns));
            let stated = self.stated.iter().find(|(by, at_ns, _)| *by == node && *at_ns >= from_ns);
            hear_the_same &= stated.is_none_or(|(_, _, company)| *company == around.company);
            let is_asked = self.asked >= QUESTIONS && self.asked_company == around.company;
            let is_left_out = is_asked && now_ns.saturating_sub(self.asked_ns) > patience_ns;
            if stated.is_none() && (is_late || !is_left_out) {
                return not_yet;
            }
        }
        let spread_ns = around.spread_ns(between_ns, config);
        if !hear_the_same && (self.asked == 0 || now_ns.saturating_sub(self.asked_ns) < spread_ns) {
            return not_yet;
        }
        Word::NotHeard
    }
}

/// Whether its kernel answers, so that its agent alone may be gone.
pub(super) fn answers(peer: &Peer) -> bool {
    peer.probing.answered_ns > 0 && peer.probing.unanswered == 0
}

/// Time between two questions to the others: as long as an answer may take, and not more often than it is asked itself.
pub(super) fn between_ns(peer: &Peer, config: &Config) -> u64 {
    let least_ns = if answers(peer) { config.late_probe_ns } else { peer.probe_interval_ns(config) };
    peer.probe_wait_ns(config).max(least_ns)
}

/// Whether this host is heard now, so that its word on others is asked for.
pub(super) fn is_heard(peer: &Peer) -> bool {
    peer.state == State::Alive && peer.draining_since_ns.is_none()
}
