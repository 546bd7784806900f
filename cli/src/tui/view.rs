//! Draws the model. Made for 80×24; smaller screens get what fits.

use super::model::{Focus, Model, Popup, SPARK};
use crate::render::event::{paint, subject};
use crate::render::state_paint;
use crate::render::status::{age, is_measured, margin_paint};
use crate::shown::shown;
use crate::style::Paint;
use crate::units::{long, ns, signed_ns};
use fide_wire::control::{HostStatus, PathStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, List, ListItem, ListState, Paragraph, Wrap};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let paths: usize = model.status.hosts.iter().map(|h| h.paths.len().max(1)).sum();
    // A border, a header, a line for each path; but never more than half.
    let wanted = u16::try_from(paths + 3).unwrap_or(u16::MAX).max(5);
    let hosts_height = wanted.min(frame.area().height / 2).max(4);
    let [head, hosts, events, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Length(hosts_height), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    draw_head(frame, head, model);
    draw_hosts(frame, hosts, model);
    draw_events(frame, events, model);
    let typed = format!(" filter: {}_   Enter keep   Esc all", shown(&model.filter, false));
    let keys = match (&model.popup, model.is_typing) {
        (_, true) => &typed,
        (Some(_), _) => " ↑↓ scroll   Enter/Esc back   q quit",
        _ => " ↑↓ Tab select   Enter explain   p processes   / filter   ? keys   q quit",
    };
    frame.render_widget(Line::from(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
    if let Some(popup) = &model.popup {
        draw_popup(frame, popup);
    }
}

fn style(paint: Paint) -> Style {
    match paint {
        Paint::Plain => Style::new(),
        Paint::Bold => Style::new().add_modifier(Modifier::BOLD),
        Paint::Dim => Style::new().add_modifier(Modifier::DIM),
        Paint::Red => Style::new().fg(Color::Red),
        Paint::Green => Style::new().fg(Color::Green),
        Paint::Yellow => Style::new().fg(Color::Yellow),
        Paint::Cyan => Style::new().fg(Color::Cyan),
    }
}

fn span(text: impl Into<String>, paint: Paint) -> Span<'static> {
    Span::styled(shown(&text.into(), false).into_owned(), style(paint))
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let s = &model.status;
    let [first, second] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let keys = if s.authenticated { span("authenticated", Paint::Green) } else { span("NOT authenticated", Paint::Yellow) };
    let title = vec![
        span(format!(" {}", s.node), Paint::Bold),
        span(format!("  cluster {}  up {}  ", s.cluster, long(s.uptime_s)), Paint::Plain),
        span(format!("{} / {} / {} / {}  ", s.profile, s.receive, s.send, s.exit_watch), Paint::Dim),
        keys,
    ];
    frame.render_widget(Line::from(title), first);
    let line = match &model.lost {
        Some(why) => Line::from(span(format!(" NO ANSWER: {why}"), Paint::Red)),
        None => {
            let mut spans = vec![span(format!(" timeout {}  ", ns(s.contract.timeout_ns())), Paint::Plain)];
            for p in &s.paths {
                let state = if p.up { "up" } else { "DOWN" };
                spans.push(span(format!("{} ", p.interface), Paint::Plain));
                spans.push(span(format!("{state}  "), state_paint(if p.up { "up" } else { "down" })));
            }
            let watched: Vec<String> = s.watched.iter().map(|w| format!("{} {}", w.name, w.state)).collect();
            spans.push(span(
                if watched.is_empty() { "watches nothing".into() } else { format!("watches {}", watched.join(", ")) },
                Paint::Plain,
            ));
            Line::from(spans)
        }
    };
    frame.render_widget(line, second);
}

fn block(title: &str, focused: bool) -> Block<'static> {
    let border = if focused { style(Paint::Cyan) } else { style(Paint::Dim) };
    Block::bordered().border_style(border).title(span(format!(" {title} "), Paint::Bold))
}

