//! How much one user may have of what all users of the socket share, and how fast it may change what other hosts are told.
//!
//! Each limited thing has three numbers ([`Share`]): how many there are, how many one user may have, and how many of the last ones only root gets. Root is
//! bounded by the first alone: it must be able to look and to act when others misbehave. Rates are kept by the generic cell rate algorithm ([`Rate`]): a
//! request that comes too early is not refused but waits, with all that its connection sent behind it.

use std::collections::BTreeMap;

/// A user whose number is not known.
pub const UNKNOWN_USER: u32 = u32::MAX;

/// Who makes an event happen: a host, and the user of the watch there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventSource {
    /// Another host's wire id; `None`: this host.
    pub node: Option<u32>,
    /// 0 for root, the configuration, and what happens to a host itself.
    pub user: u32,
}

impl EventSource {
    /// This host itself, its root and its configuration.
    pub const OWN: Self = Self { node: None, user: 0 };

    /// A user of this host.
    #[must_use]
    pub const fn user(user: u32) -> Self {
        Self { node: None, user }
    }

    /// For people; `host` is the name of its host.
    #[must_use]
    pub fn named(&self, host: &str) -> String {
        match (self.node, self.user) {
            (None, 0) => "this host".into(),
            (None, UNKNOWN_USER) => "users of this host".into(),
            (None, user) => format!("user {user} of this host"),
            (Some(_), 0) => format!("host {host}"),
            (Some(_), UNKNOWN_USER) => format!("users of host {host}"),
            (Some(_), user) => format!("user {user} of host {host}"),
        }
    }
}

/// Something that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its name, in the plural.
    pub what: &'static str,
    /// How many there are.
    pub all: u64,
    /// How many one user may have.
    pub per_user: u64,
    /// Of all, those that only root gets.
    pub for_root: u64,
    /// How an operator or a user frees some.
    pub advice: &'static str,
}

/// Connections to the control socket.
pub const CONNECTIONS: Share = Share {
    what: "connections",
    all: 256,
    per_user: 64,
    for_root: 16,
    advice: "close some of them (`ss -xp` as root names the processes that hold them), or watch more processes over one connection",
};

/// Event rings.
pub const RINGS: Share = Share {
    what: "event rings",
    all: fide_xdp::layout::RINGS as u64,
    per_user: 32,
    for_root: 8,
    advice: "close some subscribers, or monitor more over one of them",
};

/// Watches, those of processes that joined included.
pub const WATCHES: Share = Share {
    what: "watches",
    all: 4096,
    per_user: 1024,
    for_root: 256,
    advice: "end some (`fide unmonitor`; `fide status` lists them)",
};

/// Monitored targets.
pub const TARGETS: Share = Share {
    what: "monitored targets",
    all: 8192,
    per_user: 1024,
    for_root: 1024,
    advice: "monitor a whole host (`@host`) instead of its processes, or end some",
};

/// Looks at progress counters, each second.
pub const LOOKS: Share = Share {
    what: "looks at progress counters a second",
    all: 65_536,
    per_user: 16_384,
    for_root: 16_384,
    advice: "a counter takes 8 looks in its limit: choose longer limits, or fewer counters",
};

/// Places of groups: those that a user has this host begin or join.
pub const GROUPS: Share = Share {
    what: "groups",
    all: fide_proto::services::groups::GROUPS_MAX as u64,
    per_user: 16,
    for_root: 8,
    advice: "leave some (`fide group leave`; `fide group status` lists them), which gives their places back within a minute",
};

impl Share {
    /// Whether a user who has `own` of the `used` gets `more` of them.
    ///
    /// # Errors
    /// In words: which limit is met, and what to do.
    pub fn admit(&self, uid: u32, own: u64, used: u64, more: u64) -> Result<(), String> {
        let Share { what, all, per_user, for_root, advice } = self;
        if used.saturating_add(more) > *all {
            return Err(format!("all {all} {what} of this agent are in use: {advice}"));
        }
        if uid != 0 && own.saturating_add(more) > *per_user {
            return Err(format!("user {uid} has {own} {what}, and one user may have {per_user}: {advice}"));
        }
        if uid != 0 && used.saturating_add(more) > all - for_root {
            return Err(format!("{used} {what} of this agent are in use, and the last {for_root} are kept for root: {advice}"));
        }
        Ok(())
    }
}

/// How much of one [`Share`] each user has.
#[derive(Clone, Debug)]
pub struct Account {
    share: Share,
    used: u64,
    by_user: BTreeMap<u32, u64>,
}

/// Looks a second that a progress counter with this limit takes.
#[must_use]
pub const fn looks(limit_ns: u64) -> u64 {
    if limit_ns == 0 { 0 } else { (fide_proto::detector::progress::LOOKS * 1_000_000_000).div_ceil(limit_ns) }
}

