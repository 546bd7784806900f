//! The live view: [`model`] is what is shown and what a key does to it, [`view`] draws it, [`feed`] asks the agent, and [`run`]
//! joins them on a terminal.

mod feed;
pub mod model;
mod view;

use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use feed::Feed;
use fide_wire::level::Level;
use model::{Action, Key, Message, Model};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// Shows the view until someone ends it. The terminal is restored in every case, also after a panic.
pub fn run(context: &Context, interval: Duration, least: Level) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    // The first answer comes before the screen is taken, so that a refusal is told where it stays.
    let first = crate::context::status(&context.connect()?)?;
    let feed = Feed::start(context, interval, least);
    let mut model = Model::new(crate::cmd::explain::one_machine(&context.socket_path()));
    model.update(Message::Status(Box::new(first)));
    // Also has a panic restore the terminal before it is told.
    let mut terminal = ratatui::try_init().map_err(terminal_failure)?;
    let ended = loop_until_quit(&mut terminal, &mut model, &feed, &interrupt);
    ratatui::restore();
    ended
}

fn terminal_failure(e: std::io::Error) -> Failure {
    Failure::failed(format!("the terminal cannot be used: {e}")).hint("fide status and fide events --follow need none")
}

fn loop_until_quit(
    terminal: &mut ratatui::DefaultTerminal,
    model: &mut Model,
    feed: &Feed,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    while !interrupt.requested() {
        terminal.draw(|frame| view::draw(frame, model)).map_err(terminal_failure)?;
        // Keys are answered at once, news at the next tenth of a second.
        if event::poll(Duration::from_millis(100)).map_err(terminal_failure)? {
            let key = match event::read().map_err(terminal_failure)? {
                Event::Key(key) if key.kind != KeyEventKind::Release => translate(key.code, key.modifiers, model.is_typing),
                _ => None,
            };
            match key.and_then(|key| model.update(Message::Key(key))) {
                Some(Action::Quit) => return Ok(()),
                Some(Action::Explain(seq)) => feed.explain(seq),
                None => {}
            }
        }
        while let Some(news) = feed.next() {
            model.update(news);
        }
    }
    Ok(())
}

fn translate(code: KeyCode, modifiers: KeyModifiers, is_typing: bool) -> Option<Key> {
    Some(match code {
        KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char(c) if is_typing => Key::Text(c),
        KeyCode::Backspace if is_typing => Key::Erase,
        KeyCode::Char('?') => Key::Help,
        KeyCode::Char('p') => Key::Processes,
        KeyCode::Char('/') => Key::Filter,
        KeyCode::Char('q') => Key::Quit,
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown | KeyCode::Char(' ') => Key::PageDown,
        KeyCode::Home | KeyCode::Char('g') => Key::Home,
        KeyCode::End | KeyCode::Char('G') => Key::End,
        KeyCode::Tab | KeyCode::BackTab | KeyCode::Left | KeyCode::Right => Key::Other,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc | KeyCode::Backspace => Key::Back,
        _ => return None,
    })
}
