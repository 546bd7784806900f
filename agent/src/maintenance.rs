//! What an operator has put in maintenance, in the whole cluster: who knows it, until when, and whom it covers.
//!
//! Every host writes the maintenances that it knows into its table, so the word spreads as processes do: pushed at once, pulled
//! by whoever missed it, and told to newcomers by any host, also when the host where it was set is switched off.
//!
//! Clocks of hosts may differ, so none are compared. A row says how long a maintenance still lasts at the moment of writing, and
//! a host that reads it then counts by itself. A row that lies in a table since earlier says too much: what is read from one
//! holds until a row comes that was just written, and every host writes its rows anew when another host joins. Only an agent
//! that restarts looks at the clock on the wall, its own. In every case a maintenance ends within a day.

use fide_wire::control::{ErrorCode, MaintenanceStatus, Refused};
use fide_wire::frame::table::Maintenance as Row;
use fide_wire::maintenance::{
    MAINTENANCE_NS, MAINTENANCE_REASON_MAX, MAINTENANCE_TARGET_MAX, MAINTENANCES_MAX, check_target, covers,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of this host's table that are for maintenances, those that are over among them.
const SLOTS: usize = 2 * MAINTENANCES_MAX;
const MS: u64 = 1_000_000;

/// When something happens: by the clock that only counts, and by the clock on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// CLOCK_BOOTTIME, ns: it goes on while the machine sleeps.
    pub boot_ns: u64,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

impl Now {
    /// This moment.
    #[must_use]
    pub fn read() -> Self {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is live; this clock always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut t) };
        let boot_ns = t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self { boot_ns, wall_ms: since.map_or(0, |since| since.as_millis() as u64) }
    }
}

/// A maintenance as it is kept on disk, for the next agent of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    target: String,
    stamp: u64,
    /// By this host's clock; 0: it is over.
    ends_wall_ms: u64,
    uid: u32,
    by: String,
    reason: String,
}

#[derive(Clone, Debug)]
struct Held {
    stamp: u64,
    uid: u32,
    by: String,
    reason: String,
    /// CLOCK_BOOTTIME, ns; 0: it is over.
    ends_ns: u64,
    /// How long it lasts was read in a row of unknown age, or reckoned by the clock on the wall.
    is_provisional: bool,
    slot: u32,
    /// This host's row says something else.
    is_dirty: bool,
    known_by: BTreeSet<String>,
}

impl Held {
    const fn is_active(&self) -> bool {
        self.ends_ns != 0
    }

    fn left_ms(&self, now: Now) -> u64 {
        // Rounded up: what is not over is not 0.
        self.ends_ns.saturating_sub(now.boot_ns).div_ceil(MS)
    }

    fn began(&self, target: &str, now: Now) -> String {
        let (what, left) = (subject(target), span(self.left_ms(now)));
        let why = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("maintenance of {what} for {left}, set by {} on {}{why}", user(self.uid), self.by)
    }
}

/// All maintenances that this host knows.
#[derive(Debug)]
pub struct Maintenances {
    me: String,
    held: BTreeMap<String, Held>,
    /// What the next agent must know has changed.
    is_unsaved: bool,
    /// A host joined: rows are to be written anew.
    is_stale: bool,
}

impl Maintenances {
    /// Goes on where the former agent left off.
    #[must_use]
    pub fn new(me: &str, kept: Vec<Kept>, now: Now) -> Self {
        let mut of = Self { me: me.into(), held: BTreeMap::new(), is_unsaved: false, is_stale: false };
        for Kept { target, stamp, ends_wall_ms, uid, by, reason } in kept.into_iter().take(SLOTS) {
            let left_ms = ends_wall_ms.saturating_sub(now.wall_ms).min(MAINTENANCE_NS.end() / MS);
            let ends_ns = if left_ms == 0 { 0 } else { now.boot_ns + left_ms * MS };
            let slot = of.held.len() as u32;
            let known_by = BTreeSet::from([of.me.clone()]);
            // What an operator ended stays so. Of what ended by time, others may know better: this host's clock may be wrong.
            let is_provisional = ends_wall_ms != 0;
            let is_dirty = ends_ns != 0 || !is_provisional;
            of.held.insert(target, Held { stamp, uid, by, reason, ends_ns, is_provisional, slot, is_dirty, known_by });
        }
        of
    }

