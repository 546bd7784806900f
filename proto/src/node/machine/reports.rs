//! Path reports: what a node tells others of what arrives of them, and what it learns of itself from theirs.
//!
//! A report confirms heartbeats to hosts whose fences depend on that, says which silences others see too, lets its subject measure
//! round trips, and tells the owner of an incarnation that was given up that it must begin a new one.
//!
//! A host that is silent here is asked for by a report of it alone, which everybody answers with one of the same kind
//! ([`crate::detector`], *A host that others hear*).

use super::copies::BY_UNICAST;
use super::{Event, Known, Node};
use crate::detector::How;
use crate::node::directory::Ignored;
use crate::node::fence::{Accusation, Judgement, Step};
use crate::node::tables::ROOM;
use fide_wire::PATHS;
use fide_wire::frame::Header;
use fide_wire::packet::ReportEntry;
use fide_wire::verdict::{FenceMode, FencePromise, FencedWhy};
use std::collections::BTreeMap;

/// A host whose fence depends on confirmations gets them so many times in its timeout.
const CONFIRMATIONS_PER_FENCE: u64 = 5;
/// Incarnations that are announced although they are over are reported for so long after they were heard last.
const OUTDATED_NS: u64 = 3_000_000_000;
/// So many of them at most.
const OUTDATED_MAX: usize = 256;
/// Of so many hosts it is remembered that a host does not hear them.
const UNHEARD_MAX: usize = 512;
/// Bytes of a report of one host, at most.
const PROMPT_LEN: usize = (PATHS + 1) * ReportEntry::LEN;
/// What was stated of a host is not stated again for so long, whoever asks: all hear it.
const STATED_NS: u64 = 250_000;

/// What the receive table has of a host on one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The last number received.
    pub number: u64,
    /// When that came; 0: nothing has.
    pub arrived_ns: u64,
    /// Its stamp, by the sender's clock.
    pub sent_ns: u64,
    /// The largest jitter of this second.
    pub jitter_max_ns: u64,
    /// How many numbers ago one came by multicast last.
    pub since_group: u32,
}

/// What a report says of one host.
struct Statement {
    /// The incarnation and number of the latest heartbeat, of all paths.
    beat: (u32, u64),
    how: How,
    company: u16,
}

/// A host that announces an incarnation that is over.
#[derive(Clone, Copy, Debug)]
struct Outdated {
    /// The newest one that is over.
    incarnation: u32,
    heard_ns: u64,
    former: bool,
}

/// A report that is being written: over several frames, if one has no room for all.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Of every host, or of those alone whose fences depend on it.
    of_all: bool,
    /// What comes next.
    next: (u32, usize),
}

/// What a node keeps for reports.
#[derive(Clone, Debug)]
pub(super) struct Reports {
    /// A report of everything is due.
    is_due: bool,
    /// When confirmations are due; never: `u64::MAX`.
    confirm_ns: u64,
    round: Option<Round>,
    outdated: BTreeMap<u32, Outdated>,
    /// Hosts that are reported on at once, and whether the others are asked for the same.
    prompt: BTreeMap<u32, bool>,
    period_ns: u64,
}

impl Reports {
    pub(super) const fn new(period_ns: u64) -> Self {
        Self { is_due: false, confirm_ns: u64::MAX, round: None, outdated: BTreeMap::new(), prompt: BTreeMap::new(), period_ns }
    }

    /// A host is reported on with the next frame. `asks`: everybody else is to do the same.
    pub(super) fn prompt(&mut self, node: u32, asks: bool) {
        *self.prompt.entry(node).or_default() |= asks;
    }

    /// Nothing is reported of a host any more, unless it is heard again.
    pub(super) fn forget(&mut self, node: u32) {
        self.outdated.remove(&node);
        self.prompt.remove(&node);
    }

    /// Whether what was said of a host rests on nothing that goes on: see [`ReportEntry::FORMER`].
    pub(super) fn is_former(&self, node: u32) -> bool {
        self.outdated.get(&node).is_some_and(|outdated| outdated.former)
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        if self.is_due || self.round.is_some() || !self.prompt.is_empty() {
            Some(0)
        } else {
            Some(self.confirm_ns).filter(|at| *at != u64::MAX)
        }
    }