const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

fn draw_hosts(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let s = &model.status;
    let alive = s.hosts.iter().filter(|h| h.state == "alive").count();
    let focused = model.focus == Focus::Hosts;
    let block = block(&format!("hosts: {alive} of {} alive", s.hosts.len()), focused);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [header, list] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(inner);
    let titles = format!(
        "{:<12} {:<11} {:<5} {:>7} {:>8} {:>8} {:>6}  JITTER",
        "HOST", "STATE", "PATH", "AGE", "TIMEOUT", "MARGIN", "LOST"
    );
    frame.render_widget(Line::from(titles).style(style(Paint::Dim)), header);
    if s.hosts.is_empty() {
        frame.render_widget(Line::from("no other host has been heard yet"), list);
        return;
    }
    let items = s.hosts.iter().map(|h| ListItem::new(host_lines(h, model, inner.width)));
    let mut state = ListState::default().with_selected(focused.then_some(model.host));
    frame.render_stateful_widget(List::new(items).highlight_style(SELECTED), list, &mut state);
}

fn host_lines(host: &HostStatus, model: &Model, width: u16) -> Vec<Line<'static>> {
    let name = |first: bool| if first { clip(&host.name, 12) } else { String::new() };
    let head = |first: bool| {
        let state = if first { clip(&host.state, 11) } else { String::new() };
        vec![span(format!("{:<12} ", name(first)), Paint::Bold), span(format!("{state:<11} "), state_paint(&host.state))]
    };
    if host.paths.is_empty() {
        return vec![Line::from(head(true))];
    }
    let line = |(i, p): (usize, &PathStatus)| {
        let mut spans = head(i == 0);
        let up = if p.up { "up" } else { "down" };
        spans.push(span(format!("{i} {up:<4}"), state_paint(up)));
        let age = age(p);
        spans.push(span(format!("{age:>7} {:>8} ", ns(p.contract.timeout_ns())), Paint::Plain));
        let measured = is_measured(p);
        let margin = if measured { signed_ns(p.margin_ns) } else { "-".into() };
        spans.push(span(format!("{margin:>8} "), if measured { margin_paint(p) } else { Paint::Dim }));
        spans.push(span(format!("{:>6}  ", p.lost), Paint::Plain));
        let room = usize::from(width).saturating_sub(64).clamp(0, SPARK);
        spans.push(span(spark(&model.spark(host.node_id, i), p.contract.delta_max_ns, room), margin_paint(p)));
        Line::from(spans)
    };
    host.paths.iter().enumerate().map(line).collect()
}

/// The newest values as bars; a full bar is δmax or more, the scale is logarithmic from a thousandth of it.
fn spark(values: &[u64], full: u64, room: usize) -> String {
    let bar = |v: &u64| {
        if *v == 0 || full == 0 {
            return BARS[0];
        }
        let share = (*v as f64 / full as f64).log10() / 3.0 + 1.0;
        // Between 0 and 1, times the number of bars: a small index.
        BARS[((share.clamp(0.0, 1.0) * 7.0).round() as usize).min(7)]
    };
    values[values.len().saturating_sub(room)..].iter().map(bar).collect()
}

fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width { text.into() } else { text.chars().take(width - 1).chain(['…']).collect() }
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let focused = model.focus == Focus::Events;
    let title = match model.filter.as_str() {
        "" => "events, newest first".into(),
        filter => format!("events with {filter:?}, newest first"),
    };
    let block = block(&title, focused);
    if model.shown_events().next().is_none() {
        let why = if model.events.is_empty() { "nothing has happened yet" } else { "none: Esc shows all again" };
        frame.render_widget(Paragraph::new(why).block(block), area);
        return;
    }
    let items = model.shown_events().map(|e| {
        let time = crate::units::wall(e.wall_ns);
        // The time of day to the millisecond; the date is in the explanation.
        let time = time.get(11..23).unwrap_or(&time).to_string();
        ListItem::new(Line::from(vec![
            span(format!("{time} "), Paint::Dim),
            span(format!("{:<15} ", e.cause.name()), paint(e.cause)),
            span(format!("{:<16} ", clip(&subject(e), 16)), Paint::Cyan),
            span(format!("{:<8} ", e.grade.to_string()), Paint::Plain),
            span(e.text.clone(), Paint::Plain),
        ]))
    });
    let mut state = ListState::default().with_selected(focused.then_some(model.event));
    frame.render_stateful_widget(List::new(items).block(block).highlight_style(SELECTED), area, &mut state);
}

