//! Which verdicts a hook runs for, beside what happened and to whom.
//!
//! A verdict that was inferred may be wrong: a host whose cables are cut falls silent and goes on working. A program that
//! makes another process take over should therefore run for certain verdicts, and for inferred ones only where the fence
//! of the silent host has cut it off. That is `grade = ["certain", "fenced"]`.

use super::{Hook, HookAction};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Grade};
use serde::Deserialize;

/// How far a verdict can be relied on, as a hook names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// A kernel saw it, or it announced itself.
    Certain,
    /// Any verdict inferred from silence.
    Inferred,
    /// Inferred, and the fence of the host lets nothing out any more.
    Fenced,
    /// Inferred, and the fence of the host lets nothing out of its guarded cgroups any more; the rest of it may go on.
    FencedCgroups,
}

impl Trust {
    fn covers(self, event: &HistoryEvent) -> bool {
        match self {
            Trust::Certain => event.grade == Grade::Certain,
            Trust::Inferred => event.grade == Grade::Inferred,
            Trust::Fenced => event.grade == Grade::Inferred && event.is_fenced(),
            Trust::FencedCgroups => event.grade == Grade::Inferred && event.is_partly_fenced(),
        }
    }
}

/// What of a hook's events it runs for. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookFilter {
    /// Only if one of these holds; all if it is empty.
    pub grade: Vec<Trust>,
    /// Only these of the causes; all if it is empty.
    pub cause: Vec<Cause>,
    /// Only when the fence has cut off the whole host (true), or has not (false).
    pub fenced: Option<bool>,
    /// Only ends that were meant (true: exit status 0, a leave), or only those that were not (false).
    pub planned: Option<bool>,
    /// Only what is in maintenance (true), or only what is not (false).
    pub maintenance: Option<bool>,
}

impl HookFilter {
    /// Whether an event passes.
    #[must_use]
    pub fn admits(&self, event: &HistoryEvent) -> bool {
        (self.grade.is_empty() || self.grade.iter().any(|trust| trust.covers(event)))
            && (self.cause.is_empty() || self.cause.contains(&event.cause))
            && self.fenced.is_none_or(|wanted| wanted == event.is_fenced())
            && self.planned.is_none_or(|wanted| wanted == event.is_planned())
            && self.maintenance.is_none_or(|wanted| wanted == event.maintenance.is_some())
    }

    fn says_nothing_of_trust(&self) -> bool {
        self.grade.is_empty() && self.fenced.is_none()
    }

    fn waits_for_a_fence(&self) -> bool {
        let by_grade = self.grade.iter().any(|t| matches!(t, Trust::Fenced | Trust::FencedCgroups));
        self.fenced == Some(true) || by_grade && !self.grade.contains(&Trust::Inferred)
    }
}

/// What is doubtful about a hook: programs that act on a silence that nothing backs.
pub(super) fn doubt(hook: &Hook, has_fence: bool) -> Option<String> {
    let silence = Cause::SilentHost;
    let runs_on = |cause| hook.on.contains(&cause) && (hook.filter.cause.is_empty() || hook.filter.cause.contains(&cause));
    // A hook for everything writes things down.
    let for_everything = Cause::ALL.into_iter().all(runs_on);
    if has_fence || hook.action != HookAction::Run || !runs_on(silence) || for_everything {
        return None;
    }
    let program = hook.command.first().map_or("", String::as_str);
    if hook.filter.waits_for_a_fence() {
        return Some(format!(
            "hook {program} runs for a silent host only if that host is fenced, and no [fence] is configured here: \
             if it is not on the other hosts either, this hook never runs when a host fails; see `mode` in [fence]"
        ));
    }
    hook.filter.says_nothing_of_trust().then(|| {
        format!(
            "hook {program} also runs for {silence}, which is inferred: a host whose cables are cut is silent and goes on \
             working, so a program that promotes a replica would make two masters; write grade = [\"certain\", \"fenced\"] \
             in this [[hook]] and configure a [fence] on every host, or grade = [\"certain\", \"inferred\"] if the program \
             only tells somebody"
        )
    })
}
