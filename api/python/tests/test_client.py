"""Against real agents on three hosts of a lab."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import Lab

import fide
from fide import aio
from fide.aio import Client as AsyncClient

TALKER = """
import fide, sys, time
client = fide.Client()
client.join(sys.argv[1], pbsize=64)
print("joined")
for count in range(10 ** 9):
    try:
        client.piggyback(b"load %d" % count)
    except fide.FullError:
        pass
    time.sleep(0.005)
"""
LEAVER = """
import fide, sys
client = fide.Client()
client.join(sys.argv[1])
print("joined")
sys.stdin.readline()
client.quit()
"""


def test_enumerations_are_those_of_the_library() -> None:
    ours = {cause.value: str(cause) for cause in fide.Cause}
    assert dict(fide._fide.causes()).items() <= ours.items()


def test_without_an_agent_the_error_says_what_to_do() -> None:
    with pytest.raises(fide.DisconnectedError, match="systemctl start fided") as caught:
        fide.Client("/nonexistent/fided.sock")
    assert caught.value.code == fide.ErrorCode.DISCONNECTED
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.code) == (fide.DisconnectedError, str(caught.value), caught.value.code)


def test_a_crash_is_told_with_cause_grade_and_stamps(lab: Lab) -> None:
    victim = lab.victim("py-db")
    with fide.Client(lab.socket("h1")) as client:
        assert client.node == "h1" and client.cluster == "lab"
        deadline = time.monotonic() + 60
        while not (now := client.monitor("py-db@h2")).alive and time.monotonic() < deadline:
            time.sleep(0.02)
        assert now.state == fide.TargetState.ALIVE and now.app > 0 and now.timeout > 0
        victim.kill()
        failure = client.next_event(60)
        while failure is not None and failure.kind == fide.EventKind.MONITORED:
            failure = client.next_event(60)
        assert failure is not None and failure.kind == fide.EventKind.FAILURE, failure
        assert failure.name == "py-db@h2" and failure.grade == fide.Grade.CERTAIN and failure.cause is not None
        assert failure.cause.is_crash and failure.code == signal.SIGKILL
        assert failure.id and 0 < failure.received_ns < fide.now_ns()
        confirmed = client.next_event(60)
        if failure.cause == fide.Cause.DOOMED:
            assert confirmed is not None and confirmed.kind == fide.EventKind.CONFIRMED and confirmed.confirms
            assert confirmed.cause == fide.Cause.KILLED
        ended = client.monitor("py-db@h2")
        assert not ended.alive and ended.state == fide.TargetState.ENDED and ended.code == signal.SIGKILL
        client.unmonitor("py-db@h2")
        with pytest.raises(fide.NotFoundError):
            client.unmonitor("py-db@h2")
    with pytest.raises(RuntimeError, match="closed"):
        client.monitor("py-db@h2")


def test_targets_that_make_no_sense_are_refused(lab: Lab) -> None:
    with fide.Client(lab.socket("h1")) as client:
        with pytest.raises(fide.InvalidError) as caught:
            client.monitor("no@such@thing")
        assert isinstance(caught.value, ValueError) and caught.value.code == fide.ErrorCode.INVALID
        assert client.monitor("x@nohost").state == fide.TargetState.NO_HOST
        with pytest.raises(ValueError, match="timeout"):
            client.next_event(-1)


def test_a_wait_ends_in_time_and_lets_other_threads_run(lab: Lab) -> None:
    with fide.Client(lab.socket("h1")) as client:
        counted = 0
        done = threading.Event()

        def count() -> None:
            nonlocal counted
            while not done.is_set():
                counted += 1
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        begun = time.monotonic()
        assert client.next_event(0.3) is None
        took = time.monotonic() - begun
        done.set()
        thread.join()
        assert 0.3 <= took < 30 and counted > 20


def test_messages_ride_on_heartbeats_until_the_crash(lab: Lab) -> None:
    talker = lab.python("h2", TALKER, "py-talker")
    assert talker.stdout is not None and talker.stdout.readline() == "joined\n"
    with fide.Client(lab.socket("h1")) as client:
        client.monitor("py-talker@h2", pbsize=64)
        messages: list[int] = []
        failed = False
        while not failed:
            event = client.next_event(60)
            assert event is not None
            if event.kind == fide.EventKind.PIGGYBACK:
                assert event.name == "py-talker@h2" and event.number > 0
                messages.append(int(event.data.split()[1]))
                if len(messages) == 20:
                    talker.kill()
            failed = event.kind == fide.EventKind.FAILURE
        assert messages == sorted(set(messages)), "in order, each once, none after the failure"
        late = client.next_event(0.3)
        assert late is None or late.kind != fide.EventKind.PIGGYBACK


def test_who_quits_does_not_crash(lab: Lab) -> None:
    with fide.Client(lab.socket("h1")) as client:
        client.monitor("py-leaver@h2")
        leaver = lab.start("h2", "sh", "-c", 'sleep 1 | exec "$0" -u -c "$1" py-leaver', sys.executable, LEAVER)
        assert leaver.stdout is not None and leaver.stdout.readline() == "joined\n"
        event = client.next_event(60)
        while event is not None and event.kind != fide.EventKind.FAILURE:
            event = client.next_event(60)
        assert event is not None and event.cause == fide.Cause.LEFT and not event.cause.is_crash


def test_piggyback_needs_join_and_room(lab: Lab) -> None:
    with fide.Client(lab.socket("h1")) as client:
        with pytest.raises(fide.InvalidError, match="join"):
            client.piggyback(b"x")
        assert client.pbsize == 0


def test_asyncio_waits_for_events_beside_other_work(lab: Lab) -> None:
    victim = lab.victim("py-async")

    async def failure_of(client: AsyncClient) -> fide.Event:
        async for event in client:
            if event.kind == fide.EventKind.FAILURE:
                return event
        raise AssertionError("the agent is gone")

    async def main() -> fide.Event:
        async with await aio.Client.open(lab.socket("h3")) as client:
            while not (await client.monitor("py-async@h2")).alive:
                await asyncio.sleep(0.02)
            waiting = asyncio.create_task(failure_of(client))
            # A wait that is given up loses nothing, and the loop runs meanwhile.
            await asyncio.sleep(0.2)
            assert not waiting.done()
            victim.kill()
            return await asyncio.wait_for(waiting, 60)

    event = asyncio.run(main())
    assert event.name == "py-async@h2" and event.cause is not None and event.cause.is_crash


def test_progress_that_stops_is_told_as_hung(lab: Lab) -> None:
    program = """
