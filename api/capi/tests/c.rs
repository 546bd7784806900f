//! `fide.h` against the library: constants, sizes, names, every function called from C (also under the address and
//! undefined-behaviour sanitizers) and from C++, and the example.

#[path = "../../client/tests/fake_agent/mod.rs"]
mod fake_agent;

use fake_agent::{Answer, FakeAgent, record, refused};
use fide::{
    Callbacks, FideChecked, FideEvent, FideGroupEvent, FideGroupOptions, FideMonitored, FideOptions, FideResources, GroupKind,
    GroupRefusal, Kind,
};
use fide_client::CheckOutcome;
use fide_client::group::{Fate, Stage};
use fide_client::wire::control::ErrorCode;
use fide_client::wire::event::{Record, RecordKind};
use fide_client::wire::verdict::{Cause, Grade};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put libfide.so and libfide.a: beside this program.
fn built() -> PathBuf {
    let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(directory.join("libfide.so").exists() && directory.join("libfide.a").exists(), "{}", directory.display());
    directory
}

/// A directory of its own for each test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        // Tests of one process ask for the same names at the same time.
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("fide-capi-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        // What an installation does: the name that programs are linked to at run time.
        let so = directory.join("libfide.so.0");
        let _ = std::fs::remove_file(&so);
        std::os::unix::fs::symlink(built().join("libfide.so"), so).unwrap();
        Self(directory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {}\n{text}{errors}", out.status);
    text.into_owned()
}

/// Whether there is such a compiler with such an option; says so when a test is skipped for want of it.
fn available(compiler: &str, options: &[&str]) -> bool {
    let scratch = Scratch::new(&format!("probe-{compiler}-{}", options.len()));
    let source = scratch.0.join(if compiler == "c++" { "probe.cc" } else { "probe.c" });
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let built = Command::new(compiler).args(options).arg(&source).arg("-o").arg(scratch.0.join("probe")).output();
    let available = built.is_ok_and(|b| b.status.success());
    if !available {
        println!("SKIPPED: there is no {compiler} {}", options.join(" "));
    }
    available
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(root().join("include/fide.h")).unwrap();
    let declarations = header.split("FIDE_API ").skip(1);
    declarations
        .filter_map(|d| d.split('(').next()?.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("fide_"))
        .map(str::to_owned)
        .collect()
}

/// Assertions that hold in C and in C++, and the address of every function.
fn check_program() -> String {
    let mut c = String::from(
        "#include \"fide.h\"\n#include <stdio.h>\n#ifdef __cplusplus\n#define ASSERT(x) static_assert(x, #x)\n#else\n\
         #define ASSERT(x) _Static_assert(x, #x)\n#endif\n",
    );
    let mut assert = |left: &str, right: i64| writeln!(c, "ASSERT({left} == {right});").unwrap();
    let upper = |name: &str| name.to_uppercase().replace('-', "_");
    for cause in Cause::ALL {
        assert(&format!("FIDE_CAUSE_{}", upper(cause.name())), cause as i64);
    }
    assert("FIDE_GRADE_CERTAIN", Grade::Certain as i64);
    assert("FIDE_GRADE_INFERRED", Grade::Inferred as i64);
    assert("FIDE_FLAG_CONFIRMS", Record::CONFIRMS.into());
    assert("FIDE_FLAG_LOCAL", Record::LOCAL.into());
    assert("FIDE_FLAG_FENCED", Record::FENCED.into());
    assert("FIDE_OPEN_SOCKET_ONLY", fide::FIDE_OPEN_SOCKET_ONLY.into());
    assert("FIDE_PIGGYBACK_MAX", fide_client::wire::PIGGYBACK_MAX as i64);
    assert("FIDE_ABI_VERSION", fide::FIDE_ABI_VERSION.into());
    for (name, code) in [
        ("EINVAL", ErrorCode::Invalid),
        ("EPERM", ErrorCode::Permission),
        ("ENOTFOUND", ErrorCode::NotFound),
        ("EEXISTS", ErrorCode::Exists),
        ("ETOOLARGE", ErrorCode::TooLarge),
        ("EFULL", ErrorCode::Full),
        ("EVERSION", ErrorCode::Version),
        ("EUNSUPPORTED", ErrorCode::Unsupported),
        ("EDISCONNECTED", ErrorCode::Disconnected),
        ("ESYSTEM", ErrorCode::System),
        ("EAMBIGUOUS", ErrorCode::Ambiguous),
        ("EFENCED", ErrorCode::Fenced),
        ("ENOTSENT", ErrorCode::NotSent),
    ] {
        assert(&format!("FIDE_{name}"), -(code as i64));
    }
    assert("FIDE_OK", fide::FIDE_OK.into());
    assert("FIDE_EINTERNAL", fide::FIDE_EINTERNAL.into());
    for (name, kind) in [
        ("FAILURE", Kind::Failure),
        ("CONFIRMED", Kind::Confirmed),
        ("MONITORED", Kind::Monitored),
        ("HOST", Kind::Host),
        ("PIGGYBACK", Kind::Piggyback),
        ("TIMEOUT_CHANGED", Kind::TimeoutChanged),
        ("PBSIZE_CHANGED", Kind::PbsizeChanged),
        ("MONITOR_REQ", Kind::MonitorReq),
        ("LOST", Kind::Lost),
        ("AGENT_GONE", Kind::AgentGone),
        ("OTHER", Kind::Other),
        ("HUNG", Kind::Hung),
        ("PROGRESSING", Kind::Progressing),
        ("FENCED", Kind::Fenced),
        ("RECOVERED", Kind::Recovered),
    ] {
        assert(&format!("FIDE_EVENT_{name}"), kind as i64);
    }
    for (name, outcome) in [
        ("DRAINED", CheckOutcome::Drained),
        ("VOID", CheckOutcome::Void),
        ("NO_BARRIER", CheckOutcome::NoBarrier),
        ("CERTAIN", CheckOutcome::Certain),
    ] {
        assert(&format!("FIDE_CHECK_{name}"), outcome as i64);
    }
    for stage in Stage::ALL {
        assert(&format!("FIDE_STAGE_{}", upper(stage.name())), stage as i64);
    }
    for fate in Fate::ALL {
        assert(&format!("FIDE_FATE_{}", upper(fate.name())), fate as i64);
    }
    for (name, kind) in [
        ("ENTRY", GroupKind::Entry),
        ("SNAPSHOT", GroupKind::Snapshot),
        ("STANDING", GroupKind::Standing),
        ("MEMBERS", GroupKind::Members),
        ("REFUSED", GroupKind::Refused),
        ("OVERDUE", GroupKind::Overdue),
        ("FATE", GroupKind::Fate),
        ("OTHER", GroupKind::Other),
    ] {
        assert(&format!("FIDE_GROUP_{name}"), kind as i64);
    }
    assert("FIDE_REFUSAL_INVALID", GroupRefusal::Invalid as i64);
    assert("FIDE_REFUSAL_LATE", GroupRefusal::Late as i64);
    assert("FIDE_GROUP_VALUE_MAX", fide_client::group::VALUE_MAX as i64);
    assert("FIDE_GROUP_SNAPSHOT_MAX", fide_client::group::SNAPSHOT_MAX as i64);
    macro_rules! layout {
        ($type:ty, $name:literal, $($field:ident)*) => {
            assert(concat!("sizeof(struct ", $name, ")"), size_of::<$type>() as i64);
            $(
                assert(
                    concat!("offsetof(struct ", $name, ", ", stringify!($field), ")"),
                    std::mem::offset_of!($type, $field) as i64,
                );
            )*
        };
    }
    layout!(FideEvent, "fide_event", size kind cause grade node app incarnation code path flags id event_ns sent_ns received_ns
        number name data data_len);
    layout!(FideResources, "fide_resources", size pbsize timeout_ns);
    layout!(FideMonitored, "fide_monitored", size node app pbsize timeout_ns alive state cause code);
    layout!(FideChecked, "fide_checked", size outcome drained_ns lost_ns why host host_state app_state node incarnation
        fence_timeout_ns fenced reserved);
    layout!(FideOptions, "fide_options", size flags path answer_timeout_ns);
    layout!(FideGroupOptions, "fide_group_options", size reserved path client index last_number);
    layout!(FideGroupEvent, "fide_group_event", size kind index number client generation member leader leader_node stage own
        refusal fate members_len members why data data_len);
    layout!(Callbacks, "fide_callbacks", size reserved on_failure on_confirmed on_piggyback_rcv on_timeout_changed on_monitor_req
        on_pbsize_changed on_other on_hung on_progressing on_fenced on_recovered);
    c.push_str("typedef void (*any)(void);\nint main(void)\n{\n\tany all[] = {\n");
    for name in declared() {
        writeln!(c, "\t\t(any){name},").unwrap();
    }
    c.push_str(
        "\t};\n\tunsigned long i, n = 0;\n\tfor (i = 0; i < sizeof all / sizeof *all; i++)\n\t\tn += all[i] != 0;\n\
         \tprintf(\"%lu\\n\", n);\n\treturn 0;\n}\n",
    );
    c
}

#[test]
fn constants_sizes_and_functions_are_those_of_the_header() {
    if !available("cc", &[]) {
        return;
    }
    let scratch = Scratch::new("check");
    let count = declared().len();
    assert!(count >= 24, "{:?}", declared());
    for (compiler, standard, file) in [
        ("cc", "-std=c11", "check.c"),
        ("cc", "-std=c99", "plain.c"),
        ("c++", "-std=c++17", "check.cc"),
        ("c++", "-std=c++11", "check.cc"),
    ] {
        if !available(compiler, &[standard]) {
            continue;
        }
        let source = scratch.0.join(file);
        // C99 has no static assertions; that the header itself is C99 is seen by the example.
        let text = match file {
            "plain.c" => std::fs::read_to_string(root().join("examples/monitor.c")).unwrap(),
            _ => check_program(),
        };
        std::fs::write(&source, text).unwrap();
        let program = scratch.0.join("check");
        let mut build = Command::new(compiler);
        build.arg(standard).args(STRICT).arg("-I").arg(root().join("include")).arg(&source).arg("-o").arg(&program);
        run(build.arg(built().join("libfide.so")).arg(format!("-Wl,-rpath,{}", scratch.0.display())));
        if file != "plain.c" {
            assert_eq!(run(&mut Command::new(&program)).trim(), count.to_string(), "{compiler} {standard}");
        }
    }
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let Ok(out) = Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libfide.so")).output() else {
        println!("SKIPPED: there is no nm");
        return;
    };
    let names = String::from_utf8(out.stdout).unwrap();
    let exported: BTreeSet<_> = names.lines().filter_map(|l| l.split_whitespace().nth(2)).map(str::to_owned).collect();
    assert_eq!(exported, declared());
}

