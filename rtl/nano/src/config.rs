//! The file that describes a group: the same for all its members.

use crate::Refusal;
use fide_proto::consensus::lowi::{self, StartPoint};
use fide_proto::group::MemberId;
use fide_rtl::setup::{Built, Setup};
use fide_wire::mac::{Key, Keyring};
use fide_wire::name_id;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

/// A group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the group.
    pub group: String,
    /// Grows when the group starts over.
    pub generation: u64,
    /// UDP port of its frames.
    pub port: u16,
    /// The multicast address of each path.
    pub trees: Vec<IpAddr>,
    /// The key of tags, 32 hexadecimal digits. Without it tags protect against corruption only.
    pub key: Option<String>,
    /// The key's id, 1 to 15.
    #[serde(default = "one")]
    pub key_id: u8,
    /// Times.
    pub timing: Timing,
    /// Every member there is or will be.
    pub member: Vec<Member>,
}

fn one() -> u8 {
    1
}

/// Times and bounds of the group (`lowi::Config`).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Between two rounds of a leader (µs).
    pub period_us: u64,
    /// Δ_I: from the stamp of a round to the delivery of its last copy (µs).
    pub delta_i_us: u64,
    /// Δ_W (µs); 2 Δ_I if absent.
    pub delta_w_us: Option<u64>,
    /// What clocks may gain or lose (ppm).
    #[serde(default = "drift")]
    pub drift_ppm: u32,
    /// Instances begun within Δ_I.
    #[serde(default = "depth")]
    pub depth: usize,
    /// Whether a member that misses a copy tells all others to exit.
    #[serde(default = "yes")]
    pub exit_together: bool,
    /// Between two messages *exit* or *ready* (µs).
    #[serde(default = "retry")]
    pub retry_us: u32,
    /// Least mean time between requests (µs); 0: no limit.
    #[serde(default)]
    pub rate_gap_us: u32,
    /// Requests that may come at once.
    #[serde(default = "one")]
    pub rate_burst: u8,
}

fn drift() -> u32 {
    100
}
fn depth() -> usize {
    1
}
fn yes() -> bool {
    true
}
fn retry() -> u32 {
    20_000
}

/// One member.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its id; members are ranked by it.
    pub id: u16,
    /// Its address on each path.
    pub addresses: Vec<IpAddr>,
    /// Whether it joins later, and is no member at the start.
    #[serde(default)]
    pub joins: bool,
}

impl Group {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(path: &Path) -> Result<Self, Refusal> {
        let text = std::fs::read_to_string(path).map_err(|why| Refusal::new(format!("{}: {why}", path.display())))?;
        Self::parse(&text).map_err(|why| Refusal::new(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let group: Self = toml::from_str(text).map_err(|why| why.to_string())?;
        if !(1..=fide_wire::PATHS).contains(&group.trees.len()) {
            return Err(format!(
                "trees: {} multicast addresses, and there are 1 or {} paths",
                group.trees.len(),
                fide_wire::PATHS
            ));
        }
        if let Some(odd) = group.member.iter().find(|member| member.addresses.len() != group.trees.len()) {
            return Err(format!("member {}: as many addresses as trees are needed", odd.id));
        }
        let first = group.member.first().ok_or("a group needs a member")?.id;
        group.keys()?;
        group.setup(first)?.check(Built::default()).map_err(|why| format!("timing: {why}"))?;
        Ok(group)
    }

    fn keys(&self) -> Result<(u8, Key), String> {
        let Some(text) = &self.key else { return Ok((0, Key::PUBLIC)) };
        let key = (self.key_id, Key::from_hex(text).map_err(|why| why.to_string())?);
        Keyring::new(key, None).map_err(|why| why.to_string())?;
        Ok(key)
    }

    /// Settings of a member.
    ///
    /// # Errors
    /// If the group has no such member, or none that starts it.
    pub fn setup(&self, me: u16) -> Result<Setup, String> {
        let mut ids: Vec<MemberId> = self.member.iter().map(|member| MemberId(member.id)).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != self.member.len() {
            return Err("two members have the same id".into());
        }
        if !ids.contains(&MemberId(me)) {
            return Err(format!("there is no member {me} in this group"));
        }
        let starts = self.member.iter().filter(|member| !member.joins).map(|member| MemberId(member.id));
        let members: fide_proto::group::MemberSet = starts.collect();
        let leader = members.min().ok_or("a group needs a member that does not join later")?;
        let t = &self.timing;
        let config = lowi::Config {
            delta_w_ns: t.delta_w_us.unwrap_or(2 * t.delta_i_us).saturating_mul(1_000),
            drift_ppm: t.drift_ppm,
            paths: self.trees.len(),
            depth: t.depth,
            batch_entries_max: 1,
            batch_bytes_max: Built::default().value_max as usize,
            exit_together: t.exit_together,
            rounds_max: Built::default().window / 2,
            ..lowi::Config::new(t.period_us.saturating_mul(1_000), t.delta_i_us.saturating_mul(1_000))
        };
        Ok(Setup {
            config,
            ids,
            me: MemberId(me),
            members,
            begin: StartPoint { round: 0, leader, next: 1 },
            cluster: name_id(&self.cluster),
            sender: name_id(&format!("{}/{me}", self.group)),
            incarnation: 1,
            group: name_id(&self.group),
            generation: self.generation,
            key: self.keys()?,
            clk_ns: fide_rtl::model::CLK_NS.into(),
            retry_ns: t.retry_us.saturating_mul(1_000),
            rate: (t.rate_gap_us.saturating_mul(1_000), t.rate_burst.max(1)),
        })
    }

    /// Addresses of all members, by path.
    #[must_use]
    pub fn addresses(&self) -> BTreeMap<MemberId, Vec<IpAddr>> {
        self.member.iter().map(|member| (MemberId(member.id), member.addresses.clone())).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const TEXT: &str = r#"
cluster = "lab"
group = "orders"
generation = 1
port = 7440
trees = ["239.77.9.1", "239.77.9.2"]
key = "000102030405060708090a0b0c0d0e0f"
timing = { period_us = 20000, delta_i_us = 20000 }
member = [
  { id = 1, addresses = ["10.77.0.1", "10.77.1.1"] },
  { id = 2, addresses = ["10.77.0.2", "10.77.1.2"] },
  { id = 7, addresses = ["10.77.0.3", "10.77.1.3"], joins = true },
]
"#;

    pub(crate) fn group() -> Group {
        Group::parse(TEXT).unwrap()
    }

    #[test]
    fn a_file_becomes_the_settings_of_a_member() {
        let group = group();
        let setup = group.setup(7).unwrap();
        assert_eq!((setup.rank(MemberId(7)), setup.members.len(), setup.keys().sending().0), (Some(2), 2, 1));
        assert_eq!(setup.config.delta_w_ns, 40_000_000);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refused = |from: &str, to: &str| {
            assert!(TEXT.contains(from));
            Group::parse(&TEXT.replace(from, to)).unwrap_err()
        };
        assert!(refused("id = 2", "id = 1").contains("same id"));
        assert!(refused("\"239.77.9.1\", ", "").contains("as many addresses"));
        assert!(refused("000102", "00010").contains("32 hexadecimal digits"));
        assert!(refused("port", "prot").contains("prot"));
        assert!(refused("period_us = 20000", "period_us = 5000").contains("period is so short"));
        assert!(Group::parse(TEXT).unwrap().setup(3).unwrap_err().contains("no member 3"));
    }
}
