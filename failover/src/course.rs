//! What entries of the group mean: who leads, in which term. Pure, and the same on every host, because all read the same entries in the same order.
//!
//! A *term* is one host's time at the top. It ends by the entry that begins the next one, so that no two hosts lead in the same term, whatever each of them
//! believes about the other: of several [`Entry::Take`] for one term the first counts.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Decisions that are remembered.
pub const HISTORY_MAX: usize = 200;

/// What a host's server could offer to whom chooses the next leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Why it cannot lead; empty: it can.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unable: String,
    /// It followed this term's leader, and its link was up until a moment ago.
    #[serde(default)]
    pub fresh: bool,
    /// How much of the stream of writes it has, in the server's own unit.
    #[serde(default)]
    pub position: u64,
    /// The last term of which this host knows, also of a group that has ended since.
    #[serde(default)]
    pub known_term: u64,
    /// It led in that term.
    #[serde(default)]
    pub led: bool,
    /// It takes writes now.
    #[serde(default)]
    pub primary: bool,
    /// It has any data.
    #[serde(default)]
    pub has_data: bool,
    /// Its process, as agents number it; 0: not known.
    #[serde(default)]
    pub process: u32,
}

/// One entry of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub enum Entry {
    /// A host takes part. It has seen every entry before its own.
    Here {
        /// Which.
        host: String,
        /// Where other servers reach its server.
        address: String,
        /// Which of its connections to the group.
        session: u64,
    },
    /// A host's part in the choice of the next leader.
    Bid {
        /// The term that is over.
        term: u64,
        /// Which host.
        host: String,
        /// Why that term is over, as far as this host knows; empty: it answers another one.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        why: String,
        /// Its offer.
        #[serde(flatten)]
        offer: Offer,
    },
    /// The next leader.
    Take {
        /// The term that is over.
        term: u64,
        /// Who leads from here on.
        host: String,
        /// Its server's process, as in [`Offer`].
        #[serde(default)]
        process: u32,
        /// An operator's word, which a pause does not hold up.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
        /// Why.
        why: String,
        /// When, by the proposer's clock, milliseconds since 1970.
        at_ms: u64,
    },
    /// The leader's server runs: the end of that process ends the term.
    Started {
        /// In which term.
        term: u64,
        /// The leader.
        host: String,
        /// As in [`Offer`].
        process: u32,
    },
    /// The leader's server cannot lead.
    Cannot {
        /// In which term.
        term: u64,
        /// The leader.
        host: String,
        /// Why.
        why: String,
        /// When, as in [`Entry::Take`].
        at_ms: u64,
    },
    /// An operator wants another leader while all is well.
    Switch {
        /// The term that is to end.
        term: u64,
        /// Who is to lead.
        to: String,
        /// When, as in [`Entry::Take`].
        at_ms: u64,
    },
    /// The leader takes no writes any more, and the next one has all of them.
    Handed {
        /// The term that is over.
        term: u64,
        /// The leader until here.
        host: String,
        /// The leader from here on.
        to: String,
        /// Its server's process, as in [`Offer`].
        #[serde(default)]
        process: u32,
        /// When, as in [`Entry::Take`].
        at_ms: u64,
    },
    /// The leader goes on.
    NotHanded {
        /// The term that goes on.
        term: u64,
        /// The leader.
        host: String,
        /// Why.
        why: String,
        /// When, as in [`Entry::Take`].
        at_ms: u64,
    },
    /// Nobody takes over until further notice.
    Pause {
        /// When it ends by itself, milliseconds since 1970; absent: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
        /// An operator's words.
        #[serde(default)]
        why: String,
        /// When, as in [`Entry::Take`].
        at_ms: u64,
    },
    /// The pause is over.
    Resume {
        /// It ended by itself: the pause that was to end then. Another one is not meant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
        /// When, as in [`Entry::Take`].
        at_ms: u64,
    },
}

impl Entry {
    /// As it is proposed.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// An entry; nothing for what a later version says.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it ends by itself, milliseconds since 1970.
    pub until_ms: Option<u64>,
    /// An operator's words.
    pub why: String,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// In which term.
    pub term: u64,
    /// What and why, for people.
    pub text: String,
}

/// Who leads, and what is under way. What is kept as the group's snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// The term; 0 before the first.
    pub term: u64,
    /// When it began, milliseconds since 1970, by the clock of who proposed that.
    #[serde(default)]
    pub began_ms: u64,
    /// Who leads in it.
    pub leader: Option<String>,
    /// The leader's server's process, as in [`Offer`]: the end of another one means nothing for this term.
    pub process: u32,
    /// It leads by now, and has the address if there is one.
    #[serde(default)]
    pub started: bool,
    /// Hosts that took part, and where their servers are reached.
    pub hosts: BTreeMap<String, String>,
    /// What was offered for the next term.
    pub bids: BTreeMap<String, Offer>,
    /// Why this term is over, by the first who said so.
    pub over: String,
    /// Nobody takes over.
    pub paused: Option<Pause>,
    /// To whom the leader is to hand over.
    pub switching: Option<String>,
    /// What was decided.
    pub history: VecDeque<Decision>,
}

