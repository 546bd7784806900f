//! What the live view shows and what a key does to it. Pure: messages in, state and at most one action out.

use crate::render::explain::{self, Explanation};
use crate::style::Style;
use fide_wire::control::{HistoryEvent, HostStatus, Status};
use std::collections::{HashMap, VecDeque};

/// Events that are kept.
const EVENTS: usize = 1000;
/// Points of a sparkline.
pub const SPARK: usize = 24;
/// Lines that a page key moves.
const PAGE: usize = 10;

/// A key, whatever it is called on the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// End.
    Quit,
    /// One up.
    Up,
    /// One down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the first.
    Home,
    /// To the last.
    End,
    /// To the other list.
    Other,
    /// Show more of what is selected.
    Enter,
    /// Back.
    Back,
    /// Which keys there are.
    Help,
    /// The processes of all hosts.
    Processes,
    /// Begin a filter of events.
    Filter,
    /// One character of the filter.
    Text(char),
    /// One character of the filter less.
    Erase,
}

/// What the keys do, for `?`.
const HELP: [&str; 8] = [
    "↑ ↓ k j, PgUp PgDn, Home End    move",
    "Tab                             hosts or events",
    "Enter                           a host in full; a verdict and its evidence",
    "p                               processes of all hosts",
    "/                               only events with this text, Enter keeps it; Esc shows all again",
    "Esc                             back",
    "?                               this",
    "q                               quit",
];
/// The title of the list of processes, which is kept up to date.
const PROCESSES: &str = "processes of all hosts";

/// What happens to the view.
#[derive(Debug)]
pub enum Message {
    /// A key.
    Key(Key),
    /// The agent's status.
    Status(Box<Status>),
    /// The agent cannot be asked, and why.
    Lost(String),
    /// An event of the history.
    Event(Box<HistoryEvent>),
    /// A verdict with its evidence.
    Explained(Box<HistoryEvent>),
    /// It was refused, and why.
    Refused(String),
    /// Nothing.
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// End.
    Quit,
    /// Ask for the event with this number.
    Explain(u64),
}

/// The lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// Hosts.
    Hosts,
    /// Events.
    Events,
}

/// A text over the lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Popup {
    /// Its title.
    pub title: String,
    /// Its lines.
    pub lines: Vec<String>,
    /// The first that is shown.
    pub scroll: usize,
}

/// Everything shown.
#[derive(Debug)]
pub struct Model {
    /// The last status.
    pub status: Status,
    /// Why the agent cannot be asked now.
    pub lost: Option<String>,
    /// The newest at the end.
    pub events: VecDeque<HistoryEvent>,
    /// Largest jitter of each window, by node and path.
    jitter: HashMap<(u32, usize), VecDeque<u64>>,
    /// The list that keys move in.
    pub focus: Focus,
    /// Selected host.
    pub host: usize,
    /// Selected event, counted from the newest.
    pub event: usize,
    /// What lies over the lists.
    pub popup: Option<Popup>,
    /// Only events and processes with this text are shown.
    pub filter: String,
    /// Keys are text of the filter now.
    pub is_typing: bool,
    one_machine: bool,
}

impl Model {
    /// Nothing known yet. `one_machine`: the agent is a lab's.
    pub fn new(one_machine: bool) -> Self {
        Model {
            status: Status::default(),
            lost: None,
            events: VecDeque::new(),
            jitter: HashMap::new(),
            focus: Focus::Events,
            host: 0,
            event: 0,
            popup: None,
            filter: String::new(),
            is_typing: false,
            one_machine,
        }
    }

    /// Takes something in.
    pub fn update(&mut self, message: Message) -> Option<Action> {
        match message {
            Message::Key(key) => return self.key(key),
            Message::Status(status) => self.take_status(*status),
            Message::Lost(why) => self.lost = Some(why),
            Message::Event(event) => self.take_event(*event),
            Message::Explained(event) => self.explain(&event),
            Message::Refused(why) => self.popup = Some(Popup { title: "refused".into(), lines: vec![why], scroll: 0 }),
            Message::Tick => {}
        }
        None
    }

