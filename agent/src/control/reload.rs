//! Reading the configuration again: what is taken over at once, what waits for a restart, what could not be done.

use super::{Control, LoopRequest, Standing};
use crate::access;
use crate::config::{self, Config, Live};
use crate::core::requests::Answer;
use crate::select::Limit;
use crate::watchlist::Origin;
use crate::worker::Found;
use fide_wire::control::Reloaded;
use fide_wire::level::RELOAD_EVENT_CODE;

impl Control {
    /// What reads the file again: not this thread, for which a disk that hangs would stop the
    /// world.
    pub(super) fn read_configuration(&self) -> impl FnOnce(&Limit) -> Found + Send + use<> {
        let path = self.config_path.clone();
        move |_| Found::Configuration(Box::new(Config::load(&path).map_err(|e| e.to_string())))
    }

    /// Takes over what a running agent can of the file that was read. One that is refused changes
    /// nothing.
    pub(super) fn reload(&mut self, read: Result<Config, String>) -> Result<Reloaded, String> {
        let new = read.map_err(|e| format!("the configuration stays as it was: {e}"))?;
        let changes = config::diff(&self.config, &new);
        // What root has ended since comes back.
        let stands = |w: &&config::Watch| self.standing.iter().any(|s| s.name == w.name && s.origin == Origin::Config);
        let back: Vec<config::Watch> =
            new.watches.iter().filter(|w| !stands(w) && !changes.live.watches_added.contains(w)).cloned().collect();
        let mut reloaded = Reloaded {
            changed: described(&changes.live),
            watched_again: back.iter().map(|w| w.name.clone()).collect(),
            needs_restart: changes.needs_restart.clone(),
            refused: Vec::new(),
            doubtful: new.doubts(),
        };
        if changes.is_empty() && back.is_empty() {
            return Ok(reloaded);
        }
        self.take_over_watches(&changes.live, &back);
        reloaded.refused = self.take_over_settings(&new, &changes.live);
        self.config.take_live(&new);
        if changes.live.keys {
            self.spread_keys();
        }
        let summary = summary(&reloaded);
        self.core.note(RELOAD_EVENT_CODE, summary);
        self.renew_watches();
        Ok(reloaded)
    }

    fn take_over_watches(&mut self, live: &Live, back: &[config::Watch]) {
        for w in &live.watches_removed {
            if let Some(i) = self.standing.iter().position(|s| s.name == w.name && s.origin == Origin::Config)
                && let Some(app) = self.standing.remove(i).app
            {
                if let Some(probes) = &self.probes {
                    probes.remove(app);
                }
                self.core.tell(LoopRequest::Unwatch(app, Answer::unwanted()));
            }
        }
        for w in &live.tended {
            let Some(s) = self.standing.iter_mut().find(|s| s.name == w.name && s.origin == Origin::Config) else { continue };
            let probes_otherwise = s.progress != w.progress;
            s.progress.clone_from(&w.progress);
            s.end_connections.clone_from(&w.end_connections);
            let Some(app) = s.app else { continue };
            let pid = self.core.ask(|answer| LoopRequest::Identity(app, answer)).map_or(0, |process| process.pid);
            if probes_otherwise {
                self.probe(app, &w.name, pid, w.progress.clone());
            }
            if let Ok(process) = self.resolver.target(pid)
                && let Err(e) = self.end_connections_of(app, &w.name, &process, w.end_connections.clone())
            {
                tracing::warn!("the connections of {} do not end with it: {e}", w.name);
            }
        }
        self.standing.extend(live.watches_added.iter().chain(back).map(Standing::configured));
    }

    /// What of it could not be done.
    fn take_over_settings(&mut self, new: &Config, live: &Live) -> Vec<String> {
        let mut refused = Vec::new();
        if live.keys {
            self.core.tell(LoopRequest::SetKeys(Box::new(new.keyring)));
        }
        if live.contract {
            self.core.tell(LoopRequest::SetCalibration(Box::new(crate::settings::calibration(new))));
        }
        if live.witness {
            self.core.tell(LoopRequest::SetWitness(new.witness.clone()));
        }
        if live.groups {
            self.core.tell(LoopRequest::SetGroupPlans(new.groups.clone()));
        }
        if live.access {
            let (policy, warnings) = access::Policy::new(&new.access);
            self.policy = policy;
            // Sessions that are open keep no right that was taken away.
            self.core.tell(LoopRequest::SetGroupPolicy(Box::new(self.policy.groups().clone())));
            for w in warnings {
                tracing::warn!("{w}");
            }
        }
        if live.socket_permissions
            && let Err(e) = crate::settings::set_permissions(&new.socket)
        {
            tracing::error!("{e}");
            refused.push(e.to_string());
        }
        refused.extend(self.integrations.reload(new, live, &self.core));
        if live.history_size {
            self.history.set_max_bytes(new.history.max_bytes);
        }
        refused
    }
}

/// What is taken over, one entry for each watch and section.
fn described(live: &Live) -> Vec<String> {
    let names = |watches: &[config::Watch]| watches.iter().map(|w| w.name.clone()).collect::<Vec<_>>();
    let (added, removed) = (names(&live.watches_added), names(&live.watches_removed));
    let mut changed = Vec::new();
    for name in &added {
        let how = if removed.contains(name) { "changed" } else { "new" };
        changed.push(format!("watch {name} ({how})"));
    }
    changed.extend(removed.iter().filter(|name| !added.contains(name)).map(|name| format!("watch {name} (removed)")));
    changed.extend(live.tended.iter().map(|w| format!("watch {} (its progress probe or connections)", w.name)));
    changed.extend(live.names().into_iter().filter(|section| *section != "watch").map(String::from));
    changed
}

/// In words, for the log and the history.
fn summary(reloaded: &Reloaded) -> String {
    let parts = [
        ("taken over", &reloaded.changed),
        ("watched again", &reloaded.watched_again),
        ("waiting for a restart of the agent", &reloaded.needs_restart),
        ("refused", &reloaded.refused),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(what, list)| format!("{what}: {}", list.join(", ")))
        .collect();
    format!("configuration reloaded: {}", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reload_takes_over_is_named_one_by_one() {
        let parse = |text: &str| Config::parse(&format!("node = \"a\"\n{text}")).unwrap();
        let old = parse("[[watch]]\nname = \"x\"\npid = 1\n[[watch]]\nname = \"y\"\npid = 2\n");
        let new = parse(
            "heartbeat = \"2ms\"\n[[watch]]\nname = \"x\"\npid = 3\n[[watch]]\nname = \"z\"\npid = 4\n\
             [[hook]]\non = [\"any\"]\ncommand = [\"/x\"]",
        );
        let changes = config::diff(&old, &new);
        let changed = described(&changes.live);
        assert_eq!(changed, ["watch x (changed)", "watch z (new)", "watch y (removed)", "hook"]);
        let reloaded = Reloaded { changed, needs_restart: changes.needs_restart, ..Reloaded::default() };
        assert_eq!(
            summary(&reloaded),
            "configuration reloaded: taken over: watch x (changed), watch z (new), watch y (removed), hook; \
             waiting for a restart of the agent: heartbeat"
        );
    }
}