    /// A host promised a fence that depends on confirmations, or begins to arm one, perhaps.
    pub(super) fn promised(&mut self, now_ns: u64) {
        self.confirm_ns = self.confirm_ns.min(now_ns);
    }
}

impl Node {
    // ---- others' reports ------------------------------------------------------------------------------------

    /// A path report.
    ///
    /// # Errors
    /// Of a host or an incarnation that is not known. One that was given up is heard: it may have given this one up as well.
    pub fn handle_report(&mut self, header: &Header, body: &[u8], now_ns: u64) -> Result<(), Ignored> {
        let reporter = self.hosts.get(&header.sender).filter(|known| known.incarnation == header.incarnation);
        let is_over = reporter.ok_or(Ignored::Unconfirmed)?.condemned;
        if !is_over {
            self.also_silent(header.sender, body, now_ns);
            self.stated(header.sender, body, now_ns);
        }
        self.hears_whom(header.sender, body, now_ns);
        self.shows_what_it_knows(header.sender, body);
        if is_over {
            self.take_back_unsaid(header.sender, header.incarnation, now_ns);
        }
        let own = self.detector.config().self_incarnation;
        let is_ours =
            |entry: &ReportEntry| entry.node == self.directory.owner().origin() && entry.flags & ReportEntry::RELAYED == 0;
        let entries = || ReportEntry::read_all(body).filter(is_ours);
        // A later incarnation of this host's name that nobody hears any more: another agent had it, or this host before it lost its memory.
        let is_unheard = entries().all(|entry| entry.flags & ReportEntry::SILENT != 0);
        let ours: Vec<ReportEntry> = entries().collect();
        for entry in ours {
            if let Some(known) = self.hosts.get_mut(&header.sender).filter(|_| entry.incarnation == own) {
                known.counts_us = true;
            }
            if entry.flags & ReportEntry::REFUTED != 0 {
                self.was_mistaken(header.sender, &entry, own, now_ns);
            }
            let is_given_up = entry.flags & ReportEntry::CONDEMNED != 0 || (entry.incarnation > own && is_unheard);
            if is_given_up && self.given_up((header.sender, header.incarnation), &entry, own, now_ns) {
                return Ok(());
            }
            // Of a host that was given up here nothing else is believed: two that were cut off from each other both begin anew.
            if entry.incarnation == own && !is_over {
                self.is_lacking(header.sender, &entry, now_ns);
                let hears = entry.flags & ReportEntry::SILENT == 0;
                self.detector.hears_us(header.sender, entry.path.into(), hears);
                self.confirmed(header.sender, &entry, now_ns);
            }
        }
        Ok(())
    }

    /// Whom another host hears, by path.
    fn hears_whom(&mut self, reporter: u32, body: &[u8], now_ns: u64) {
        let Some(known) = self.hosts.get_mut(&reporter) else { return };
        known.reported_ns = now_ns;
        for entry in ReportEntry::read_all(body).filter(|entry| entry.flags & ReportEntry::RELAYED == 0) {
            let bit = 1u8.checked_shl(entry.path.into()).unwrap_or(0);
            let is_unheard = entry.flags & (ReportEntry::SILENT | ReportEntry::CONDEMNED) != 0;
            let bits = known.unheard.get(&entry.node).copied().unwrap_or(0) & !bit | if is_unheard { bit } else { 0 };
            if bits == 0 {
                known.unheard.remove(&entry.node);
            } else if known.unheard.len() < UNHEARD_MAX || known.unheard.contains_key(&entry.node) {
                known.unheard.insert(entry.node, bits);
            }
        }
    }

    /// Whom a host does not hear, a bit for each path, and when it last reported that. `None`: it has not.
    #[must_use]
    pub fn unheard_by(&self, reporter: u32) -> Option<(impl Iterator<Item = (u32, u8)> + '_, u64)> {
        let known = self.hosts.get(&reporter).filter(|known| known.reported_ns != 0)?;
        Some((known.unheard.iter().map(|(node, bits)| (*node, *bits)), known.reported_ns))
    }