    fn take_status(&mut self, status: Status) {
        for host in &status.hosts {
            for (path, p) in host.paths.iter().enumerate() {
                let series = self.jitter.entry((host.node_id, path)).or_default();
                series.push_back(p.jitter_ns[3]);
                if series.len() > SPARK {
                    series.pop_front();
                }
            }
        }
        let known: Vec<u32> = status.hosts.iter().map(|h| h.node_id).collect();
        self.jitter.retain(|(node, _), _| known.contains(node));
        // The selection stays with its host when hosts come and go.
        let selected = self.status.hosts.get(self.host).map(|h| h.node_id);
        let at = status.hosts.iter().position(|h| Some(h.node_id) == selected);
        self.host = at.unwrap_or(self.host).min(status.hosts.len().saturating_sub(1));
        self.status = status;
        self.lost = None;
        let lines = self.popup.as_ref().is_some_and(|popup| popup.title == PROCESSES).then(|| self.processes());
        if let (Some(popup), Some(lines)) = (&mut self.popup, lines) {
            popup.scroll = popup.scroll.min(lines.len().saturating_sub(1));
            popup.lines = lines;
        }
    }

    /// The events that are shown, the newest first.
    pub fn shown_events(&self) -> impl Iterator<Item = &HistoryEvent> {
        self.events.iter().rev().filter(|event| matches(&self.filter, event))
    }

    /// One line for each process of every host, of those that the filter leaves.
    fn processes(&self) -> Vec<String> {
        let s = &self.status;
        let own = s.watched.iter().map(|w| (format!("{}@{}", w.name, s.node), w.state.as_str()));
        let others = s.hosts.iter().flat_map(|h| h.apps.iter().map(|a| (format!("{}@{}", a.name, h.name), a.state.as_str())));
        let line = |(name, state): (String, &str)| format!("{name:<40} {state}");
        let mut lines: Vec<String> = own.chain(others).map(line).filter(|line| line.contains(&self.filter)).collect();
        lines.sort();
        if lines.is_empty() {
            lines.push("none is watched".into());
        }
        lines
    }

    fn take_event(&mut self, event: HistoryEvent) {
        // After a reconnection some may come twice.
        if self.events.back().is_some_and(|last| last.seq >= event.seq && last.wall_ns >= event.wall_ns) {
            return;
        }
        let is_shown = matches(&self.filter, &event);
        self.events.push_back(event);
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
        // What is being looked at stays under the cursor; at the newest, the cursor stays with the newest.
        if self.event > 0 && is_shown {
            self.event = (self.event + 1).min(self.shown_events().count() - 1);
        }
    }

    /// The jitter of a path, oldest first.
    pub fn spark(&self, node: u32, path: usize) -> Vec<u64> {
        self.jitter.get(&(node, path)).map(|s| s.iter().copied().collect()).unwrap_or_default()
    }

    /// The selected event.
    pub fn selected_event(&self) -> Option<&HistoryEvent> {
        self.shown_events().nth(self.event)
    }

    fn key(&mut self, key: Key) -> Option<Action> {
        if key == Key::Quit {
            return Some(Action::Quit);
        }
        if self.is_typing {
            match key {
                Key::Text(c) => self.filter.push(c),
                Key::Erase => drop(self.filter.pop()),
                Key::Enter => self.is_typing = false,
                Key::Back => (self.is_typing, self.filter) = (false, String::new()),
                _ => {}
            }
            self.event = 0;
            return None;
        }
        if let Some(popup) = &mut self.popup {
            let last = popup.lines.len().saturating_sub(1);
            match moved(popup.scroll, last, key) {
                Some(to) => popup.scroll = to,
                None if matches!(key, Key::Back | Key::Enter) => self.popup = None,
                None => {}
            }
            return None;
        }
        let shown = self.shown_events().count();
        let (cursor, count) = match self.focus {
            Focus::Hosts => (&mut self.host, self.status.hosts.len()),
            Focus::Events => (&mut self.event, shown),
        };
        if let Some(to) = moved(*cursor, count.saturating_sub(1), key) {
            *cursor = to;
            return None;
        }
        match key {
            Key::Other => {
                self.focus = if self.focus == Focus::Hosts { Focus::Events } else { Focus::Hosts };
                None
            }
            Key::Enter if self.focus == Focus::Hosts => {
                if let Some(host) = self.status.hosts.get(self.host) {
                    self.popup = Some(Popup { title: host.name.clone(), lines: details(host), scroll: 0 });
                }
                None
            }
            Key::Enter => {
                let event = self.selected_event()?.clone();
                // The history may hold more than what was sent with the stream.
                if event.id.is_some() && event.evidence.is_none() {
                    return Some(Action::Explain(event.seq));
                }
                self.explain(&event);
                None
            }
            Key::Help => {
                self.popup = Some(Popup { title: "keys".into(), lines: HELP.map(String::from).into(), scroll: 0 });
                None
            }
            Key::Processes => {
                self.popup = Some(Popup { title: PROCESSES.into(), lines: self.processes(), scroll: 0 });
                None
            }
            Key::Filter => {
                (self.is_typing, self.filter, self.focus, self.event) = (true, String::new(), Focus::Events, 0);
                None
            }
            // From the lists there is only the filter to go back from.
            Key::Back => {
                (self.filter, self.event) = (String::new(), 0);
                None
            }
            _ => None,
        }
    }

