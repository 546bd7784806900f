//! Numbers for people.

/// Nanoseconds with three significant figures and a unit that fits.
pub fn ns(value: u64) -> String {
    let v = value as f64;
    match value {
        0..1_000 => format!("{value} ns"),
        1_000..999_500 => three(v / 1e3, "µs"),
        999_500..999_500_000 => three(v / 1e6, "ms"),
        999_500_000..119_500_000_000 => three(v / 1e9, "s"),
        _ => long(value / 1_000_000_000),
    }
}

/// Like [`ns`], with a sign when negative.
pub fn signed_ns(value: i64) -> String {
    if value < 0 { format!("−{}", ns(value.unsigned_abs())) } else { ns(value.unsigned_abs()) }
}

/// All its digits, for arithmetic that must add up: `1.0125 ms`.
pub fn exact_ns(value: u64) -> String {
    let (unit, name) = match value {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return format!("{whole} {name}");
    }
    let digits = unit.ilog10() as usize;
    format!("{whole}.{} {name}", format!("{rest:0digits$}").trim_end_matches('0'))
}

fn three(v: f64, unit: &str) -> String {
    let digits = if v < 9.995 { 2 } else { usize::from(v < 99.95) };
    let text = format!("{v:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {unit}")
}

/// Seconds as `2m 05s`, `3h 04m`, `5d 06h`.
pub fn long(seconds: u64) -> String {
    let (m, h, d) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{m}m {:02}s", seconds % 60),
        3600..86400 => format!("{h}h {:02}m", m % 60),
        _ => format!("{d}d {:02}h", h % 24),
    }
}

/// Reads `10m`, `90s`, `2h`, `1d`, `250ms`; in nanoseconds.
pub fn parse_duration(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a span of time; write for example 90s, 10m, 2h or 1d");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let number: u64 = text[..at].parse().map_err(|_| bad())?;
    let unit: u64 = match &text[at..] {
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err(bad()),
    };
    number.checked_mul(unit).ok_or_else(bad)
}

/// Nanoseconds since 1970 as local date and time with microseconds.
pub fn wall(wall_ns: u64) -> String {
    let seconds = i64::try_from(wall_ns / 1_000_000_000).unwrap_or(i64::MAX);
    // SAFETY: all-zero is a valid tm.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point at live locals of their types.
    let ok = !unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) }.is_null();
    if !ok {
        return format!("{seconds} s");
    }
    let micros = wall_ns % 1_000_000_000 / 1000;
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{micros:06}",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec
    )
}

/// Nanoseconds since 1970.
pub fn now_wall_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The name of a signal.
pub fn signal(number: i32) -> String {
    let name = match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return format!("signal {number}"),
    };
    format!("signal {number} ({name})")
}

/// `1,234,567`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 host`, `2 hosts`.
pub fn count(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_figures_and_a_fitting_unit() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1 µs"),
            (12_345, "12.3 µs"),
            (999_499, "999 µs"),
            (999_600, "1 ms"),
            (1_612_000, "1.61 ms"),
            (250_000_000, "250 ms"),
            (119_000_000_000, "119 s"),
            (125_000_000_000, "2m 05s"),
            (u64::MAX, "213503d 23h"),
        ];
        for (value, text) in cases {
            assert_eq!(ns(value), text);
        }
        assert_eq!(signed_ns(-1_500), "−1.5 µs");
        assert_eq!(signed_ns(i64::MIN), format!("−{}", ns(1 << 63)));
    }

    #[test]
    fn arithmetic_keeps_its_digits() {
        assert_eq!(exact_ns(1_612_500), "1.6125 ms");
        assert_eq!(exact_ns(1_000_000), "1 ms");
        assert_eq!(exact_ns(12_034), "12.034 µs");
    }

    #[test]
    fn large_numbers_have_commas() {
        assert_eq!([0, 12, 999, 1_000, 1_234_567].map(thousands), ["0", "12", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn spans_of_time_are_read() {
        assert_eq!(parse_duration("10m"), Ok(600_000_000_000));
        assert_eq!(parse_duration("250ms"), Ok(250_000_000));
        for bad in ["", "10", "m", "-1s", "1w", "99999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
