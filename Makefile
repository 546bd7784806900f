# What people type. Everything behind it is cargo and the scripts in scripts/.
PREFIX ?= /usr/local
DESTDIR ?=
# /etc where PREFIX is /usr or /usr/local, else PREFIX/etc.
SYSCONFDIR ?= $(sysconfdir)
CARGO ?= cargo
CARGO_TARGET_DIR ?= target
# What `make demo` and `make test` build: one profile, see Cargo.toml.
DEBUG = $(CARGO_TARGET_DIR)/debug
BIN = $(CARGO_TARGET_DIR)/release

.PHONY: build demo test check unit one timing suites specs rtl bindings full guest bench verify fix nightly deb install uninstall setup clean

build: ## binaries and library, optimised
	@scripts/setup 'make build' build
	$(CARGO) build --release --workspace

demo: ## see it happen, in a minute (root); MEMORY=256: less memory
	@scripts/setup 'make demo' build demo
	@# The example is built, not run: it brings in what the workspace's tests depend on, with its
	@# features. Without it, `make test` would compile most of this again.
	$(CARGO) build --workspace --bin fided --bin fide-demo --example exit_cost
	$(DEBUG)/fide-demo $(if $(MEMORY),--memory $(MEMORY))

test: ## everything that must hold on any machine; as root also what needs the kernel
	@scripts/setup 'make test' build test
	@scripts/test

check: ## read-only: format, lints, documents, licences
	@scripts/setup 'make check' build
	@scripts/check

unit: ## unit tests of one crate: make unit CRATE=proto
	@scripts/setup 'make unit' build
	@scripts/test unit "$(CRATE)"

one: ## one test, its output and its agents' logs: make one TEST=name
	@scripts/setup 'make one' build test
	@scripts/test one "$(TEST)"

timing: ## bounds in time, one after the other, beside the floor of this machine (root; wants a quiet machine)
	@scripts/setup 'make timing' build test
	@scripts/test timing

suites: ## beside other people's servers and in a browser (root)
	@scripts/setup 'make suites' build test suites
	@scripts/test suites

specs: ## the TLA+ models and traces, with the model checker
	@scripts/setup 'make specs' build specs
	@scripts/specs

rtl: ## the LOWI engine in hardware: lint, proofs, model, co-simulation, lab (FIDE_RTL_SCHEDULES; scripts/rtl -h)
	@scripts/setup 'make rtl' build test rtl
	@scripts/rtl

bindings: ## Python, Go and Java: built, and tested against agents in a lab (root; scripts/bindings python|go|java)
	@scripts/setup 'make bindings' build test bindings
	@scripts/bindings

full: ## check, test, timing, suites, specs, rtl, bindings: before a large change is called finished, and every night
	@scripts/full

guest: ## the kernel programs and agents on Debian's stock kernel, emulated (FIDE_GUEST_SUITES, FIDE_GUEST_SECONDS; scripts/guest -h)
	@scripts/setup 'make guest' build test guest
	@scripts/guest

bench: ## the figures, on this host (root)
	@scripts/setup 'make bench' build demo bench
	$(CARGO) build --release -p fide-cli -p fide-agent
	$(BIN)/fide bench detect
	$(BIN)/fide bench jitter

verify: check test ## both, read-only

fix: ## what check complains of and a machine can mend
	$(CARGO) fmt --all
	$(CARGO) xtask gen
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged -- -D warnings

nightly: ## longer fuzzing and simulation
	@scripts/nightly

deb: build ## Debian packages, in target/deb: fide, libfide, libfide-dev, fide-dev, fide-failover
	@scripts/setup 'make deb' deb
	@scripts/deb

install: ## what `make build` made: PREFIX=/usr/local SYSCONFDIR=/etc DESTDIR=
	@scripts/install "$(DESTDIR)" "$(PREFIX)" "$(SYSCONFDIR)"

uninstall:
	@scripts/install --remove "$(DESTDIR)" "$(PREFIX)" "$(SYSCONFDIR)"

setup: ## what building, the demonstration, the tests and the benchmarks need
	@scripts/setup 'make setup' build demo test bench

clean:
	$(CARGO) clean