    /// Silences that another observer sees as well.
    fn also_silent(&mut self, reporter: u32, body: &[u8], now_ns: u64) {
        let me = self.directory.owner().origin();
        let is_other = |entry: &ReportEntry| entry.node != me && entry.flags & ReportEntry::SILENT != 0;
        let mut silent = ReportEntry::read_all(body).filter(is_other).peekable();
        if silent.peek().is_none() {
            return;
        }
        let Some(name) = self.detector.peer(reporter).map(|peer| peer.name.to_owned()) else { return };
        silent.for_each(|entry| self.detector.also_reported(entry.node, &name, now_ns));
    }

    /// What another observer hears of others, and what it asks for.
    fn stated(&mut self, reporter: u32, body: &[u8], now_ns: u64) {
        let me = self.directory.owner().origin();
        let mut latest: BTreeMap<(u32, bool), Statement> = BTreeMap::new();
        for entry in ReportEntry::read_all(body).filter(|entry| entry.node != me && entry.node != reporter) {
            let how = match entry.flags {
                flags if flags & ReportEntry::RELAYED != 0 => How::Relayed,
                flags if flags & ReportEntry::ANSWERS != 0 => How::Answered,
                _ => How::Heard,
            };
            let statement = Statement { beat: (0, 0), how, company: entry.company };
            let statement = latest.entry((entry.node, how == How::Relayed)).or_insert(statement);
            statement.beat = (entry.incarnation, entry.last_number).max(statement.beat);
            let is_given_up = entry.flags & (ReportEntry::CONDEMNED | ReportEntry::FORMER) == ReportEntry::CONDEMNED;
            if is_given_up {
                self.given_up_by(reporter, &entry, now_ns);
            }
            if entry.flags & ReportEntry::ASKS != 0 {
                self.asked_of(entry.node, now_ns);
            }
        }
        for ((node, _), Statement { beat, how, company }) in latest {
            self.detector.stated((reporter, company), node, beat, how, now_ns);
        }
        self.weigh_held(now_ns);
    }

    /// Somebody asks what is known of a host here.
    fn asked_of(&mut self, node: u32, now_ns: u64) {
        // That it was never heard here is an answer, too.
        let stated_ns = self.hosts.get(&node).map_or(0, |known| known.stated_ns);
        if now_ns.saturating_sub(stated_ns) >= STATED_NS {
            self.reports.prompt(node, false);
        }
    }

    /// Another host, in this incarnation, has given one of this host up. Whether that ends what its report is good for.
    fn given_up(&mut self, (by, by_incarnation): (u32, u32), entry: &ReportEntry, own: u32, now_ns: u64) -> bool {
        let (incarnation, former) = (entry.incarnation, entry.flags & ReportEntry::FORMER != 0);
        let accusation = Accusation { by, incarnation, former, is_fenced: entry.flags & ReportEntry::FENCED != 0 };
        if incarnation == own && self.fence.as_ref().is_some_and(|fence| fence.promise().is_some()) {
            // A word of a former incarnation of the reporter may be counted as one of the last before this.
            self.bar(by, by_incarnation.saturating_sub(former.into()), own);
        }
        let judgement = match &mut self.fence {
            Some(fence) => fence.weigh(&accusation, own, now_ns),
            None if entry.incarnation >= own => Judgement::BeginAnew,
            None => Judgement::Nothing,
        };
        match judgement {
            Judgement::Nothing => return false,
            Judgement::IsShut => {
                if let Some(fence) = &mut self.fence {
                    fence.stay_closed(FencedWhy::GivenUp);
                }
            }
            Judgement::Mistaken => {
                self.refute(by, own);
                return false;
            }
            Judgement::Shut => {
                if let Some(fence) = &mut self.fence {
                    fence.close(FencedWhy::GivenUp, now_ns);
                }
                self.events.push_back(Event::Fence(Step::Close(FencedWhy::GivenUp)));
            }
            Judgement::BeginAnew => self.events.push_back(Event::GivenUp { by, incarnation: entry.incarnation }),
        }
        true
    }

