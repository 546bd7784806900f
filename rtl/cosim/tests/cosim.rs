//! The engine in hardware against the software core. Without a Verilator model these are *ignored*:
//! `make rtl` builds one.

use fide_proto::consensus::Engine as _;
use fide_proto::consensus::lowi::{self, Lowi};
use fide_proto::group::MemberId;
use fide_rtl::cosim::{Cosim, Item, Schedule, run_many, run_shared};
use fide_rtl::model::{In, Library, Model};
use fide_rtl::reg;
use fide_rtl::setup::Setup;
use fide_wire::mac::Key;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_hardware_is_the_software_core_on_seeded_schedules() {
    let library = Library::from_env().unwrap();
    let (from, count) = (number("FIDE_RTL_FROM", 0), number("FIDE_RTL_SCHEDULES", 2_000));
    let begun = std::time::Instant::now();
    let result = if let Some(waveform) = std::env::var_os("FIDE_RTL_WAVEFORM") {
        let mut cosim = Cosim::new(library);
        cosim.waveform = Some(waveform.into());
        run_many(&mut cosim, from, count)
    } else {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8) as u64);
        run_shared(library, threads.min(count.max(1)), from, count)
    };
    let report = result.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{count} schedules, {:.1} s: {report:?}", begun.elapsed().as_secs_f64());
    if count >= 2_000 {
        assert!(report.decisions > count && report.rounds > count, "{report:?}");
        for why in ["network fault", "missing broadcast", "expelled", "left"] {
            assert!(report.halts.contains_key(why), "no schedule ends in {why}: {report:?}");
        }
        assert!(report.joined_decided > count / 40, "too few joiners in hardware decide: {report:?}");
    }
}

/// The leader's copies come to its successor later than Δ_I, and the leader crashes: the others have decided what the successor
/// does not know, and it decides something else for the same instance. Nothing can make up for that (`lowi.rs`); a check that
/// does not see it is none.
#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_must_fail_where_copies_are_late_and_the_leader_crashes() {
    let mut cosim = Cosim::new(Library::from_env().unwrap());
    let mut late = Schedule {
        seed: 1,
        config: lowi::Config {
            delta_w_ns: 2_400,
            drift_ppm: 0,
            batch_entries_max: 1,
            batch_bytes_max: 60,
            exit_together: false,
            rounds_max: 4,
            ..lowi::Config::new(2_000, 1_200)
        },
        members: 3,
        joins: false,
        hardware: 0b111,
        delay: 20,
        together: true,
        clocks: 5_000,
        items: vec![
            Item::Request { at: 1_300, at_rank: 0, bytes: 8 },
            // It leads by then.
            Item::Request { at: 2_800, at_rank: 1, bytes: 9 },
            Item::Late { at: 1_300, clocks: 700, rank: 1, path: 0, by: 4_000 },
            Item::Late { at: 1_300, clocks: 700, rank: 1, path: 1, by: 4_000 },
            Item::Crash { at: 2_000, rank: 0, reported: None },
        ],
        strict: true,
    };
    let difference = cosim.run(&late).unwrap_err().to_string();
    assert!(difference.contains("uniform agreement"), "{difference}");
    // In time, nothing is wrong with the same.
    late.items.retain(|item| !matches!(item, Item::Late { .. }));
    cosim.run(&late).unwrap();
}

/// A joiner is handed a request just before its settings are written. It may be judged in the
/// clocks of the writes, and is refused, for the joiner does not lead; what it proposes when it
/// leads is the request behind.
#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_a_request_that_is_judged_while_a_joiner_is_set_up_is_refused() {
    let mut cosim = Cosim::new(Library::from_env().unwrap());
    let mut schedule = Schedule {
        seed: 3_001_664,
        config: lowi::Config {
            delta_w_ns: 1_074,
            drift_ppm: 1_000,
            depth: 2,
            batch_entries_max: 1,
            batch_bytes_max: 60,
            hurry: false,
            exit_together: false,
            rounds_max: 4,
            ..lowi::Config::new(1_295, 746)
        },
        members: 3,
        joins: true,
        hardware: 0b110,
        delay: 26,
        together: true,
        clocks: 5_792,
        items: vec![
            Item::Join { at: 1_835, at_rank: 0, after: 52 },
            Item::Crash { at: 2_339, rank: 0, reported: None },
            Item::Crash { at: 2_860, rank: 1, reported: None },
            // Its settings are written in clock 1888.
            Item::Request { at: 1_883, at_rank: 2, bytes: 0 },
            Item::Request { at: 3_916, at_rank: 2, bytes: 17 },
        ],
        strict: false,
    };
    for at in 1_870..1_892 {
        schedule.items[3] = Item::Request { at, at_rank: 2, bytes: 0 };
        let report = cosim.run(&schedule).unwrap_or_else(|difference| panic!("a request in clock {at}: {difference}"));
        assert!(report.joined == 1 && report.admitted == 1, "a request in clock {at}: {report:?}");
    }
}

