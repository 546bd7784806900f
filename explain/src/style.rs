//! Colours, or none; and how wide the terminal is.

/// How text is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// With colours.
    pub on: bool,
    /// Columns of the terminal; `None`: there is none, and lines are as long as they are.
    pub columns: Option<u16>,
}

/// A colour or weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// As it is.
    Plain,
    /// Bold.
    Bold,
    /// Faint.
    Dim,
    /// Red: an end, something broken.
    Red,
    /// Green: well.
    Green,
    /// Yellow: to look at.
    Yellow,
    /// Cyan: names.
    Cyan,
}

impl Style {
    /// No colours.
    pub const PLAIN: Style = Style { on: false, columns: None };

    /// The text in that colour.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Plain => return text.to_string(),
            Paint::Bold => "1",
            Paint::Dim => "2",
            Paint::Red => "31",
            Paint::Green => "32",
            Paint::Yellow => "33",
            Paint::Cyan => "36",
        };
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// Bold.
    pub fn bold(&self, text: &str) -> String {
        self.paint(Paint::Bold, text)
    }

    /// Faint.
    pub fn dim(&self, text: &str) -> String {
        self.paint(Paint::Dim, text)
    }

    /// Red.
    pub fn red(&self, text: &str) -> String {
        self.paint(Paint::Red, text)
    }
}
