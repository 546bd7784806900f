//! What control software writes into the registers before an engine runs.

use crate::reg;
use fide_proto::consensus::lowi::{self, Since};
use fide_proto::group::{MemberId, MemberSet};
use fide_wire::mac::{Key, Keyring};

/// Clocks by which the engine may be late at a deadline: one step at a time, the longest of which fills
/// a gap and takes a window of rounds.
pub const STEP_CLOCKS_MAX: u64 = 64;

/// One member in hardware.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Settings of the group; `rounds_max` and `batch_entries_max` within what the engine holds.
    pub config: lowi::Config,
    /// Every member there is or will be, growing: its place is its rank.
    pub ids: Vec<MemberId>,
    /// This member.
    pub me: MemberId,
    /// The members at the start.
    pub members: MemberSet,
    /// Where it begins: the last round, its leader, the next instance.
    pub begin: lowi::StartPoint,
    /// Cluster, sender, incarnation and group of its frames.
    pub cluster: u32,
    /// The sending node.
    pub sender: u32,
    /// Of the node.
    pub incarnation: u32,
    /// [`fide_wire::name_id`] of the group's name.
    pub group: u32,
    /// Of the group.
    pub generation: u64,
    /// The key of tags and its id; id 0 is the public key.
    pub key: (u8, Key),
    /// Time of one clock.
    pub clk_ns: u64,
    /// Between two messages *exit* or *ready*.
    pub retry_ns: u32,
    /// Least mean time between requests, and how many may come at once.
    pub rate: (u32, u8),
}

/// Why settings cannot be had in hardware.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The software core refuses them, too.
    #[error("{0}")]
    Config(&'static str),
    /// More than the engine was built for.
    #[error("{what} is {is}, and the engine holds at most {most}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// Asked for.
        is: u64,
        /// Possible.
        most: u64,
    },
    /// A step of the engine takes longer than a member may be late.
    #[error("late_ns is {late_ns}, less than the longest step of the engine ({least_ns} ns): raise Δ_W")]
    Late {
        /// By the settings.
        late_ns: u64,
        /// At least.
        least_ns: u64,
    },
}

/// What the engine was built with (PARAMS).
#[derive(Clone, Copy, Debug)]
pub struct Built {
    /// Ranks.
    pub members: u64,
    /// Paths.
    pub paths: u64,
    /// Rounds of one sender in flight.
    pub window: u64,
    /// Bytes of one value.
    pub value_max: u64,
}

impl Default for Built {
    fn default() -> Self {
        Self { members: 8, paths: 2, window: 8, value_max: 984 }
    }
}

impl Setup {
    /// A member's rank.
    #[must_use]
    pub fn rank(&self, member: MemberId) -> Option<u32> {
        self.ids.iter().position(|id| *id == member).map(|at| at as u32)
    }

    /// A set of members, one bit per rank.
    #[must_use]
    pub fn mask(&self, members: &MemberSet) -> u32 {
        members.iter().filter_map(|member| self.rank(member)).fold(0, |mask, rank| mask | 1 << rank)
    }