    /// An operator begins one here, or has it last from now on.
    ///
    /// # Errors
    /// What cannot be, and what can.
    pub fn set(&mut self, target: &str, for_ns: u64, reason: &str, uid: u32, now: Now) -> Result<String, Refused> {
        let refuse = |code, what| Err(Refused { code, what });
        check_target(target).map_err(|what| Refused { code: ErrorCode::Invalid, what })?;
        if !MAINTENANCE_NS.contains(&for_ns) {
            let what = "a maintenance lasts from 1 second to 1 day: it must end by itself should everybody forget it; \
                        set it again before its end if the work takes longer";
            return refuse(ErrorCode::Invalid, what.into());
        }
        if reason.len() > MAINTENANCE_REASON_MAX || reason.chars().any(char::is_control) {
            let what = format!("a reason is one line of at most {MAINTENANCE_REASON_MAX} bytes");
            return refuse(ErrorCode::TooLarge, what);
        }
        let others = self.active().filter(|(of, _)| *of != target).count();
        if others >= MAINTENANCES_MAX {
            let what = format!(
                "{others} maintenances are there already, and a cluster has at most {MAINTENANCES_MAX}: end one \
                 (fide maintenance off), or cover more with one (@HOST, NAME*, *)"
            );
            return refuse(ErrorCode::Full, what);
        }
        let ends_ns = now.boot_ns + for_ns;
        let held = self.write(target, ends_ns, reason, uid, now)?;
        Ok(held.began(target, now))
    }

    /// An operator ends one here, or all.
    ///
    /// # Errors
    /// There is none.
    pub fn end(&mut self, target: Option<&str>, uid: u32, now: Now) -> Result<Vec<String>, Refused> {
        let active: Vec<String> = self.active().map(|(of, _)| of.clone()).collect();
        let ended: Vec<String> = active.iter().filter(|of| target.is_none_or(|target| target == *of)).cloned().collect();
        if let Some(target) = target.filter(|_| ended.is_empty()) {
            let what = match active.as_slice() {
                [] => format!("{} is not in maintenance, and nothing is", subject(target)),
                some => format!(
                    "{} was not put in maintenance by that name; in maintenance, each to be ended by its own: {}",
                    subject(target),
                    some.join(", ")
                ),
            };
            return Err(Refused { code: ErrorCode::NotFound, what });
        }
        for target in &ended {
            let reason = self.held.get(target).map_or_else(String::new, |held| held.reason.clone());
            self.write(target, 0, &reason, uid, now)?;
        }
        let text = |of: &String| format!("maintenance of {} is over: ended by {} on {}", subject(of), user(uid), self.me);
        Ok(ended.iter().map(text).collect())
    }

    fn write(&mut self, target: &str, ends_ns: u64, reason: &str, uid: u32, now: Now) -> Result<&Held, Refused> {
        // More than any that is known: also where another host's clock is ahead of this one's.
        let stamp = self.held.get(target).map_or(0, |held| held.stamp + 1).max(now.wall_ms);
        let row = Row { stamp, left_ms: 0, uid, by: self.me.as_str().into(), target: target.into(), reason: reason.into() };
        let full = || Refused { code: ErrorCode::Full, what: "no room for one more maintenance: end one of them".into() };
        self.take(&row, ends_ns, false).map(|held| &*held).ok_or_else(full)
    }

    /// Another host wrote down one that it knows. What an operator should read about it.
    pub fn learned(&mut self, host: &str, row: &Row, is_fresh: bool, now: Now) -> Option<String> {
        let ends_ns = if row.left_ms == 0 { 0 } else { now.boot_ns + row.left_ms * MS };
        let target: &str = &row.target;
        if let Some(held) = self.held.get_mut(target) {
            let (known, said) = ((held.stamp, held.by.as_str()), (row.stamp, &*row.by));
            if known > said {
                return None; // it reads ours
            }
            if known == said {
                held.known_by.insert(host.into());
                if held.is_provisional && (is_fresh || held.is_active() && ends_ns < held.ends_ns) {
                    let was_active = held.is_active();
                    (held.ends_ns, held.is_provisional) = (ends_ns, !is_fresh);
                    (held.is_dirty, self.is_unsaved) = (true, true);
                    return match (was_active, ends_ns != 0) {
                        (false, true) => Some(held.began(target, now)),
                        (true, false) => Some(over(target)),
                        _ => None,
                    };
                }
                return None;
            }
        }
        let was_active = self.held.get(target).is_some_and(Held::is_active);
        let Some(held) = self.take(row, ends_ns, !is_fresh) else {
            tracing::warn!("no room for the maintenance of {target} that {host} knows: {SLOTS} are known");
            return None;
        };
        held.known_by.insert(host.into());
        match (was_active, ends_ns != 0) {
            (_, true) => Some(held.began(target, now)),
            (true, false) => {
                Some(format!("maintenance of {} is over: ended by {} on {}", subject(target), user(row.uid), row.by))
            }
            (false, false) => None,
        }
    }