fn draw_popup(frame: &mut Frame<'_>, popup: &Popup) {
    let whole = frame.area();
    // The last line stays: it says which keys lead back.
    let area =
        Rect { x: whole.x + 1, y: whole.y + 1, width: whole.width.saturating_sub(2), height: whole.height.saturating_sub(2) };
    frame.render_widget(Clear, area);
    let lines: Vec<Line<'_>> = popup.lines.iter().skip(popup.scroll).map(|l| Line::from(shown(l, false))).collect();
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block(&popup.title, true)), area);
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::model;
    use super::super::model::{Key, Message};
    use super::*;
    use fide_explain::samples::killed;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_string();
        (0..height).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_screen_of_80_by_24_shows_hosts_paths_margins_and_verdicts() {
        let text = drawn(&model(), 80, 24);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with(" h1  cluster lab  up 2m 10s  shared / xdp-native / packet / tracepoint"), "{text}");
        assert!(lines[1].contains("timeout 1.61 ms  net0 up  net1 DOWN  watches db alive"), "{text}");
        assert!(lines[2].contains("hosts: 1 of 2 alive"), "{text}");
        assert!(lines[4].contains("h2           alive       0 up   400 µs  1.61 ms   180 µs      2  "), "{text}");
        assert!(lines[5].contains("1 down    9 s  1.61 ms   −20 µs      2  "), "{text}");
        assert!(lines[6].contains("h3           silent-host 0 up"), "{text}");
        assert!(lines[7].contains("never") && lines[7].contains(" - "), "{text}");
        assert!(text.contains("killed          redis@h2         certain  redis@h2 was ended by"), "{text}");
        assert!(lines[23].contains("q quit"), "{text}");
    }

    #[test]
    fn every_size_is_drawn_without_a_panic() {
        let mut m = model();
        for popup in [false, true] {
            if popup {
                m.update(Message::Explained(Box::new(killed())));
            }
            for (width, height) in [(1, 1), (10, 3), (40, 10), (80, 24), (200, 60)] {
                drawn(&m, width, height);
            }
        }
    }

    #[test]
    fn a_verdict_is_explained_over_the_lists_and_can_be_scrolled() {
        let mut m = model();
        m.update(Message::Explained(Box::new(killed())));
        let text = drawn(&m, 80, 24);
        assert!(text.contains("verdict 00abcdef-00000003-17") && text.contains("What it means"), "{text}");
        m.update(Message::Key(Key::Down));
        assert!(!drawn(&m, 80, 24).contains("killed, certain"));
    }

    #[test]
    fn a_lost_agent_is_seen_at_once() {
        let mut m = model();
        m.update(Message::Lost("no agent is listening".into()));
        assert!(drawn(&m, 80, 24).contains("NO ANSWER: no agent is listening"));
    }

    #[test]
    fn bars_are_full_at_the_contracts_limit_and_logarithmic_below() {
        assert_eq!(spark(&[0, 1, 1_000, 31_623, 1_000_000, 9_000_000], 1_000_000, 24), "▁▁▁▅██");
        assert_eq!(spark(&[1, 2, 3], 10, 2).chars().count(), 2);
        assert_eq!(spark(&[5], 0, 24), "▁");
    }
}