    /// Whether the engine can run with this.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self, built: Built) -> Result<(), Unfit> {
        self.config.check(self.ids.len()).map_err(Unfit::Config)?;
        let drift = 2 * u64::from(self.config.drift_ppm) * self.clk_ns;
        for (what, is, most) in [
            ("members", self.ids.len() as u64, built.members),
            ("paths", self.config.paths as u64, built.paths),
            ("2 · rounds_max", 2 * self.config.rounds_max, built.window),
            ("batch_entries_max", self.config.batch_entries_max as u64, 1),
            ("batch_bytes_max", self.config.batch_bytes_max as u64, built.value_max),
            ("depth", self.config.depth as u64, 4),
            ("2 · drift_ppm · clk_ns", drift, 333_333),
        ] {
            if is > most {
                return Err(Unfit::TooMuch { what, is, most });
            }
        }
        let (late_ns, least_ns) = (self.config.late_ns(self.ids.len()).unwrap_or(0), STEP_CLOCKS_MAX * self.clk_ns);
        if late_ns < least_ns {
            return Err(Unfit::Late { late_ns, least_ns });
        }
        Ok(())
    }

    /// The key as the software core's decoders take it. An id that is none stands for the public key.
    #[must_use]
    pub fn keys(&self) -> Keyring {
        Keyring::new(self.key, None).unwrap_or_default()
    }

    /// The first 64 bytes of its frames.
    #[must_use]
    pub fn base(&self) -> [u8; 64] {
        let mut base = [0; 64];
        base[3] = self.keys().sending().0;
        base[4..8].copy_from_slice(&self.cluster.to_be_bytes());
        base[8..12].copy_from_slice(&self.sender.to_be_bytes());
        base[12..16].copy_from_slice(&self.incarnation.to_be_bytes());
        base[48..52].copy_from_slice(&self.group.to_be_bytes());
        base[52..54].copy_from_slice(&self.me.0.to_be_bytes());
        base[56..64].copy_from_slice(&self.generation.to_be_bytes());
        base
    }

    /// Register writes, in their order. A start command comes behind them.
    #[must_use]
    pub fn writes(&self) -> Vec<(u16, u32)> {
        let config = &self.config;
        let mut writes = Vec::new();
        let mut word = |at: u16, value: u32| writes.push((at, value));
        let me = self.rank(self.me).unwrap_or(0);
        let paths = (1u32 << config.paths) - 1;
        let flags = u32::from(config.hurry) << reg::CONFIG_HURRY | u32::from(config.exit_together) << reg::CONFIG_EXIT_TOGETHER;
        word(reg::CONFIG, me | paths << reg::CONFIG_PATHS | (config.depth as u32 - 1) << reg::CONFIG_DEPTH | flags);
        word(reg::MEMBERS, self.mask(&self.members));
        word(reg::IDS_VALID, (1 << self.ids.len()) - 1);
        word(reg::DRIFT, 2 * config.drift_ppm * self.clk_ns as u32);
        word(reg::RETRY, self.retry_ns);
        word(reg::RATE_GAP, self.rate.0);
        word(reg::RATE_BURST, self.rate.1.into());
        word(reg::BEGIN_LEADER, self.rank(self.begin.leader).unwrap_or(0));
        self.ids.iter().zip(0..).for_each(|(id, i)| word(reg::IDS + 4 * i, id.0.into()));
        let mut words = |at: u16, bytes: &[u8]| {
            bytes.chunks_exact(4).zip(0..).for_each(|(bytes, i)| {
                word(at + 4 * i, u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            });
        };
        words(reg::BASE, &self.base());
        words(reg::KEY, &self.keys().sending().1.0);
        let mut long = |at: u16, value: u64| {
            word(at, value as u32);
            word(at + 4, (value >> 32) as u32);
        };
        let late_ns = config.late_ns(self.members.len()).unwrap_or(0);
        long(reg::FLIGHT, config.flight_ns());
        long(reg::LATE, late_ns);
        long(reg::BEGIN_ROUND, self.begin.round);
        long(reg::BEGIN_NEXT, self.begin.next);
        for (at, since) in [(reg::WAIT_RUN, Since::Round), (reg::WAIT_START, Since::Start), (reg::WAIT_LEFT, Since::Leave)] {
            for slot in 0..=self.ids.len() {
                long(at + 8 * slot as u16, config.wait_ns(slot, since, late_ns));
            }
        }
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(config: lowi::Config) -> Setup {
        let ids: Vec<_> = (1..=3).map(MemberId).collect();
        let begin = lowi::StartPoint { round: 0, leader: MemberId(1), next: 1 };
        let members = ids.iter().copied().collect();
        let (cluster, sender, incarnation, group, generation) = (1, 2, 3, 4, 5);
        Setup {
            config,
            me: ids[0],
            ids,
            members,
            begin,
            cluster,
            sender,
            incarnation,
            group,
            generation,
            key: (0, Key::PUBLIC),
            clk_ns: 4,
            retry_ns: 400,
            rate: (0, 1),
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_limit() {
        let fits = lowi::Config { rounds_max: 4, batch_entries_max: 1, batch_bytes_max: 984, ..lowi::Config::new(2_000, 1_000) };
        assert_eq!(setup(fits).check(Built::default()), Ok(()));
        let deep = lowi::Config { rounds_max: 64, ..fits };
        let refused = setup(deep).check(Built::default()).unwrap_err();
        assert_eq!(refused, Unfit::TooMuch { what: "2 · rounds_max", is: 128, most: 8 });
        let narrow = lowi::Config { delta_w_ns: 1_100, ..fits };
        let refused = setup(narrow).check(Built::default()).unwrap_err();
        assert!(matches!(refused, Unfit::Late { least_ns: 256, .. }), "{refused}");
        assert!(matches!(setup(lowi::Config { period_ns: 0, ..fits }).check(Built::default()), Err(Unfit::Config(_))));
    }
}