/// The last one that a starter waits for is ready long after those before it were reported: then it
/// may speak at once. A request that is admitted between the two steps is in its first round.
#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_a_request_between_the_start_and_the_first_round_is_in_it() {
    let mut cosim = Cosim::new(Library::from_env().unwrap());
    let mut schedule = Schedule {
        seed: 3_094_166,
        config: lowi::Config {
            delta_w_ns: 1_160,
            drift_ppm: 0,
            batch_entries_max: 1,
            batch_bytes_max: 60,
            depth: 3,
            rounds_max: 4,
            ..lowi::Config::new(1_173, 813)
        },
        members: 4,
        joins: true,
        hardware: 0b1111,
        delay: 43,
        together: false,
        clocks: 10_271,
        items: vec![
            // The last one is ready in clock 716, this is admitted in clock 718, and the next step
            // begins in clock 722.
            Item::Change { at: 698, at_rank: 1, leaves: Some(1) },
            Item::Crash { at: 377, rank: 0, reported: Some(130) },
        ],
        strict: false,
    };
    for at in 688..708 {
        schedule.items[0] = Item::Change { at, at_rank: 1, leaves: Some(1) };
        let report = cosim.run(&schedule).unwrap_or_else(|difference| panic!("a request in clock {at}: {difference}"));
        assert!(report.elections > 0, "a request in clock {at}: {report:?}");
    }
}

/// Reports keep their order however many there were before: a rank that leaves and comes back can be reported again. Who is behind two dead
/// members speaks Δ_I after the later report, not after the earlier one.
#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_the_latest_report_counts_however_many_there_were() {
    for before in [0, 14, 15, 16, 33] {
        let spoken = reported(before);
        assert!(
            spoken.0 > 0 && spoken.0 == spoken.1,
            "after {before} reports: {} in hardware, {} in software",
            spoken.0,
            spoken.1
        );
    }
}

/// When the third of three members speaks: in hardware, and in software; 0: never. Rank 0 was reported so many times before, and then
/// both others are, rank 1 some time behind rank 0.
fn reported(before: u64) -> (u64, u64) {
    let ids: Vec<MemberId> = [3, 7, 11].map(MemberId).into();
    let config = lowi::Config {
        delta_w_ns: 40_000,
        batch_entries_max: 1,
        batch_bytes_max: 60,
        rounds_max: 4,
        drift_ppm: 0,
        ..lowi::Config::new(40_000, 8_000)
    };
    let setup = Setup {
        config,
        me: ids[2],
        members: ids.iter().copied().collect(),
        begin: lowi::StartPoint { round: 0, leader: ids[0], next: 1 },
        ids,
        cluster: 1,
        sender: 2,
        incarnation: 3,
        group: 4,
        generation: 5,
        key: (0, Key::PUBLIC),
        clk_ns: 4,
        retry_ns: 400,
        rate: (0, 1),
    };
    let mut model = Model::new(Library::from_env().unwrap());
    model.reset();
    for (at, value) in setup.writes() {
        assert!(model.write(at, value));
    }
    let mut core = None;
    let write = |model: &mut Model, core: &mut Option<Lowi>, at: u16, value: u32| {
        let mut input = In { awvalid: 1, awaddr: at.into(), wdata: value, ..In::idle() };
        // Until the core has taken it.
        let taken = (0..40).find_map(|_| {
            let out = model.step(&std::mem::replace(&mut input, In::idle()));
            (out.step_event == 1).then_some(out.time)
        });
        let now_ns = taken.unwrap_or_else(|| panic!("{value:#x} to {at:#x} is refused"));
        match at {
            reg::COMMAND => {
                let (me, members) = (setup.me, setup.members.clone());
                *core = Some(Lowi::new(me, setup.config, members, 1, lowi::Start::Together, now_ns).unwrap());
            }
            reg::CRASH => core.as_mut().unwrap().handle_crash(now_ns, setup.ids[value as usize]).unwrap(),
            _ => {
                let members =
                    setup.ids.iter().enumerate().filter(|(rank, _)| value >> rank & 1 == 1).map(|(_, id)| *id).collect();
                core.as_mut().unwrap().set_members(now_ns, 1, members).unwrap();
            }
        }
        (0..30).for_each(|_| {
            model.step(&In::idle());
        });
    };
    write(&mut model, &mut core, reg::COMMAND, 1);
    for _ in 0..before {
        write(&mut model, &mut core, reg::CRASH, 0);
        write(&mut model, &mut core, reg::SET_MEMBERS, 0b110);
        write(&mut model, &mut core, reg::SET_MEMBERS, 0b111);
    }
    write(&mut model, &mut core, reg::CRASH, 0);
    (0..1_000).for_each(|_| {
        model.step(&In::idle());
    });
    write(&mut model, &mut core, reg::CRASH, 1);
    let software_ns = core.unwrap().poll_timeout().unwrap();
    let mut sent = Vec::new();
    for _ in 0..20_000 {
        let out = model.step(&In::idle());
        if out.tx_valid & 1 == 1 {
            sent.extend_from_slice(&out.tx_data[0][..out.tx_keep[0].count_ones() as usize]);
            if out.tx_last & 1 == 1 {
                break;
            }
        }
    }
    // The stamp that stands in the frame; a clock is 4 ns.
    let stamp_ns = sent.get(24..32).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
    (stamp_ns / 4, software_ns.div_ceil(4))
}