impl Account {
    /// Nothing is in use.
    #[must_use]
    pub const fn new(share: Share) -> Self {
        Self { share, used: 0, by_user: BTreeMap::new() }
    }

    /// Gives a user `more`.
    ///
    /// # Errors
    /// As [`Share::admit`]; nothing was given then.
    pub fn take(&mut self, uid: u32, more: u64) -> Result<(), String> {
        self.share.admit(uid, self.of(uid), self.used, more)?;
        *self.by_user.entry(uid).or_default() += more;
        self.used += more;
        Ok(())
    }

    /// Takes so much back.
    pub fn give_back(&mut self, uid: u32, less: u64) {
        let Some(own) = self.by_user.get_mut(&uid) else { return };
        let less = less.min(*own);
        *own -= less;
        self.used -= less;
        if *own == 0 {
            self.by_user.remove(&uid);
        }
    }

    /// What a user has.
    #[must_use]
    pub fn of(&self, uid: u32) -> u64 {
        self.by_user.get(&uid).copied().unwrap_or(0)
    }

    /// What all have together.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }
}

/// One in `interval_ns` on average, `burst` at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// The theoretical arrival time: when the next one would come if all had come as early as the average allows.
    due_ns: u64,
}

/// The limits of a [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Mean time from one to the next.
    pub interval_ns: u64,
    /// So many may come at once.
    pub burst: u64,
}

/// Requests of one user that other hosts are told of: watches, joins, their ends, reports.
pub const TOLD_REQUESTS: RateLimit = RateLimit { interval_ns: 10_000_000, burst: 256 };

/// Changes of the progress of one user's processes that other hosts are told of.
pub const PROGRESS_TOLD: RateLimit = RateLimit { interval_ns: 50_000_000, burst: 64 };

/// Requests of one user to monitor a host or everything, that are answered when all that there is has been named.
pub const INTRODUCTIONS: RateLimit = RateLimit { interval_ns: 100_000_000, burst: 64 };

impl Rate {
    /// Whether one may come now; if so, it is counted.
    pub fn take(&mut self, limit: RateLimit, now_ns: u64) -> bool {
        let due_ns = self.due_ns.max(now_ns);
        let ahead_ns = limit.interval_ns.saturating_mul(limit.burst.saturating_sub(1));
        if due_ns - now_ns > ahead_ns {
            return false;
        }
        self.due_ns = due_ns.saturating_add(limit.interval_ns);
        true
    }

    /// Whether it is as one that was never used.
    #[must_use]
    pub const fn is_idle(&self, now_ns: u64) -> bool {
        self.due_ns <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAKE: Share = Share { what: "pieces", all: 10, per_user: 4, for_root: 2, advice: "bake more" };

    #[test]
    fn one_user_has_its_share_others_theirs_and_root_the_last() {
        let mut account = Account::new(CAKE);
        for _ in 0..4 {
            account.take(7, 1).unwrap();
        }
        let why = account.take(7, 1).unwrap_err();
        assert_eq!(why, "user 7 has 4 pieces, and one user may have 4: bake more");
        account.take(8, 4).unwrap();
        let why = account.take(9, 1).unwrap_err();
        assert!(why.contains("the last 2 are kept for root"), "{why}");
        account.take(0, 2).unwrap();
        let why = account.take(0, 1).unwrap_err();
        assert!(why.contains("all 10 pieces") && why.contains("bake more"), "{why}");
        account.give_back(7, 3);
        account.give_back(7, 3);
        assert_eq!((account.of(7), account.used()), (0, 6), "no more comes back than was taken");
        account.take(9, 2).unwrap();
        account.take(0, 2).unwrap();
        assert_eq!(account.used(), 10);
    }

    #[test]
    fn a_burst_and_then_the_mean_rate() {
        let limit = RateLimit { interval_ns: 10, burst: 3 };
        let mut rate = Rate::default();
        let taken = |rate: &mut Rate, now: u64| std::iter::repeat_with(|| rate.take(limit, now)).take_while(|t| *t).count();
        assert_eq!(taken(&mut rate, 1000), 3);
        assert_eq!(taken(&mut rate, 1009), 0);
        assert_eq!(taken(&mut rate, 1010), 1);
        assert_eq!(taken(&mut rate, 1025), 1);
        assert!(!rate.is_idle(1025));
        assert_eq!(taken(&mut rate, 5000), 3, "a pause is not saved up beyond the burst");
        assert!(rate.is_idle(6000));
    }

    #[test]
    fn the_shares_leave_something_for_others() {
        for share in [CONNECTIONS, RINGS, WATCHES, TARGETS, LOOKS, GROUPS] {
            assert!(share.per_user + share.for_root < share.all, "{}", share.what);
        }
    }
}