impl Course {
    /// The next entry. Whether anything changed.
    pub fn apply(&mut self, entry: &Entry) -> bool {
        let leads = |this: &Self, host: &str| this.leader.as_deref() == Some(host);
        match entry {
            Entry::Here { host, address, .. } => self.hosts.insert(host.clone(), address.clone()).as_ref() != Some(address),
            Entry::Bid { term, host, why, offer } if *term == self.term && self.paused.is_none() => {
                if self.over.is_empty() {
                    self.over.clone_from(why);
                }
                self.bids.insert(host.clone(), offer.clone());
                true
            }
            Entry::Take { term, host, process, force, why, at_ms }
                if *term == self.term
                    && self.hosts.contains_key(host)
                    && (self.paused.is_none() || *force || leads(self, host)) =>
            {
                self.begin(host, *process, *at_ms, format!("{host} leads: {why}"));
                true
            }
            Entry::Started { term, host, process } if *term == self.term && leads(self, host) && !self.started => {
                self.started = true;
                if self.process == 0 {
                    self.process = *process;
                }
                true
            }
            Entry::Cannot { term, host, why, at_ms } if *term == self.term && leads(self, host) => {
                (self.leader, self.switching) = (None, None);
                self.over = format!("{host} cannot lead: {why}");
                self.note(*at_ms, self.over.clone());
                true
            }
            Entry::Switch { term, to, at_ms }
                if *term == self.term && self.leader.is_some() && !leads(self, to) && self.hosts.contains_key(to) =>
            {
                self.switching = Some(to.clone());
                self.note(*at_ms, format!("{to} is to lead, by an operator's word"));
                true
            }
            Entry::Handed { term, host, to, process, at_ms }
                if *term == self.term && leads(self, host) && self.switching.as_ref() == Some(to) =>
            {
                self.begin(to, *process, *at_ms, format!("{to} leads: {host} has handed over, and nothing is lost"));
                true
            }
            Entry::NotHanded { term, host, why, at_ms }
                if *term == self.term && leads(self, host) && self.switching.is_some() =>
            {
                self.switching = None;
                self.note(*at_ms, format!("{host} goes on: {why}"));
                true
            }
            Entry::Pause { until_ms, why, at_ms } => {
                self.bids.clear();
                self.over.clear();
                self.paused = Some(Pause { until_ms: *until_ms, why: why.clone() });
                let reason = if why.is_empty() { String::new() } else { format!(": {why}") };
                self.note(*at_ms, format!("paused{reason}"));
                true
            }
            Entry::Resume { until_ms, at_ms }
                if self.paused.as_ref().is_some_and(|pause| until_ms.is_none() || pause.until_ms == *until_ms) =>
            {
                self.paused = None;
                self.note(*at_ms, "resumed".into());
                true
            }
            _ => false,
        }
    }

    fn begin(&mut self, host: &str, process: u32, at_ms: u64, text: String) {
        // Terms of a group that has ended count, too.
        let known = self.bids.values().map(|offer| offer.known_term).max().unwrap_or(0);
        self.term = self.term.max(known).saturating_add(1);
        self.leader = Some(host.into());
        self.began_ms = at_ms;
        (self.process, self.started) = (process, false);
        self.bids.clear();
        self.over.clear();
        self.switching = None;
        self.note(at_ms, text);
    }