#[test]
fn every_declaration_says_whether_it_blocks_and_is_thread_safe() {
    let header = std::fs::read_to_string(root().join("include/fide.h")).unwrap();
    for (at, _) in header.match_indices("FIDE_API ").filter(|(at, _)| header[at + 9..].contains(";")) {
        let before = header[..at].trim_end();
        if before.ends_with("#define") {
            continue;
        }
        assert!(before.ends_with("*/"), "no comment: {}", &header[at..at + 60]);
        let comment = &before[before.rfind("/*").unwrap()..].to_lowercase().replace("\n * ", " ");
        assert!(comment.contains("thread-safe"), "{comment}");
        assert!(comment.contains("blocks") || comment.contains("waits"), "{comment}");
    }
}

/// Does what `talk.c` asks for, until it ends.
fn serve(agent: &mut FakeAgent, program: &mut Command) {
    let mut child = program.arg(&agent.path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = child.stdin.take().unwrap();
    let process = |cause| record(RecordKind::Process, cause);
    let mut last = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        last = line.unwrap();
        match last.as_str() {
            "doomed" => agent.emit(process(Cause::Doomed), b""),
            "doomed 2" => agent.emit(Record { app: 8, ..process(Cause::Doomed) }, b""),
            "doomed 3" => agent.emit(Record { app: 9, ..process(Cause::Doomed) }, b""),
            "confirm" => agent.emit(Record { flags: Record::CONFIRMS, ..process(Cause::Killed) }, b""),
            "taken hello" => assert_eq!(agent.taken(), [b"hello"]),
            "piggyback" => agent.emit(Record { number: 5, ..record(RecordKind::Piggyback, Cause::Local) }, b"a\0b"),
            "everything" => {
                let numbered = |kind, number| Record { number, code: number as i32, ..record(kind, Cause::Local) };
                let next = Record { incarnation: 2, ..process(Cause::Doomed) };
                // Its name is learned anew with its new incarnation.
                agent.emit(Record { incarnation: 2, ..process(Cause::Monitored) }, b"db");
                agent.emit(Record { incarnation: 2, ..numbered(RecordKind::Piggyback, 5) }, b"x");
                agent.emit(Record { incarnation: 2, ..numbered(RecordKind::TimeoutChanged, 6) }, b"");
                agent.emit(Record { app: 0, ..numbered(RecordKind::MonitorRequest, 8) }, b"");
                agent.emit(numbered(RecordKind::PiggybackSizeChanged, 9), b"");
                agent.emit(numbered(RecordKind::Lost, 3), b"");
                agent.emit(Record { app: 0, ..record(RecordKind::Host, Cause::PathDown) }, b"");
                agent.emit(next, b"");
                agent.emit(Record { flags: Record::CONFIRMS, ..next }, b"");
            }
            "hung" => {
                // Copies come in any order, and one of them after it moved again.
                let said = |cause, number: u64| Record { id: 5 << 32 | number, code: 3, ..process(cause) };
                for (cause, number) in [(Cause::Hung, 2), (Cause::Hung, 2), (Cause::Progressing, 3), (Cause::Hung, 2)] {
                    agent.emit(Record { incarnation: 3, ..said(cause, number) }, b"");
                }
                agent.emit(Record { incarnation: 3, ..process(Cause::Monitored) }, b"db");
            }
            "restart" => agent.restart(),
            "refuse one" => agent.next("monitor", Answer::Reply(refused(ErrorCode::Permission, "not any more"), Vec::new())),
            "garbage" => agent.next("monitor", Answer::Raw(b"\xff\0nonsense".to_vec())),
            "end" => break,
            other => panic!("what is {other}?"),
        }
        // When it failed a check it is gone, and its exit status says so below.
        let _ = writeln!(answers, "done");
    }
    let status = child.wait().unwrap();
    assert!(status.success() && last == "end", "{status} after {last}");
}

