//! Looks for the first world in which something does not hold: what `scripts/mutants` asks of a mutated core.
//!
//! `hunt [--seconds S] [--jobs J] [--from SEED] [ENGINE[/POLICY[/MENU]]…]` takes some seeds of each engine, policy and menu in turn (all of them if
//! none is named, or `*`), until one fails. `hunt --seed N ENGINE/POLICY/MENU` runs this world alone.
//! It exits with 0 if everything held, 1 if something did not, 2 if it was asked for nothing that there is.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fide_sim::options::{parse_kind, parse_policy};
use fide_sim::{Menu, Options, Policy, engines, run};

/// Seeds of one engine, policy and menu before the next ones have their turn.
const TURN: u64 = 128;

fn main() -> ExitCode {
    match asked() {
        Ok(asked) => hunt(&asked),
        Err(why) => {
            eprintln!("hunt: {why}");
            ExitCode::from(2)
        }
    }
}

struct Asked {
    seconds: u64,
    jobs: usize,
    from: u64,
    seed: Option<u64>,
    worlds: Vec<Options>,
}

fn asked() -> Result<Asked, String> {
    let mut asked = Asked { seconds: 60, jobs: 2, from: 0, seed: None, worlds: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).ok_or(format!("{arg} needs a number"));
        match arg.as_str() {
            "--seconds" => asked.seconds = number()?,
            "--jobs" => asked.jobs = number()? as usize,
            "--from" => asked.from = number()?,
            "--seed" => asked.seed = Some(number()?),
            _ => asked.worlds.extend(worlds(&arg)?),
        }
    }
    if asked.worlds.is_empty() {
        for engine in engines::AVAILABLE {
            asked.worlds.extend(worlds(engine.name())?);
        }
    }
    Ok(asked)
}

/// What is meant by `ENGINE[/POLICY[/MENU]]`.
fn worlds(text: &str) -> Result<Vec<Options>, String> {
    let mut parts = text.split('/');
    let engine = parse_kind(parts.next().unwrap_or_default())?;
    let mut part = || parts.next().filter(|part| *part != "*");
    let policy = part().map(parse_policy).transpose()?;
    let menu: Option<Menu> = part().map(str::parse).transpose()?;
    let mut all = Vec::new();
    for menu in Menu::ALL.into_iter().filter(|one| menu.is_none_or(|menu| menu == *one)) {
        for policy in Policy::ALL.into_iter().filter(|one| one.suits(engine) && policy.is_none_or(|policy| policy == *one)) {
            all.push(Options { engine, policy, menu, hosts: None });
        }
    }
    if all.is_empty() { Err(format!("there is no {text}")) } else { Ok(all) }
}

fn hunt(asked: &Asked) -> ExitCode {
    let begun = Instant::now();
    let mut seen = 0;
    let mut range = asked.seed.map_or(asked.from..asked.from + TURN, |seed| seed..seed + 1);
    loop {
        for options in &asked.worlds {
            let totals = run::explore(*options, range.clone(), asked.jobs, &AtomicBool::new(false), &run::Progress::default());
            if let Some((seed, violation)) = totals.failures.first() {
                let Options { engine, policy, menu, .. } = options;
                let ms = begun.elapsed().as_millis();
                let place = seen + seed - range.start + 1;
                println!("found\t{seed}\t{engine}/{policy}/{menu}\t{}\t{place}\t{ms}\n{violation}", violation.property);
                return ExitCode::from(1);
            }
            seen += totals.seeds;
            if begun.elapsed() >= Duration::from_secs(asked.seconds) {
                break;
            }
        }
        range = range.end..range.end + TURN;
        if asked.seed.is_some() || begun.elapsed() >= Duration::from_secs(asked.seconds) {
            println!("held\t{seen}\t{}", begun.elapsed().as_millis());
            return ExitCode::SUCCESS;
        }
    }
}