import fide, sys, time
client = fide.Client()
client.join("py-hangs")
counter = client.progress(0.05)
print("joined")
for _ in range(20):
    counter.tick()
    time.sleep(0.01)
with counter:
    time.sleep(600)
"""
    with fide.Client(lab.socket("h1")) as client:
        client.monitor("py-hangs@h2")
        lab.python("h2", program)
        event = client.next_event(60)
        while event is not None and event.kind != fide.EventKind.HUNG:
            assert event.kind != fide.EventKind.FAILURE, event
            event = client.next_event(60)
        assert event is not None and event.name == "py-hangs@h2"


def test_after_the_agents_end_the_handle_connects_anew(lab: Lab) -> None:
    directory = lab.socket("h3").parent
    victim = lab.victim("py-stays")
    with fide.Client(lab.socket("h3")) as client:
        while not client.monitor("py-stays@h2").alive:
            time.sleep(0.02)
        config = str(directory / "fide.toml")
        found = subprocess.run(["pgrep", "-f", f"fided --config {config}"], capture_output=True, text=True).stdout.split()
        assert len(found) == 1, found
        os.kill(int(found[0]), signal.SIGTERM)
        event = client.next_event(60)
        while event is not None and event.kind != fide.EventKind.AGENT_GONE:
            assert event.kind != fide.EventKind.FAILURE, event
            event = client.next_event(60)
        assert event is not None
        with pytest.raises(fide.DisconnectedError):
            client.next_event(0)
        assert list(client) == []
        while Path(f"/proc/{found[0]}").exists():  # it hangs up before it has ended
            time.sleep(0.01)
        fided = str(Path(lab.fide).with_name("fided"))
        again = lab.start("h3", fided, "--config", config)
        lab.started.remove(again)  # it goes with the lab
        deadline = time.monotonic() + 60
        while True:
            assert again.poll() is None and time.monotonic() < deadline
            try:
                resumed = client.reconnect()
                break
            except fide.DisconnectedError:
                time.sleep(0.05)
        assert [target for target, _ in resumed.targets] == ["py-stays@h2"] and resumed.joined is None
        while not client.monitor("py-stays@h2").alive:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        victim.kill()
        event = client.next_event(60)
        while event is not None and event.kind != fide.EventKind.FAILURE:
            event = client.next_event(60)
        assert event is not None and event.name == "py-stays@h2"


def test_what_is_in_maintenance_is_told(lab: Lab) -> None:
    with fide.Client(lab.socket("h1")) as client:
        assert client.maintenance("py-planned@h2") is None
        lab.run("h2", lab.fide, "maintenance", "on", "py-planned@h2", "--for", "5m")
        deadline = time.monotonic() + 60
        while (left := client.maintenance("py-planned@h2")) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert 200 < left <= 300
        assert client.maintenance("py-planned@h3") is None and client.maintenance("@h2") is None
        lab.run("h3", lab.fide, "maintenance", "off", "py-planned@h2")
        while client.maintenance("py-planned@h2") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(fide.InvalidError):
            client.maintenance("py-planned")


def test_a_group_decides_values_in_one_order(lab: Lab) -> None:
    lab.run("h1", lab.fide, "group", "create", "pyorders", "--hosts", "h1,h2,h3")
    with fide.Group("pyorders", path=lab.socket("h1")) as one, fide.Group("pyorders", path=lab.socket("h2")) as two:
        number = one.propose(b"first")
        seen: list[list[bytes]] = []
        for group in (one, two):
            values: list[bytes] = []
            standing = None
            while len(values) < 1:
                event = group.next_event(60)
                assert event is not None
                if isinstance(event, fide.Entry):
                    values.append(event.value)
                    assert event.index == 1 and event.own == (group is one) and event.number == number
                elif isinstance(event, fide.Standing):
                    standing = event.stage
            assert standing == fide.Stage.RUNNING
            seen.append(values)
        assert seen == [[b"first"], [b"first"]] and one.pending == 0
        one.ask_fate(number)
        later = one.propose(b"second", within=30)
        fate = None
        while fate is None:
            event = one.next_event(60)
            assert event is not None and not isinstance(event, fide.Overdue | fide.Refused)
            if isinstance(event, fide.Fated):
                fate = event
        assert (fate.number, fate.fate) == (number, fide.Fate.DECIDED) and later == number + 1
        with pytest.raises(fide.TooLargeError):
            one.propose(b"x" * (fide.VALUE_MAX + 1))
    with pytest.raises(fide.NotFoundError):
        fide.Group("nosuch", path=lab.socket("h1"))
