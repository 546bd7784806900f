//! Seeded words for a target.

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

fn words(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let len = 16 + random.next() % 2000;
    (0..len).map(|_| random.next() as u8).collect()
}

/// `FIDE_SEED`: this seed alone. `FIDE_SEEDS`: that many (the default takes some seconds).
pub fn smoke(name: &str, package: &str, default: u64, target: fn(&[u8])) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("FIDE_SEED") {
        return target(&words(seed));
    }
    target(&[]);
    for seed in 0..number("FIDE_SEEDS").unwrap_or(default) {
        let said = words(seed);
        if let Err(panic) = std::panic::catch_unwind(|| target(&said)) {
            let why = panic.downcast_ref::<String>().map_or("", String::as_str);
            eprintln!("{name}: seed {seed}: FIDE_SEED={seed} cargo test -p {package} hostile:: -- --nocapture: {why}");
            std::panic::resume_unwind(panic);
        }
    }
}