    /// Takes a newer one for what is known of its target.
    fn take(&mut self, row: &Row, ends_ns: u64, is_provisional: bool) -> Option<&mut Held> {
        let slot = match self.held.get(&*row.target) {
            Some(held) => held.slot,
            None => self.free_slot()?,
        };
        self.is_unsaved = true;
        let held = Held {
            stamp: row.stamp,
            uid: row.uid,
            by: row.by.to_string(),
            reason: row.reason.to_string(),
            ends_ns,
            is_provisional,
            slot,
            is_dirty: true,
            known_by: BTreeSet::from([self.me.clone()]),
        };
        let target = row.target.to_string();
        self.held.insert(target.clone(), held);
        self.held.get_mut(&target)
    }

    /// A row of this host's table that is free, or of the one that has been over for longest.
    fn free_slot(&mut self) -> Option<u32> {
        let used: BTreeSet<u32> = self.held.values().map(|held| held.slot).collect();
        if let Some(free) = (0..SLOTS as u32).find(|slot| !used.contains(slot)) {
            return Some(free);
        }
        let over = self.held.iter().filter(|(_, held)| !held.is_active()).min_by_key(|(_, held)| held.stamp);
        let target = over.map(|(target, _)| target.clone())?;
        self.held.remove(&target).map(|held| held.slot)
    }

    /// A host joined, or came back: its table says nothing of ours yet, or too much.
    pub const fn host_joined(&mut self) {
        self.is_stale = true;
    }

    /// Time went by. What an operator should read.
    pub fn tick(&mut self, now: Now) -> Vec<String> {
        let is_stale = std::mem::take(&mut self.is_stale);
        let mut told = Vec::new();
        for (target, held) in self.held.iter_mut().filter(|(_, held)| held.is_active()) {
            held.is_dirty |= is_stale;
            if now.boot_ns >= held.ends_ns {
                (held.ends_ns, held.is_provisional, held.is_dirty) = (0, false, true);
                self.is_unsaved = true;
                told.push(over(target));
            }
        }
        told
    }

    /// Rows of this host's table that are to be written.
    pub fn rows(&mut self, now: Now) -> Vec<(u32, Row)> {
        let row = |(target, held): (&String, &mut Held)| {
            if !std::mem::take(&mut held.is_dirty) {
                return None;
            }
            let (by, target, reason) = (held.by.as_str().into(), target.as_str().into(), held.reason.as_str().into());
            Some((held.slot, Row { stamp: held.stamp, left_ms: held.left_ms(now), uid: held.uid, by, target, reason }))
        };
        self.held.iter_mut().filter_map(row).collect()
    }

    /// What the next agent must know, if that has changed.
    pub fn unsaved(&mut self, now: Now) -> Option<Vec<Kept>> {
        let kept = |(target, held): (&String, &Held)| Kept {
            target: target.clone(),
            stamp: held.stamp,
            ends_wall_ms: if held.is_active() { now.wall_ms + held.left_ms(now) } else { 0 },
            uid: held.uid,
            by: held.by.clone(),
            reason: held.reason.clone(),
        };
        std::mem::take(&mut self.is_unsaved).then(|| self.held.iter().map(kept).collect())
    }

    fn active(&self) -> impl Iterator<Item = (&String, &Held)> {
        self.held.iter().filter(|(_, held)| held.is_active())
    }

    /// The target of a maintenance that covers a process, or a host: the one that lasts longest.
    #[must_use]
    pub fn covering(&self, app: Option<&str>, host: &str) -> Option<&str> {
        let covering = self.active().filter(|(target, _)| covers(target, app, host));
        covering.max_by_key(|(_, held)| held.ends_ns).map(|(target, _)| target.as_str())
    }