/// What the static library needs beside itself, as the compiler says.
const NATIVE: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

#[test]
fn every_function_works_from_c() {
    for (name, options, library) in [
        ("shared", &[][..], "libfide.so"),
        ("static", &[][..], "libfide.a"),
        ("sanitized", &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"][..], "libfide.a"),
    ] {
        if !available("cc", options) {
            continue;
        }
        let scratch = Scratch::new(name);
        let program = scratch.0.join("talk");
        let mut build = Command::new("cc");
        build.args(["-std=gnu11", "-g"]).args(&STRICT[..4]).args(options).arg("-I").arg(root().join("include"));
        build.arg(root().join("tests/c/talk.c")).arg("-o").arg(&program).arg(built().join(library));
        run(build.args(NATIVE).arg(format!("-Wl,-rpath,{}", scratch.0.display())));
        serve(&mut FakeAgent::start(), &mut Command::new(&program));
    }
}

#[test]
fn the_example_and_the_pkg_config_file_work() {
    if !available("cc", &[]) {
        return;
    }
    let scratch = Scratch::new("example");
    let (include, lib) = (scratch.0.join("include"), scratch.0.join("lib"));
    for directory in [&include, &lib] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::copy(root().join("include/fide.h"), include.join("fide.h")).unwrap();
    for name in ["libfide.so", "libfide.so.0"] {
        std::os::unix::fs::symlink(built().join("libfide.so"), lib.join(name)).unwrap();
    }
    let template = std::fs::read_to_string(root().join("fide.pc.in")).unwrap();
    let text = template
        .replace("@prefix@", scratch.0.to_str().unwrap())
        .replace("@libdir@", "${prefix}/lib")
        .replace("@version@", env!("CARGO_PKG_VERSION"))
        .replace("@libs_private@", &NATIVE.join(" "));
    assert!(!text.contains('@'), "{text}");
    std::fs::write(lib.join("fide.pc"), text).unwrap();
    let mut ask = Command::new("pkg-config");
    let flags = match ask.args(["--cflags", "--libs", "fide"]).env("PKG_CONFIG_PATH", &lib).output() {
        Ok(out) => {
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            String::from_utf8(out.stdout).unwrap()
        }
        Err(_) => {
            eprintln!("there is no pkg-config; its file is not tested");
            format!("-I{} -L{} -lfide", include.display(), lib.display())
        }
    };
    let program = scratch.0.join("monitor");
    let mut build = Command::new("cc");
    build.args(STRICT).arg(root().join("examples/monitor.c")).arg("-o").arg(&program);
    run(build.args(flags.split_whitespace()));

    let agent = FakeAgent::start();
    let mut command = Command::new(&program);
    command.arg("db@a").env("LD_LIBRARY_PATH", &lib).env("FIDE_SOCKET", &agent.path).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "monitoring db@a from here: alive, timeout 1.050 ms");
    let now = fide_client::monotonic_ns();
    agent.emit(Record { received_ns: now, ..record(RecordKind::Process, Cause::Doomed) }, b"");
    let failure = lines.next().unwrap();
    assert!(failure.starts_with("FAILED db@a: doomed (code 9, certain), 12.0 us there, "), "{failure}");
    assert!(failure.contains(" us here, see fide explain "), "{failure}");
    agent.emit(Record { flags: Record::CONFIRMS, ..record(RecordKind::Process, Cause::Killed) }, b"");
    assert_eq!(lines.next().unwrap(), "confirmed db@a: killed (code 9)");
    agent.emit(Record { code: 52_000, ..record(RecordKind::Host, Cause::ObserverPaused) }, b"");
    let paused = lines.next().unwrap();
    assert!(paused.contains("observer-paused for 52000 us (certain)"), "{paused}");
    agent.kill();
    assert_eq!(lines.next().unwrap(), "the agent of this host is gone");
    assert!(child.wait().unwrap().success());

    // And without an agent.
    let alone = Command::new(&program).arg("db@a").env("LD_LIBRARY_PATH", &lib).env("FIDE_SOCKET", &agent.path).output();
    let alone = alone.unwrap();
    assert_eq!(alone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&alone.stderr).starts_with("monitor: no agent is listening on "));
}