    /// Another host has this of this incarnation.
    fn confirmed(&mut self, by: u32, entry: &ReportEntry, now_ns: u64) {
        if let Some(fence) = &mut self.fence {
            match fence.confirmed(by, entry.last_number, now_ns) {
                Step::Nothing => {}
                step => self.events.push_back(Event::Fence(step)),
            }
        }
        let path = usize::from(entry.path);
        if path < PATHS && entry.echo_sent_ns != 0 && entry.echo_sent_ns <= now_ns {
            let ns = now_ns.saturating_sub(entry.echo_sent_ns).saturating_sub(entry.hold_ns);
            self.round_trip(by, path, ns);
        }
    }

    /// A host announced an incarnation, though up to `incarnation` all of it are over: a replay, or a host whose clock or memory went back, which the next
    /// reports tell to begin anew. `former`: what this host's former incarnations knew of it went with them.
    pub fn outdated(&mut self, node: u32, incarnation: u32, former: bool, now_ns: u64) {
        if self.reports.outdated.len() < OUTDATED_MAX || self.reports.outdated.contains_key(&node) {
            self.reports.outdated.insert(node, Outdated { incarnation, heard_ns: now_ns, former });
        }
    }

    // ---- own reports ----------------------------------------------------------------------------------------

    /// Everything is reported to everybody with the next frames.
    pub fn report(&mut self, now_ns: u64) {
        self.reports.outdated.retain(|_, outdated| now_ns.saturating_sub(outdated.heard_ns) < OUTDATED_NS);
        self.reports.is_due = true;
    }

    /// The body of the next path report, to everybody, if one is due. `heard`: the row of the receive table of a host and a path.
    pub fn poll_report(&mut self, now_ns: u64, mut heard: impl FnMut(u32, usize) -> Heard, body: &mut Vec<u8>) -> bool {
        body.clear();
        while let Some((node, asks)) = self.reports.prompt.pop_first() {
            self.write_prompt(node, asks, &mut heard, now_ns, body);
            if body.len() + PROMPT_LEN > ROOM {
                break;
            }
        }
        if !body.is_empty() {
            return true;
        }
        while let Some(round) = self.round(now_ns) {
            let Some((node, path)) = self.next_subject(&round) else {
                let ended = self.reports.round.take();
                if ended.is_some_and(|round| round.of_all) {
                    self.write_outdated(body);
                }
                if body.is_empty() {
                    continue;
                }
                return true;
            };
            if body.len() + ReportEntry::LEN > ROOM {
                self.reports.round = Some(Round { next: (node, path), ..round });
                return true;
            }
            if path < PATHS {
                self.entry(node, path, &heard(node, path), now_ns).write(body);
            } else {
                self.write_relayed(node, body);
            }
            self.reports.round = Some(Round { next: (node, path + 1), ..round });
        }
        false
    }

    /// What is known of one host.
    fn write_prompt(
        &mut self,
        node: u32,
        asks: bool,
        heard: &mut impl FnMut(u32, usize) -> Heard,
        now_ns: u64,
        body: &mut Vec<u8>,
    ) {
        if let Some(known) = self.hosts.get_mut(&node) {
            known.stated_ns = now_ns;
        }
        let flags = if asks { ReportEntry::ASKS } else { 0 };
        for path in 0..PATHS {
            let entry = self.entry(node, path, &heard(node, path), now_ns);
            ReportEntry { flags: entry.flags | flags, ..entry }.write(body);
        }
        self.write_relayed(node, body);
    }

    /// What others hear of a host that is not heard here: there may be somebody who hears this host and not them.
    fn write_relayed(&self, node: u32, body: &mut Vec<u8>) {
        if let Some((incarnation, last_number)) = self.detector.relayed(node) {
            let flags = ReportEntry::RELAYED;
            ReportEntry { flags, node, incarnation, last_number, ..ReportEntry::default() }.write(body);
        }
    }

    /// The report that is being written, or one that is due.
    fn round(&mut self, now_ns: u64) -> Option<Round> {
        if self.reports.round.is_none() {
            let of_all = std::mem::take(&mut self.reports.is_due);
            if !of_all && now_ns < self.reports.confirm_ns {
                return None;
            }
            if !of_all {
                self.reports.confirm_ns = self.confirm_again_ns(now_ns);
            }
            self.reports.round = Some(Round { of_all, next: (0, 0) });
        }
        self.reports.round
    }

