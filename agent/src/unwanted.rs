//! What comes and nobody wanted, told once with its sender.
//!
//! Packets of strangers are dropped where they come in, and counted. An operator hears of them when there are many, or when already one says that something is
//! wrong: at once, and every ten minutes while it goes on.

use crate::receive::Came;
use fide_wire::packet::Refusal;
use fide_xdp::layout::Unwanted;
use std::fmt::Write as _;

/// So many in a second are told.
const MANY: u64 = 1000;
/// The same of packets of former incarnations: a host that was given up sends its heartbeats on both
/// paths until it has heard of that, and is no stranger.
const MANY_OLD: u64 = 10 * MANY;
/// How often what goes on is told again.
const AGAIN_NS: u64 = 600_000_000_000;
/// Codes of the event beside 0 (another cluster or key): what it is.
const CODE_ECHO: i32 = 1;
const CODE_PROBE: i32 = 2;
const CODE_TCP: i32 = 3;
const CODE_OWN_MAC: i32 = 4;
const CODE_REFUSED: i32 = 5;
/// Of another host: it says that its MAC is taken.
pub const CODE_DIVERTED: i32 = 6;

/// One thing that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Unwanted(Unwanted),
    Refused(Refusal),
}

/// Those that are told, from how many in a second on. Packets of another cluster or key have an event of their own.
const TOLD: [(What, u64); 11] = [
    (What::Unwanted(Unwanted::Echo), MANY),
    (What::Unwanted(Unwanted::Probe), MANY),
    (What::Unwanted(Unwanted::Tcp), MANY),
    (What::Unwanted(Unwanted::OwnMac), 1),
    (What::Refused(Refusal::RateLimited), 1),
    (What::Refused(Refusal::OldNumber), MANY),
    (What::Refused(Refusal::OldIncarnation), MANY_OLD),
    (What::Refused(Refusal::Own), MANY),
    (What::Refused(Refusal::UnknownSender), MANY),
    (What::Refused(Refusal::Short), MANY),
    (What::Refused(Refusal::Magic), MANY),
];

/// How many of each there were, and when that was told.
#[derive(Debug, Default)]
pub struct Watch {
    seen: [(u64, Option<u64>); TOLD.len()],
}

impl Watch {
    /// Once a second: what is to be told now, and how many have come since the last look.
    pub(crate) fn look(&mut self, count: impl Fn(What) -> u64, now: u64) -> Vec<(What, u64)> {
        let mut due = Vec::new();
        for ((what, from), (seen, told_ns)) in TOLD.into_iter().zip(&mut self.seen) {
            let count = count(what);
            let grew = count.saturating_sub(std::mem::replace(seen, count));
            if grew >= from && told_ns.is_none_or(|told| now.saturating_sub(told) >= AGAIN_NS) {
                *told_ns = Some(now);
                due.push((what, grew));
            }
        }
        due
    }
}

impl Watch {
    /// Whether an operator hears of these packets at all: of questions and late answers, of which
    /// a healthy cluster has some, only once there were many of them.
    pub(crate) fn is_told(&self, what: What) -> bool {
        let is_usual = matches!(what, What::Unwanted(Unwanted::Echo | Unwanted::Probe | Unwanted::Tcp));
        let mut of = TOLD.iter().zip(&self.seen).filter(|((told, _), _)| *told == what);
        !is_usual || of.any(|(_, (_, told_ns))| told_ns.is_some())
    }
}

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{}{byte:02x}", if text.is_empty() { "" } else { ":" });
        text
    })
}

/// Where the last one came from, in words.
fn sender((_, last, path): &Came) -> String {
    let address = last.address().map_or_else(|| "no IP address".into(), |a| a.to_string());
    match last.mac {
        [0, 0, 0, 0, 0, 0] => format!("{address} on path {path}"),
        mac => format!("{address} ({}) on path {path}", mac_text(mac)),
    }
}

