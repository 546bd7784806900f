//! Quantities with their units, as the topology file has them.

/// Reads `10Gbit/s` as bit/s.
///
/// # Errors
/// No number, no such unit, or too large.
pub fn parse_bandwidth(text: &str) -> Result<u64, String> {
    let units = [("bit/s", 1), ("kbit/s", 1_000), ("Mbit/s", 1_000_000), ("Gbit/s", 1_000_000_000)];
    parse(text, &units, "bandwidth, such as 10Gbit/s")
}

/// Reads `256KiB` as bytes.
///
/// # Errors
/// No number, no such unit, or too large.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let units = [("B", 1), ("kB", 1_000), ("KB", 1_000), ("KiB", 1 << 10), ("MB", 1_000_000), ("MiB", 1 << 20)];
    parse(text, &units, "size, such as 256KiB")
}

/// Reads `500ns` as ns.
///
/// # Errors
/// No number, no such unit, or too large.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let units = [("ns", 1), ("us", 1_000), ("µs", 1_000), ("μs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    parse(text, &units, "time, such as 500ns, 20us or 1ms")
}

/// A decimal number and a unit; fractions are read without floating point.
fn parse(text: &str, units: &[(&str, u64)], what: &str) -> Result<u64, String> {
    let shown: String = text.escape_debug().take(40).collect();
    let bad = || format!("\"{shown}\" is no {what}");
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| bad() + ": it lacks the unit")?;
    let (number, unit) = (&text[..at], text[at..].trim_start());
    let scale = units.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || number.ends_with('.') {
        return Err(bad());
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    let whole = digits(whole).filter(|_| !whole.is_empty()).ok_or_else(bad)?;
    let part = digits(fraction).ok_or_else(bad)?;
    let part = u128::from(part) * u128::from(scale) / 10u128.pow(fraction.len() as u32);
    whole.checked_mul(scale).and_then(|n| n.checked_add(u64::try_from(part).ok()?)).ok_or_else(|| bad() + ": too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(parse_bandwidth("2.5Gbit/s"), Ok(2_500_000_000));
        assert_eq!(parse_bandwidth("100 Mbit/s"), Ok(100_000_000));
        assert_eq!(parse_bytes("256KiB"), Ok(262_144));
        assert_eq!(parse_time("0.5us"), Ok(500));
        assert_eq!(parse_time("3µs"), Ok(3_000));
        for bad in ["", "5", "us", "-1us", "1.us", "1..2us", "1e3us", "99999999999999999999s", "5 parsecs", ".5us"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        assert!(parse_time("99999999999s").unwrap_err().contains("too large"));
    }
}