    fn explain(&mut self, event: &HistoryEvent) {
        let explanation = Explanation::of(event, self.one_machine);
        let text = explain::text(event, &explanation, &Style::default());
        let title = event.unique_id().map_or_else(|| format!("event {}", event.seq), |id| format!("verdict {id}"));
        self.popup = Some(Popup { title, lines: text.lines().map(String::from).collect(), scroll: 0 });
    }
}

/// Whether an event has this text in what is shown of it.
fn matches(filter: &str, event: &HistoryEvent) -> bool {
    let subject = crate::render::event::subject(event);
    filter.is_empty() || event.text.contains(filter) || subject.contains(filter) || event.cause.name().contains(filter)
}

/// Where a key moves a cursor between 0 and `last`; `None` for keys that do not move.
fn moved(at: usize, last: usize, key: Key) -> Option<usize> {
    let to = match key {
        Key::Up => at.saturating_sub(1),
        Key::Down => at + 1,
        Key::PageUp => at.saturating_sub(PAGE),
        Key::PageDown => at + PAGE,
        Key::Home => 0,
        Key::End => last,
        _ => return None,
    };
    Some(to.min(last))
}

/// A host in full.
fn details(host: &HostStatus) -> Vec<String> {
    use crate::render::status::{age, contract};
    use crate::units::{exact_ns, ns, signed_ns};
    let mut lines = vec![
        format!("{}: {}, incarnation {}, node id {:08x}", host.name, host.state, host.incarnation, host.node_id),
        format!("timeout towards it {}", exact_ns(host.timeout_ns)),
    ];
    for (i, p) in host.paths.iter().enumerate() {
        lines.push(String::new());
        lines.push(format!(
            "path {i}: {}, last number {} {}, {} lost",
            if p.up { "up" } else { "down" },
            p.last_number,
            match age(p) {
                never if never == "never" => "(never heard)".to_owned(),
                age => format!("{age} ago"),
            },
            p.lost
        ));
        lines.push(format!("  contract {}: timeout {}", contract(&p.contract), exact_ns(p.contract.timeout_ns())));
        let [p50, p99, p999, max] = p.jitter_ns.map(ns);
        lines.push(format!("  jitter p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}; margin {}", signed_ns(p.margin_ns)));
    }
    lines.push(String::new());
    if host.apps.is_empty() {
        lines.push("none of its processes is monitored".into());
    }
    lines.extend(host.apps.iter().map(|a| format!("{}@{}: {}", a.name, host.name, a.state)));
    lines
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::render::status::tests::fixed;
    use fide_explain::samples::killed;

    /// A model with the fixed status and a few events.
    pub fn model() -> Model {
        let mut model = Model::new(true);
        model.update(Message::Status(Box::new(fixed())));
        for seq in 1..=5 {
            model.update(Message::Event(Box::new(HistoryEvent { seq, ..killed() })));
        }
        model
    }

    fn press(model: &mut Model, keys: &[Key]) -> Option<Action> {
        keys.iter().fold(None, |_, k| model.update(Message::Key(*k)))
    }

    #[test]
    fn enter_asks_for_a_verdict_and_its_answer_lies_over_the_lists() {
        let mut m = model();
        // By its number: its id may be that of an older verdict as well.
        assert_eq!(press(&mut m, &[Key::Enter]), Some(Action::Explain(5)));
        m.update(Message::Explained(Box::new(killed())));
        assert!(m.popup.as_ref().unwrap().lines[0].contains("00abcdef-00000003-17"));
        press(&mut m, &[Key::Down]);
        assert_eq!(m.popup.as_ref().unwrap().scroll, 1);
        press(&mut m, &[Key::Back]);
        assert_eq!(m.popup, None);
    }

    #[test]
    fn a_cursor_stays_on_the_event_it_is_on_while_new_ones_come() {
        let mut m = model();
        press(&mut m, &[Key::Down, Key::Down]);
        assert_eq!(m.selected_event().unwrap().seq, 3);
        m.update(Message::Event(Box::new(HistoryEvent { seq: 6, ..killed() })));
        assert_eq!(m.selected_event().unwrap().seq, 3);
        press(&mut m, &[Key::Home]);
        m.update(Message::Event(Box::new(HistoryEvent { seq: 7, ..killed() })));
        assert_eq!(m.selected_event().unwrap().seq, 7);
    }

    #[test]
    fn a_filter_leaves_events_with_its_text_until_it_is_taken_back() {
        let mut m = model();
        m.update(Message::Event(Box::new(HistoryEvent { seq: 6, app: Some("db".into()), text: "db left".into(), ..killed() })));
        press(&mut m, &[Key::Filter, Key::Text('d'), Key::Text('b'), Key::Text('x'), Key::Erase]);
        assert!(m.is_typing && m.filter == "db" && m.shown_events().count() == 1);
        press(&mut m, &[Key::Enter, Key::Down]);
        assert_eq!(m.selected_event().unwrap().seq, 6);
        press(&mut m, &[Key::Back]);
        assert_eq!(m.shown_events().count(), 6);
        press(&mut m, &[Key::Filter, Key::Text('#')]);
        assert_eq!(press(&mut m, &[Key::Enter, Key::Enter, Key::Down]), None, "nothing is shown, and nothing is selected");
    }

    #[test]
    fn the_processes_of_all_hosts_are_listed_and_kept_up_to_date() {
        let mut m = model();
        press(&mut m, &[Key::Processes]);
        let lines = m.popup.clone().unwrap().lines;
        assert!(lines.iter().any(|l| l.starts_with("db@h1 ")) && lines.len() > 1, "{lines:?}");
        m.update(Message::Status(Box::default()));
        assert_eq!(m.popup.as_ref().unwrap().lines, ["none is watched"]);
        press(&mut m, &[Key::Back, Key::Help]);
        assert!(m.popup.unwrap().lines.iter().any(|l| l.starts_with("?")));
    }

    #[test]
    fn events_that_come_twice_are_shown_once() {
        let mut m = model();
        m.update(Message::Event(Box::new(HistoryEvent { seq: 5, ..killed() })));
        assert_eq!(m.events.len(), 5);
    }

    #[test]
    fn the_selection_stays_with_its_host() {
        let mut m = model();
        press(&mut m, &[Key::Other, Key::Down]);
        assert_eq!((m.focus, m.host), (Focus::Hosts, 1));
        let mut status = fixed();
        status.hosts.remove(0);
        m.update(Message::Status(Box::new(status)));
        assert_eq!(m.host, 0);
        m.update(Message::Status(Box::default()));
        assert_eq!(m.host, 0);
        assert_eq!(press(&mut m, &[Key::Enter, Key::End, Key::PageDown, Key::Back]), None);
    }

    #[test]
    fn jitter_is_remembered_for_a_while() {
        let mut m = Model::new(false);
        for _ in 0..SPARK + 5 {
            m.update(Message::Status(Box::new(fixed())));
        }
        assert_eq!(m.spark(2, 0), vec![120_000; SPARK]);
        m.update(Message::Status(Box::default()));
        assert!(m.spark(2, 0).is_empty());
    }

    #[test]
    fn a_lost_agent_is_told_until_it_answers() {
        let mut m = model();
        m.update(Message::Lost("gone".into()));
        assert_eq!(m.lost.as_deref(), Some("gone"));
        m.update(Message::Status(Box::new(fixed())));
        assert_eq!(m.lost, None);
    }
}