    /// When the fences of others need confirmations again.
    fn confirm_again_ns(&self, now_ns: u64) -> u64 {
        let promises = self.hosts.keys().filter_map(|node| self.depends_on_us(*node));
        let every = promises.map(|promise| (promise.timeout_ns / CONFIRMATIONS_PER_FENCE).max(self.reports.period_ns)).min();
        every.map_or(u64::MAX, |every| now_ns.saturating_add(every))
    }

    /// What the fence of this host promises, or will once it is armed, if that depends on confirmations.
    fn depends_on_us(&self, node: u32) -> Option<FencePromise> {
        let known = self.hosts.get(&node).filter(|known| !known.condemned)?;
        let promise = self.detector.promise(node).or(known.starting)?;
        matches!(promise.mode, FenceMode::Acknowledged(_)).then_some(promise)
    }

    /// The next host and path of a round.
    fn next_subject(&self, round: &Round) -> Option<(u32, usize)> {
        let (from, path) = round.next;
        let is_one = |node: &u32, known: &Known| known.incarnation != 0 && (round.of_all || self.depends_on_us(*node).is_some());
        let mut nodes = self.hosts.range(from..).filter(|(node, known)| is_one(node, known)).map(|(node, _)| *node);
        let node = nodes.next()?;
        match () {
            () if node != from => Some((node, 0)),
            () if path < PATHS + usize::from(round.of_all) => Some((node, path)),
            () => nodes.next().map(|node| (node, 0)),
        }
    }

    fn entry(&self, node: u32, path: usize, heard: &Heard, now_ns: u64) -> ReportEntry {
        let known = self.hosts.get(&node);
        let known = known.map(|known| (known.incarnation, known.condemned, known.former_verdict, known.fenced.is_fenced()));
        let (incarnation, is_condemned, is_former, known_is_fenced) = known.unwrap_or_default();
        let timeout_ns = self.detector.peer(node).map_or(0, |peer| peer.paths[path].contract.timeout_ns());
        let answers = if self.detector.answers(node) { ReportEntry::ANSWERS } else { 0 };
        let is_fenced = known_is_fenced && is_condemned;
        let is_condemned = is_condemned && !self.is_unsaid(node, now_ns);
        let refuted = if self.is_refuted(node) { ReportEntry::REFUTED } else { 0 };
        let fenced = if is_fenced { ReportEntry::FENCED } else { 0 };
        let by_unicast = if heard.since_group >= BY_UNICAST { ReportEntry::BY_UNICAST } else { 0 };
        let is_silent = heard.arrived_ns == 0 || now_ns.saturating_sub(heard.arrived_ns) > timeout_ns;
        ReportEntry {
            node,
            incarnation,
            path: path as u8,
            flags: flags(is_silent, is_condemned, is_former) | answers | by_unicast | refuted | fenced,
            company: self.detector.company(node),
            last_number: heard.number,
            echo_sent_ns: heard.sent_ns,
            hold_ns: now_ns.saturating_sub(heard.arrived_ns),
            jitter_max_ns: heard.jitter_max_ns,
        }
    }

    /// As many as there is room for; what has none comes with the next report.
    fn write_outdated(&self, body: &mut Vec<u8>) {
        for (node, Outdated { incarnation, former, .. }) in &self.reports.outdated {
            if body.len() + ReportEntry::LEN <= ROOM {
                let flags = flags(true, true, *former);
                let (node, incarnation) = (*node, *incarnation);
                ReportEntry { flags, node, incarnation, ..ReportEntry::default() }.write(body);
            }
        }
    }
}

const fn flags(is_silent: bool, is_condemned: bool, is_former: bool) -> u16 {
    let silent = if is_silent { ReportEntry::SILENT } else { 0 };
    let condemned = if is_condemned { ReportEntry::CONDEMNED } else { 0 };
    silent | condemned | if is_former { ReportEntry::FORMER } else { 0 }
}
