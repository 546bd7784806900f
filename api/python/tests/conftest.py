"""Real agents in a lab, made by scripts/bindings: FIDE_LAB is its name, FIDE the program."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Lab:
    def __init__(self, name: str, fide: str) -> None:
        self.name, self.fide = name, fide
        self.started: list[subprocess.Popen[str]] = []

    def socket(self, host: str) -> Path:
        return Path("/run/fide/lab") / self.name / host / "fided.sock"

    def start(self, host: str, *command: str) -> "subprocess.Popen[str]":
        line = [self.fide, "lab", "--name", self.name, "exec", host, "--", *command]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def run(self, host: str, *command: str) -> str:
        line = [self.fide, "lab", "--name", self.name, "exec", host, "--", *command]
        return subprocess.run(line, check=True, capture_output=True, text=True, timeout=60).stdout

    def victim(self, name: str, host: str = "h2") -> "subprocess.Popen[str]":
        """A process on a host that its agent watches under a name."""
        process = self.start(host, "sleep", "600")
        # Until it is what it is called: `fide` becomes `fide-dev`, and that becomes `sleep`.
        while Path(f"/proc/{process.pid}/comm").read_text().strip() != "sleep":
            assert process.poll() is None
        self.run(host, self.fide, "monitor", name, "--pid", str(process.pid))
        return process

    def python(self, host: str, program: str, *arguments: str) -> "subprocess.Popen[str]":
        return self.start(host, sys.executable, "-u", "-c", program, *arguments)


@pytest.fixture
def lab() -> Iterator[Lab]:
    name = os.environ.get("FIDE_LAB")
    if not name:
        pytest.skip("SKIPPED: no lab (FIDE_LAB): scripts/bindings makes one")
    lab = Lab(name, os.environ["FIDE"])
    yield lab
    for process in lab.started:
        process.kill()
        process.wait()