    fn note(&mut self, at_ms: u64, text: String) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(Decision { at_ms, term: self.term, text });
    }

    /// The host that should lead next, of those that bid. `hosts`: all, the preferred ones first. `Err`: nobody may, and why.
    ///
    /// A server that followed the leader to the end goes before all others, whatever those once had. If there is none, only the last leader's own server is
    /// known to hold what was acknowledged; and to know who led last takes every host's word.
    ///
    /// # Errors
    /// What is missing, for people.
    pub fn choose(&self, hosts: &[String]) -> Result<String, String> {
        let able: Vec<(usize, &String, &Offer)> = hosts
            .iter()
            .enumerate()
            .filter_map(|(rank, host)| self.bids.get(host).map(|offer| (rank, host, offer)))
            .filter(|(_, _, offer)| offer.unable.is_empty())
            .collect();
        let rank = |rank: &usize| std::cmp::Reverse(*rank);
        let fresh = able.iter().filter(|(_, _, offer)| offer.fresh);
        if let Some((_, host, _)) = fresh.max_by_key(|(at, _, offer)| (offer.position, rank(at))) {
            return Ok((*host).clone());
        }
        let why = |host: &String| match self.bids.get(host) {
            Some(offer) if !offer.unable.is_empty() => format!("{host}: {}", offer.unable),
            Some(_) => format!("{host}: has not followed the last leader to the end"),
            None => format!("{host}: does not answer"),
        };
        let all = || hosts.iter().map(why).collect::<Vec<_>>().join("; ");
        let newest = self.term.max(self.bids.values().map(|offer| offer.known_term).max().unwrap_or(0));
        // The last leader itself, in the term that this log knows.
        let last = able.iter().find(|(_, _, offer)| offer.led && offer.known_term == newest && newest > 0);
        let everybody = hosts.iter().all(|host| self.bids.contains_key(host));
        if let Some((_, host, _)) = last
            && (everybody || newest == self.term)
        {
            return Ok((*host).clone());
        }
        if !everybody || newest > 0 {
            return Err(all());
        }
        // The first term of all: whoever takes writes already, or has data. Two of them are for people to choose from.
        let primaries: Vec<&String> =
            able.iter().filter(|(_, _, offer)| offer.primary && offer.has_data).map(|(_, host, _)| *host).collect();
        if let [one, two, ..] = primaries[..] {
            return Err(format!("{one} and {two} both take writes and have data"));
        }
        able.iter()
            .max_by_key(|(at, _, offer)| {
                (offer.primary && offer.has_data, offer.has_data, offer.primary, offer.position, rank(at))
            })
            .map(|(_, host, _)| (*host).clone())
            .ok_or_else(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<String> {
        ["a", "b", "c"].map(String::from).to_vec()
    }

    fn course(bids: &[(&str, Offer)]) -> Course {
        let mut course = Course { term: 3, leader: Some("a".into()), ..Course::default() };
        for (host, offer) in bids {
            course.hosts.insert((*host).into(), format!("{host}:1"));
            assert!(course.apply(&Entry::Bid { term: 3, host: (*host).into(), why: String::new(), offer: offer.clone() }));
        }
        course
    }

    fn fresh(position: u64) -> Offer {
        Offer { fresh: true, position, known_term: 3, ..Offer::default() }
    }

    #[test]
    fn of_two_takes_for_a_term_the_first_counts() {
        let mut course = course(&[("b", fresh(1)), ("c", fresh(1))]);
        let take =
            |host: &str| Entry::Take { term: 3, host: host.into(), process: 0, force: false, why: String::new(), at_ms: 1 };
        assert!(course.apply(&take("c")) && !course.apply(&take("b")));
        assert_eq!((course.term, course.leader.as_deref()), (4, Some("c")));
        assert!(
            !course.apply(&Entry::Bid { term: 3, host: "b".into(), why: "late".into(), offer: fresh(9) })
                && course.bids.is_empty()
        );
        assert!(!course.apply(&Entry::Cannot { term: 3, host: "a".into(), why: String::new(), at_ms: 1 }), "of a former term");
        assert!(!course.apply(&Entry::Take {
            term: 4,
            host: "nobody".into(),
            process: 0,
            force: true,
            why: String::new(),
            at_ms: 1
        }));
    }

    #[test]
    fn the_greatest_term_ends_no_manager() {
        let mut course = course(&[("b", Offer { known_term: u64::MAX, ..fresh(1) })]);
        let take = Entry::Take { term: 3, host: "b".into(), process: 0, force: false, why: String::new(), at_ms: u64::MAX };
        assert!(course.apply(&take));
        assert_eq!(course.term, u64::MAX);
        for bytes in [&b""[..], b"null", b"\0\0\0\0", b"{}"] {
            assert!(Entry::read(bytes).is_none() && serde_json::from_slice::<Course>(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn who_has_most_leads_and_of_equals_the_preferred_one() {
        assert_eq!(course(&[("b", fresh(5)), ("c", fresh(9))]).choose(&hosts()).unwrap(), "c");
        assert_eq!(course(&[("b", fresh(9)), ("c", fresh(9))]).choose(&hosts()).unwrap(), "b");
        let unable = Offer { unable: "loads its data".into(), ..fresh(10) };
        assert_eq!(course(&[("b", unable), ("c", fresh(9))]).choose(&hosts()).unwrap(), "c");
        // More bytes of a former course of writes are not more.
        let stale = Offer { fresh: false, position: 1000, ..fresh(0) };
        assert_eq!(course(&[("b", stale), ("c", fresh(9))]).choose(&hosts()).unwrap(), "c");
    }

    #[test]
    fn without_a_fresh_server_only_the_last_leader_leads() {
        let stale = Offer { fresh: false, ..fresh(1000) };
        let led = Offer { led: true, ..stale.clone() };
        assert!(course(&[("b", stale.clone())]).choose(&hosts()).unwrap_err().contains("a: does not answer"));
        assert!(course(&[("a", stale.clone()), ("b", stale.clone()), ("c", stale.clone())]).choose(&hosts()).is_err());
        assert_eq!(course(&[("a", led.clone()), ("b", stale.clone())]).choose(&hosts()).unwrap(), "a");
        // A new group, whose term is not the newest: everybody's word.
        let mut anew = Course::default();
        for (host, offer) in [("a", led), ("b", Offer { known_term: 2, led: true, ..stale.clone() })] {
            anew.apply(&Entry::Bid { term: 0, host: host.into(), why: String::new(), offer });
        }
        assert!(anew.choose(&hosts()).unwrap_err().contains("c: does not answer"));
        anew.apply(&Entry::Bid { term: 0, host: "c".into(), why: String::new(), offer: stale });
        assert_eq!(anew.choose(&hosts()).unwrap(), "a");
        anew.apply(&Entry::Here { host: "a".into(), address: "a:1".into(), session: 1 });
        anew.apply(&Entry::Take { term: 0, host: "a".into(), process: 0, force: false, why: String::new(), at_ms: 1 });
        assert_eq!(anew.term, 4, "terms of the group before are not used again");
    }

    #[test]
    fn at_first_the_primary_with_data_leads_and_two_of_them_are_not_chosen_from() {
        let bid = |host: &str, offer: Offer| Entry::Bid { term: 0, host: host.into(), why: String::new(), offer };
        let (primary, replica) =
            (Offer { primary: true, has_data: true, ..Offer::default() }, Offer { has_data: true, ..Offer::default() });
        let mut course = Course::default();
        course.apply(&bid("a", replica));
        course.apply(&bid("b", primary.clone()));
        assert!(course.choose(&hosts()).is_err(), "c may have data, too");
        course.apply(&bid("c", Offer { primary: true, ..Offer::default() }));
        assert_eq!(course.choose(&hosts()).unwrap(), "b");
        course.apply(&bid("c", primary));
        assert!(course.choose(&hosts()).unwrap_err().contains("both"));
        let mut empty = Course::default();
        hosts().iter().for_each(|host| _ = empty.apply(&bid(host, Offer { primary: true, ..Offer::default() })));
        assert_eq!(empty.choose(&hosts()).unwrap(), "a");
    }

    #[test]
    fn a_pause_ends_once_and_keeps_bids_away() {
        let mut course = course(&[("b", fresh(1))]);
        course.apply(&Entry::Pause { until_ms: Some(10), why: "kernel".into(), at_ms: 1 });
        assert!(course.bids.is_empty());
        assert!(!course.apply(&Entry::Bid { term: 3, host: "b".into(), why: "killed".into(), offer: fresh(1) }));
        course.apply(&Entry::Pause { until_ms: Some(20), why: String::new(), at_ms: 1 });
        assert!(!course.apply(&Entry::Resume { until_ms: Some(10), at_ms: 1 }), "another pause");
        let take =
            |host: &str, force| Entry::Take { term: 3, host: host.into(), process: 0, force, why: String::new(), at_ms: 1 };
        assert!(!course.apply(&take("b", false)), "proposed before the pause");
        assert!(course.apply(&Entry::Resume { until_ms: Some(20), at_ms: 1 }) && course.paused.is_none());
        course.apply(&Entry::Pause { until_ms: None, why: String::new(), at_ms: 1 });
        assert!(course.apply(&take("b", true)));
    }

    #[test]
    fn leadership_is_handed_only_by_the_leader_to_whom_was_said() {
        let mut course = course(&[("b", fresh(1)), ("c", fresh(1))]);
        let handed = |host: &str, to: &str| Entry::Handed { term: 3, host: host.into(), to: to.into(), process: 0, at_ms: 1 };
        assert!(!course.apply(&handed("a", "b")), "nobody wanted it");
        assert!(!course.apply(&Entry::Switch { term: 3, to: "nobody".into(), at_ms: 1 }));
        assert!(course.apply(&Entry::Switch { term: 3, to: "b".into(), at_ms: 1 }));
        assert!(!course.apply(&handed("a", "c")) && !course.apply(&handed("c", "b")));
        assert!(course.apply(&handed("a", "b")) && course.leader.as_deref() == Some("b"));
    }

    #[test]
    fn entries_are_read_as_they_were_written_and_others_are_passed_over() {
        let entry = Entry::Bid { term: 3, host: "a".into(), why: String::new(), offer: fresh(7) };
        assert_eq!(Entry::read(&entry.bytes()), Some(entry));
        assert_eq!(Entry::read(br#"{"entry":"of a later version"}"#), None);
        assert_eq!(Entry::read(b"\xff"), None);
    }
}
