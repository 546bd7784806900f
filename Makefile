# What people type. Everything behind it is cargo and the scripts in scripts/.
PREFIX ?= /usr/local
DESTDIR ?=
# /etc where PREFIX is /usr or /usr/local, else PREFIX/etc.
SYSCONFDIR ?= $(sysconfdir)
CARGO ?= cargo
BIN = target/release

.PHONY: build test guest demo bench specs rtl verify fix deb bindings install uninstall setup nightly clean

build: ## binaries and library, optimised
	@scripts/setup build
	$(CARGO) build --release --workspace

test: ## everything that must hold; as root also what needs the kernel
	@scripts/setup build test
	@scripts/test

guest: ## the kernel programs and agents on Debian's stock kernel, emulated (FIDE_GUEST_SUITES, FIDE_GUEST_SECONDS; scripts/guest -h)
	@scripts/setup build test guest
	@scripts/guest

demo: ## see it happen, in two minutes (root)
	@scripts/setup build test
	$(CARGO) build --release -p fide-cli -p fide-agent
	$(BIN)/fide demo

bench: ## the figures, on this host (root)
	@scripts/setup build test bench
	$(CARGO) build --release -p fide-cli -p fide-agent
	$(BIN)/fide bench detect
	$(BIN)/fide bench jitter

specs: ## the TLA+ models and traces, with the model checker
	@scripts/setup specs
	@scripts/specs

rtl: ## the LOWI engine in hardware: lint, proofs, model, co-simulation, lab (FIDE_RTL_SCHEDULES; scripts/rtl -h)
	@scripts/setup build test rtl
	@scripts/rtl

verify: ## read-only: format, lints, tests, licences and bans
	@scripts/setup build test
	@scripts/verify

fix: ## what verify complains of and a machine can mend
	$(CARGO) fmt --all
	$(CARGO) xtask gen
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged -- -D warnings

nightly: ## longer fuzzing and simulation
	@scripts/nightly

deb: build ## Debian packages, in target/deb: fide, libfide, libfide-dev, fide-dev, fide-failover
	@scripts/setup deb
	@scripts/deb

bindings: ## Python, Go and Java: built, and tested against agents in a lab (root; scripts/bindings python|go|java)
	@scripts/setup build test bindings
	@scripts/bindings

install: ## what `make build` made: PREFIX=/usr/local SYSCONFDIR=/etc DESTDIR=
	@scripts/install "$(DESTDIR)" "$(PREFIX)" "$(SYSCONFDIR)"

uninstall:
	@scripts/install --remove "$(DESTDIR)" "$(PREFIX)" "$(SYSCONFDIR)"

setup: ## what packages.txt lists, but for guest, specs, rtl, deb and bindings
	@scripts/setup

clean:
	$(CARGO) clean