pub(crate) fn words(what: What, grew: u64, came: &Came) -> (i32, String) {
    let from = sender(came);
    match what {
        What::Unwanted(Unwanted::Echo) => (
            CODE_ECHO,
            format!(
                "{grew} answers to questions that this host did not ask came within a second, the last from {from}: they are dropped"
            ),
        ),
        What::Unwanted(Unwanted::Probe) => {
            (CODE_PROBE, format!("{grew} questions by UDP came within a second, the last from {from}: they are dropped"))
        }
        What::Unwanted(Unwanted::Tcp) => (
            CODE_TCP,
            format!("{grew} answers by TCP to questions that this host did not ask came within a second, the last from {from}"),
        ),
        What::Unwanted(Unwanted::OwnMac) => (
            CODE_OWN_MAC,
            format!(
                "frames with this host's own MAC came in, the last from {from}: another station uses it, or the network returns frames; answers of this host may go astray, and others wait for its agent's timeout before they take it for dead"
            ),
        ),
        What::Refused(reason) => (
            CODE_REFUSED,
            format!("{grew} packets were refused within a second ({reason}), the last from {from}: they are dropped"),
        ),
    }
}

/// Packets of others, by why they were refused.
pub(crate) const FOREIGN: [(Refusal, &str); 4] = [
    (Refusal::Cluster, "of another cluster"),
    (Refusal::Key, "made with another key"),
    (Refusal::Mac, "made with another key or damaged"),
    (Refusal::Version, "of another version"),
];

/// `312 packets made with another key, the last from 10.0.0.9 (02:…) on path 0`; `None` if there were none.
pub(crate) fn foreign(came: &Came, what: &str) -> Option<String> {
    (came.0 > 0).then(|| format!("{} packets {what}, the last from {}", came.0, sender(came)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_xdp::layout::Source;

    #[test]
    fn what_goes_on_is_told_at_once_and_every_ten_minutes() {
        let mut watch = Watch::default();
        let mut told = Vec::new();
        for second in 0..1300u64 {
            // A thousand a second from the fifth second on; of our MAC one in the tenth.
            let count = |what| match what {
                What::Unwanted(Unwanted::Echo) => second.saturating_sub(4) * MANY,
                What::Unwanted(Unwanted::Probe) => second * (MANY - 1),
                What::Unwanted(Unwanted::OwnMac) => u64::from(second >= 10),
                _ => 0,
            };
            told.extend(watch.look(count, second * 1_000_000_000).into_iter().map(|(what, grew)| (second, what, grew)));
        }
        let echo = What::Unwanted(Unwanted::Echo);
        assert_eq!(told, [(5, echo, MANY), (10, What::Unwanted(Unwanted::OwnMac), 1), (605, echo, MANY), (1205, echo, MANY)]);
    }

    #[test]
    fn questions_and_late_answers_are_told_once_there_were_many() {
        let mut watch = Watch::default();
        let kinds = [Unwanted::Probe, Unwanted::Tcp, Unwanted::Echo];
        for second in 0..600 {
            assert_eq!(
                watch
                    .look(|_| second * (MANY - 1), second * 1_000_000_000)
                    .iter()
                    .filter(|(what, _)| kinds.iter().any(|k| *what == What::Unwanted(*k)))
                    .count(),
                0
            );
        }
        assert!(kinds.iter().all(|kind| !watch.is_told(What::Unwanted(*kind))));
        assert!(watch.is_told(What::Unwanted(Unwanted::OwnMac)) && watch.is_told(What::Refused(Refusal::Key)));
        watch.look(|what| if what == What::Unwanted(Unwanted::Probe) { 600 * MANY } else { 0 }, 600_000_000_000);
        assert!(watch.is_told(What::Unwanted(Unwanted::Probe)) && !watch.is_told(What::Unwanted(Unwanted::Tcp)));
    }

    #[test]
    fn the_sender_is_named() {
        let last = Source {
            count: 7,
            ip: 4,
            from: fide_xdp::layout::words([10, 0, 0, 9].into()),
            mac: [2, 0, 0, 0, 0, 0xab],
            ..Source::default()
        };
        for (what, _) in TOLD {
            let (code, text) = words(what, 4321, &(7, last, 1));
            assert!(code > 0 && text.contains("10.0.0.9 (02:00:00:00:00:ab) on path 1"), "{text}");
        }
        assert_eq!(sender(&(1, Source::default(), 0)), "no IP address on path 0");
        let told = foreign(&(16_755, last, 1), FOREIGN[1].1).unwrap();
        assert_eq!(told, "16755 packets made with another key, the last from 10.0.0.9 (02:00:00:00:00:ab) on path 1");
        assert_eq!(foreign(&(0, last, 1), ""), None);
    }
}
