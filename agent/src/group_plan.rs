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
    /// Its first engine, if it is named.
    pub engine: Option<Kind>,
    /// What it makes of inferred verdicts, if that is named.
    pub policy: Option<Policy>,
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
            "no engine {name:?} here: there are huc (one message delay, on heartbeats), hsuc (three, on links alone), lowi (one, and a member that misses a frame \
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
    pub fn new(
        name: &str,
        hosts: Vec<String>,
        (engine_name, policy_name): (Option<&str>, Option<&str>),
        durable: bool,
    ) -> Result<Self, String> {
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
        let of = |why: String| format!("group `{name}`: {why}");
        let engine = engine_name.map(engine).transpose().map_err(of)?;
        let policy = policy_name.map(policy).transpose().map_err(of)?;
        if let (Some(engine), Some(policy)) = (engine, policy)
            && !policy.suits(engine)
        {
            return Err(of(format!(
                "{engine} cannot keep the policy {}: it elects by silence, without asking anybody",
                policy.name()
            )));
        }
        Ok(Self { name: name.into(), hosts, engine, policy, durable })
    }
}

/// What a group begins with, and why, for people; empty where both were named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its first engine.
    pub engine: Kind,
    /// What it makes of inferred verdicts.
    pub policy: Policy,
    /// Why, and what would change it.
    pub why: String,
}

/// A group that loses nothing, unless another one is asked for: by fences where all hosts have one
/// that counts (armed, of mode *acknowledged*, by a majority or all), by a majority where none has.
/// `fences`: each host, and whether it has one.
///
/// # Errors
/// What is to be named, because either would surprise.
pub fn choose(engine: Option<Kind>, policy: Option<Policy>, fences: &[(String, bool)]) -> Result<Choice, String> {
    const COUNTS: &str = "mode \"acknowledged\", by a majority or all, and armed";
    let hosts = |has: bool| fences.iter().filter(|(_, fence)| *fence == has).map(|(host, _)| host.as_str()).collect::<Vec<_>>();
    let (with, without) = (hosts(true).join(", "), hosts(false).join(", "));
    let of = |engine, policy, why: String| Ok(Choice { engine, policy, why });
    match (engine, policy) {
        (engine, Some(policy)) => of(engine.unwrap_or(Kind::Huc), policy, String::new()),
        // A majority decides, whatever is made of silence.
        (Some(Kind::Raft), None) => {
            of(Kind::Raft, if without.is_empty() { Policy::Fence } else { Policy::TrustContract }, String::new())
        }
        (engine, None) if without.is_empty() && engine.is_none_or(|engine| Policy::Fence.suits(engine)) => of(
            engine.unwrap_or(Kind::Huc),
            Policy::Fence,
            "policy fence, because every host has one that counts; --policy or --engine name another one".into(),
        ),
        (Some(engine), None) => Err(format!(
            "{engine} without a policy needs a fence that counts ({COUNTS}) on every host, and {}: name one. --policy trust-contract \
             believes that silence is a crash, so that a clean cut of both networks has both sides decide; --engine raft decides by a majority",
            if without.is_empty() { "cannot keep the policy fence".into() } else { format!("{without} has none") }
        )),
        (None, None) if with.is_empty() => {
            let two = if fences.len() == 2 { "; of two hosts both must live, so that it survives no crash" } else { "" };
            of(
                Kind::Raft,
                Policy::TrustContract,
                format!(
                    "engine raft, because no host has a fence that counts ({COUNTS}): a majority decides{two}. With fences, or by --engine and \
                     --policy, it is another one"
                ),
            )
        }
        (None, None) => Err(format!(
            "{with} has a fence that counts ({COUNTS}) and {without} has none: give every host one, or name --policy or --engine"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fences(has: &[bool]) -> Vec<(String, bool)> {
        has.iter().enumerate().map(|(at, has)| (format!("h{}", at + 1), *has)).collect()
    }

    #[test]
    fn without_a_word_a_group_loses_nothing() {
        let of = |engine, policy, has: &[bool]| choose(engine, policy, &fences(has)).map(|c| (c.engine, c.policy, c.why));
        let (engine, policy, why) = of(None, None, &[true; 3]).unwrap();
        assert_eq!((engine, policy), (Kind::Huc, Policy::Fence));
        assert!(why.contains("every host has one"), "{why}");
        let (engine, _, why) = of(None, None, &[false; 3]).unwrap();
        assert!(engine == Kind::Raft && why.contains("a majority decides.") && !why.contains("two"), "{why}");
        let (_, _, why) = of(None, None, &[false; 2]).unwrap();
        assert!(why.contains("survives no crash"), "{why}");
        let why = of(None, None, &[true, false, true]).unwrap_err();
        assert!(why.starts_with("h1, h3 has") && why.contains("h2 has none"), "{why}");
        assert_eq!(of(Some(Kind::Hsuc), None, &[true; 3]).unwrap().0, Kind::Hsuc);
        let why = of(Some(Kind::Huc), None, &[false; 3]).unwrap_err();
        assert!(why.contains("h1, h2, h3 has none") && why.contains("both sides decide"), "{why}");
        let why = of(Some(Kind::Lowi), None, &[true; 3]).unwrap_err();
        assert!(why.contains("cannot keep the policy fence"), "{why}");
        assert_eq!(of(Some(Kind::Raft), None, &[false, true]).unwrap().2, "");
    }

    #[test]
    fn what_is_named_is_taken() {
        let of = |engine, policy| choose(engine, Some(policy), &fences(&[false, true])).unwrap();
        let plain = |engine, policy| Choice { engine, policy, why: String::new() };
        assert_eq!(of(None, Policy::TrustContract), plain(Kind::Huc, Policy::TrustContract));
        assert_eq!(of(Some(Kind::Lowi), Policy::TrustContract), plain(Kind::Lowi, Policy::TrustContract));
    }
}