    /// All that are not over.
    #[must_use]
    pub fn status(&self, now: Now) -> Vec<MaintenanceStatus> {
        let status = |(target, held): (&String, &Held)| MaintenanceStatus {
            target: target.clone(),
            left_ns: held.left_ms(now) * MS,
            ends_wall_ns: (now.wall_ms + held.left_ms(now)) * MS,
            reason: held.reason.clone(),
            by: held.by.clone(),
            user: held.uid,
            known_by: held.known_by.iter().cloned().collect(),
        };
        self.active().map(status).collect()
    }
}

const _: () = assert!(MAINTENANCE_TARGET_MAX <= 255 && MAINTENANCE_REASON_MAX <= 255, "texts of rows have at most 255 bytes");

fn over(target: &str) -> String {
    format!("maintenance of {} is over: its time is up", subject(target))
}

fn subject(target: &str) -> &str {
    if target == "*" { "everything" } else { target }
}

fn user(uid: u32) -> String {
    if uid == 0 { "root".into() } else { format!("user {uid}") }
}

/// `10 min`, `1 min 5 s`, `2 h`.
fn span(ms: u64) -> String {
    let seconds = ms.div_ceil(1000);
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "min"), (seconds % 60, "s")];
    let text: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n} {unit}")).collect();
    if text.is_empty() { "0 s".into() } else { text.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;
    const START: Now = Now { boot_ns: 1_000 * MINUTE, wall_ms: 1_800_000_000_000 };

    fn later(seconds: u64) -> Now {
        Now { boot_ns: START.boot_ns + seconds * 1_000 * MS, wall_ms: START.wall_ms + seconds * 1_000 }
    }

    /// The same moment by a clock that is wrong by so many hours.
    fn wrong(now: Now, hours: i64) -> Now {
        Now { wall_ms: now.wall_ms.saturating_add_signed(hours * 3_600_000), boot_ns: now.boot_ns + 77 * MINUTE }
    }

    fn host(name: &str) -> Maintenances {
        Maintenances::new(name, Vec::new(), START)
    }

    /// What one host's rows tell another one.
    fn tell(from: &mut Maintenances, at: Now, to: &mut Maintenances, is_fresh: bool, to_at: Now) -> Vec<String> {
        let (me, rows) = (from.me.clone(), from.rows(at));
        rows.iter().filter_map(|(_, row)| to.learned(&me, row, is_fresh, to_at)).collect()
    }

    #[test]
    fn it_covers_everywhere_until_its_time_is_up_whatever_clocks_say() {
        let (mut a, mut b) = (host("a"), host("b"));
        let told = a.set("db", 10 * MINUTE, "new disk", 0, START).unwrap();
        assert_eq!(told, "maintenance of db for 10 min, set by root on a: new disk");
        let b_now = wrong(START, 9);
        assert_eq!(tell(&mut a, START, &mut b, true, b_now), [told]);
        assert_eq!((a.covering(Some("db"), "x"), b.covering(Some("db"), "x")), (Some("db"), Some("db")));
        assert_eq!(b.covering(Some("web"), "x"), None);
        assert_eq!(b.status(b_now)[0].left_ns, 10 * MINUTE);
        assert_eq!(b.status(b_now)[0].known_by, ["a", "b"]);
        assert!(tell(&mut b, b_now, &mut a, true, START).is_empty(), "its own, passed on");
        assert_eq!(a.status(START)[0].known_by, ["a", "b"]);
        assert_eq!(b.tick(wrong(later(599), 9)), Vec::<String>::new());
        assert_eq!(b.tick(wrong(later(600), 9)), ["maintenance of db is over: its time is up"]);
        assert_eq!(b.covering(Some("db"), "x"), None);
        assert_eq!(b.rows(wrong(later(600), 9))[0].1.left_ms, 0, "newcomers read that it is over");
    }

    #[test]
    fn whoever_ends_it_last_has_the_last_word_also_with_a_slow_clock() {
        let (mut a, mut b) = (host("a"), host("b"));
        let slow = wrong(START, -5);
        a.set("*", 10 * MINUTE, "", 0, START).unwrap();
        tell(&mut a, START, &mut b, true, slow);
        assert_eq!(b.end(None, 7, slow).unwrap(), ["maintenance of everything is over: ended by user 7 on b"]);
        assert_eq!(tell(&mut b, slow, &mut a, true, START), ["maintenance of everything is over: ended by user 7 on b"]);
        assert_eq!(a.covering(None, "x"), None);
        // Somebody who was away comes back with what he knew.
        let mut away = host("c");
        let row = Row { stamp: START.wall_ms, left_ms: 600_000, uid: 0, by: "a".into(), target: "*".into(), reason: "".into() };
        away.learned("a", &row, true, START);
        assert!(tell(&mut away, START, &mut a, false, START).is_empty());
        assert_eq!(a.covering(None, "x"), None, "what was ended stays ended");
    }

    #[test]
    fn a_newcomer_believes_an_old_row_until_a_fresh_one_comes() {
        let (mut a, mut late) = (host("a"), host("late"));
        a.set("@x", 10 * MINUTE, "", 0, START).unwrap();
        let (_, old) = a.rows(START).remove(0);
        let now = later(540);
        assert!(late.learned("a", &old, false, now).is_some());
        assert_eq!(late.status(now)[0].left_ns, 10 * MINUTE, "too long, and bounded");
        a.host_joined();
        assert!(a.tick(now).is_empty());
        assert!(tell(&mut a, now, &mut late, true, now).is_empty(), "no news, put right");
        assert_eq!(late.status(now)[0].left_ns, MINUTE);
        late.rows(now);
        late.learned("a", &old, true, now);
        assert_eq!(late.status(now)[0].left_ns, MINUTE, "from then on it counts by itself");
    }

    #[test]
    fn the_next_agent_goes_on_and_puts_right_what_its_clock_got_wrong() {
        let mut a = host("a");
        a.set("db@x", 10 * MINUTE, "r", 0, START).unwrap();
        let kept = a.unsaved(START).unwrap();
        assert_eq!(a.unsaved(START), None);
        let next = Maintenances::new("a", kept.clone(), later(60));
        assert_eq!(next.status(later(60))[0].left_ns, 9 * MINUTE);
        // After a reboot with a clock an hour ahead it is over, until others say that it is not.
        let ahead = wrong(later(60), 1);
        let mut next = Maintenances::new("a", kept, ahead);
        assert_eq!(next.covering(Some("db"), "x"), None);
        assert!(next.rows(ahead).is_empty(), "it does not spread what it does not know");
        let (_, row) = a.rows(later(60)).remove(0);
        assert!(next.learned("b", &row, true, ahead).unwrap().starts_with("maintenance of db@x for 9 min"));
        assert_eq!(next.status(ahead)[0].left_ns, 9 * MINUTE);
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        let mut a = host("a");
        let mut set = |target: &str, for_ns| a.set(target, for_ns, "", 0, START);
        assert_eq!(set("", MINUTE).unwrap_err().code, ErrorCode::Invalid);
        for span in [0, 25 * 60 * MINUTE] {
            assert!(set("db", span).unwrap_err().what.contains("from 1 second to 1 day"));
        }
        for n in 0..MAINTENANCES_MAX {
            set(&format!("p{n}"), MINUTE).unwrap();
        }
        let full = set("db", MINUTE).unwrap_err();
        assert!(full.code == ErrorCode::Full && full.what.contains("fide maintenance off"), "{full}");
        set("p3", 5 * MINUTE).unwrap();
        assert!(a.set("p3", MINUTE, "two\nlines", 0, START).is_err());
        let missing = a.end(Some("db"), 0, START).unwrap_err();
        assert!(missing.code == ErrorCode::NotFound && missing.what.contains("ended by its own: p0, p1"), "{missing}");
        assert_eq!(a.end(None, 0, START).unwrap().len(), MAINTENANCES_MAX);
        assert_eq!(a.end(None, 0, START), Ok(Vec::new()), "all of nothing");
    }

    #[test]
    fn rows_are_bounded_and_the_oldest_that_is_over_gives_way() {
        let mut a = host("a");
        for n in 0..100 {
            a.set(&format!("p{n}"), MINUTE, "", 0, later(n)).unwrap();
            a.end(None, 0, later(n)).unwrap();
        }
        let rows = a.rows(later(100));
        assert_eq!(rows.len(), SLOTS);
        assert!(rows.iter().all(|(slot, _)| *slot < SLOTS as u32));
        assert!(rows.iter().any(|(_, row)| &*row.target == "p99"));
    }
}
