//! Reading what a host says of itself in /proc and /sys. Never writes, never fails: what is not there is `None`.

use std::collections::{BTreeMap, BTreeSet};

/// A file's content without the newline at its end.
pub(crate) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|s| s.trim_end().to_owned())
}

/// A file that holds a number.
pub(crate) fn number(path: &str) -> Option<i64> {
    read(path)?.trim().parse().ok()
}

/// Whether a file could be opened for writing (nothing is written).
pub(crate) fn writable(path: &str) -> bool {
    std::fs::OpenOptions::new().write(true).open(path).is_ok()
}

/// A list as the kernel prints it: `0-3,8`. Anything unreadable in it is left out.
pub(crate) fn cpu_list(text: &str) -> BTreeSet<usize> {
    const MOST: usize = 8_192;
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',') {
        // "0-31:2/8" (groups) is possible in boot parameters only, not in what is read here.
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.trim().parse::<usize>(), to.trim().parse::<usize>()) {
            cpus.extend(from..=to.min(MOST));
        }
    }
    cpus
}

/// The opposite of [`cpu_list`], without ranges: every kernel file that takes a list takes this.
pub(crate) fn print_cpu_list(cpus: &BTreeSet<usize>) -> String {
    cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A mask as the kernel prints it, 32 bits between commas: `ff,ffffffff`.
pub(crate) fn cpu_mask(text: &str) -> BTreeSet<usize> {
    let words = text.trim().split(',').rev().enumerate();
    words
        .filter_map(|(i, w)| Some((i, u32::from_str_radix(w, 16).ok()?)))
        .flat_map(|(i, w)| (0..32).filter(move |b| w >> b & 1 == 1).map(move |b| i * 32 + b))
        .collect()
}

/// The opposite of [`cpu_mask`].
pub(crate) fn print_cpu_mask(cpus: &BTreeSet<usize>) -> String {
    let words = cpus.last().map_or(1, |last| last / 32 + 1);
    let word = |i: usize| cpus.range(i * 32..(i + 1) * 32).fold(0u32, |w, c| w | 1 << (c % 32));
    (0..words).rev().map(|i| format!("{:08x}", word(i))).collect::<Vec<_>>().join(",")
}

/// The value of a boot parameter; empty for one without a value.
pub(crate) fn boot_parameter(cmdline: &str, name: &str) -> Option<String> {
    cmdline.split_whitespace().find_map(|word| match word.split_once('=') {
        Some((key, value)) if key == name => Some(value.to_owned()),
        None if word == name => Some(String::new()),
        _ => None,
    })
}

/// The choice in brackets: `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// Whether the calling thread has the capability with this number.
pub(crate) fn capable(bit: u32) -> bool {
    let status = read("/proc/thread-self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("CapEff:")).and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
    mask.is_some_and(|m| m >> bit & 1 == 1)
}

/// What /proc/interrupts counts for one processor, by name.
pub(crate) fn interrupts(text: &str, cpu: usize) -> BTreeMap<String, u64> {
    let mut lines = text.lines();
    let wanted = format!("CPU{cpu}");
    let header: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
    let Some(column) = header.iter().position(|c| *c == wanted) else { return BTreeMap::new() };
    let line = |l: &str| {
        let (name, rest) = l.split_once(':')?;
        let fields: Vec<_> = rest.split_whitespace().collect();
        let count = fields.get(column)?.parse().ok()?;
        let what = fields.get(header.len()..).unwrap_or_default();
        // A numbered line ends with the device; a named one is a description.
        let numbered = name.trim().chars().all(|c| c.is_ascii_digit());
        let what = if numbered { what.last().map_or(String::new(), ToString::to_string) } else { what.join(" ") };
        Some((format!("interrupt {} ({what})", name.trim()), count))
    };
    lines.filter_map(line).collect()
}

/// Milliseconds stolen by the hypervisor since boot, from /proc/stat, of one processor or of all together.
pub(crate) fn steal_ms(stat: &str, cpu: Option<usize>) -> Option<u64> {
    const TICK_MS: u64 = 10; // USER_HZ is 100 on every architecture Linux tells user space about
    let label = cpu.map_or("cpu".to_owned(), |c| format!("cpu{c}"));
    let line = stat.lines().find(|l| l.split_whitespace().next() == Some(&label))?;
    line.split_whitespace().nth(8)?.parse::<u64>().ok()?.checked_mul(TICK_MS)
}

/// Whether a process with this name runs.
pub(crate) fn process_runs(name: &str) -> bool {
    let Ok(all) = std::fs::read_dir("/proc") else { return false };
    all.flatten()
        .filter(|e| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()))
        .any(|e| std::fs::read_to_string(e.path().join("comm")).is_ok_and(|c| c.trim_end() == name))
}

/// The CPU quota that the process's cgroup (version 2), or one above it, imposes.
pub(crate) fn cpu_quota() -> Option<String> {
    let own = read("/proc/self/cgroup")?;
    let path = own.lines().find_map(|l| l.strip_prefix("0::"))?.to_owned();
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        let mut at = path.trim_matches('/').to_owned();
        loop {
            if let Some(max) = read(&format!("{root}/{at}/cpu.max"))
                && !max.starts_with("max")
            {
                return Some(format!("/{at}: {max}"));
            }
            let Some(cut) = at.rfind('/') else { break };
            at.truncate(cut);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_notations_are_read() {
        assert_eq!(cpu_list("0-2,7\n"), BTreeSet::from([0, 1, 2, 7]));
        assert_eq!(cpu_list(""), BTreeSet::new());
        assert_eq!(cpu_mask("3"), BTreeSet::from([0, 1]));
        assert_eq!(cpu_mask("1,80000000\n"), BTreeSet::from([31, 32]));
        assert_eq!(print_cpu_mask(&BTreeSet::from([31, 32])), "00000001,80000000");
        assert_eq!(boot_parameter("quiet isolcpus=2,3 nohz_full", "isolcpus").as_deref(), Some("2,3"));
        assert_eq!(boot_parameter("quiet isolcpus=2,3 nohz_full", "nohz_full").as_deref(), Some(""));
        assert_eq!(boot_parameter("quiet", "isolcpus"), None);
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn interrupts_are_named() {
        let text =
            "           CPU0       CPU1\n 24:   1   5  PCI-MSI 1-edge  eth0-rx\nLOC:  7  9   Local timer interrupts\nERR: 0\n";
        let i = interrupts(text, 1);
        assert_eq!(i.get("interrupt 24 (eth0-rx)"), Some(&5));
        assert_eq!(i.get("interrupt LOC (Local timer interrupts)"), Some(&9));
        assert_eq!(i.len(), 2);
        assert!(interrupts(text, 9).is_empty() && interrupts("", 0).is_empty());
    }

    #[test]
    fn steal_is_the_eighth_number() {
        let stat = "cpu  1 2 3 4 5 6 7 42 0 0\ncpu0 1 2 3 4 5 6 7 40 0 0\n";
        assert_eq!((steal_ms(stat, None), steal_ms(stat, Some(0)), steal_ms(stat, Some(1))), (Some(420), Some(400), None));
    }

    proptest! {
        #[test]
        fn lists_and_masks_survive(cpus in proptest::collection::btree_set(0usize..300, 1..50)) {
            prop_assert_eq!(&cpu_list(&print_cpu_list(&cpus)), &cpus);
            prop_assert_eq!(&cpu_mask(&print_cpu_mask(&cpus)), &cpus);
        }

        #[test]
        fn no_text_panics(text in "[ -~\n]{0,200}") {
            let _ = (cpu_list(&text), cpu_mask(&text), interrupts(&text, 0), steal_ms(&text, None), chosen(&text).is_some());
        }
    }
}
