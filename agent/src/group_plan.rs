//! Groups as the configuration names them, and which engines and policies this agent has.

use fide_proto::consensus::Kind;
use fide_proto::consensus::policy::Policy;
use fide_wire::names;

/// A group that this host begins, or joins, by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its name.
    pub name: String,
    /// Its hosts; the first one begins it, when all are there, and leads.
    pub hosts: Vec<String>,
    /// Its first engine.
    pub engine: Kind,
    /// What it makes of inferred verdicts.
    pub policy: Policy,
    /// Its log is on disk.
    pub durable: bool,
}

/// The engines that run on the wire.
pub const ENGINES: [Kind; 4] = [Kind::Huc, Kind::Hsuc, Kind::Lowi, Kind::Raft];
/// The policies that are kept on the wire.
pub const POLICIES: [Policy; 3] = Policy::ALL;

/// The engine of this name.
///
/// # Errors
/// Which ones there are.
pub fn engine(name: &str) -> Result<Kind, String> {
    ENGINES.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        format!(
            "no engine {name:?} here: there are huc (two message delays), hsuc (three, on links alone), lowi (one, and a member that misses a frame \
             stops) and raft (a majority, no timing assumption)"
        )
    })
}

/// The policy of this name.
///
/// # Errors
/// Which ones there are.
pub fn policy(name: &str) -> Result<Policy, String> {
    let known = POLICIES.into_iter().find(|policy| policy.name() == name);
    known.ok_or_else(|| format!("no policy {name:?} here: there are trust-contract, fence and witness"))
}

impl GroupPlan {
    /// A group as the configuration says it.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn new(name: &str, hosts: Vec<String>, engine_name: &str, policy_name: &str, durable: bool) -> Result<Self, String> {
        let max = fide_proto::services::groups::NAME_MAX;
        if name.is_empty() || name.len() > max || name.contains(char::is_control) {
            return Err(format!("a group's name has 1 to {max} bytes, all of them printable"));
        }
        let members = fide_proto::group::MAX_MEMBERS;
        if hosts.is_empty() || hosts.len() > members {
            return Err(format!("group `{name}`: hosts names 1 to {members} hosts, the first one leads"));
        }
        for (at, host) in hosts.iter().enumerate() {
            names::check_node(host).map_err(|why| format!("group `{name}`: host {host:?}: {why}"))?;
            if hosts[..at].contains(host) {
                return Err(format!("group `{name}`: {host} is named twice; a group has one member a host"));
            }
        }
        let (engine, policy) = (engine(engine_name), policy(policy_name));
        let of = |why: String| format!("group `{name}`: {why}");
        let (engine, policy) = (engine.map_err(of)?, policy.map_err(of)?);
        if !policy.suits(engine) {
            return Err(of(format!(
                "{engine} cannot keep the policy {}: it elects by silence, without asking anybody",
                policy.name()
            )));
        }
        Ok(Self { name: name.into(), hosts, engine, policy, durable })
    }
}
