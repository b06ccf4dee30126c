"""The agent and a worker that can leave a round: told when it is over, seated again, or killed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from everstep.runtime.agent import survivors, workers
from everstep.runtime.agent.environment import ERROR_FILE_VARIABLE
from everstep.runtime.agent.output import NodeLog
from everstep.runtime.agent.script import TRACEBACK_VARIABLE
from everstep.runtime.agent.worker_ends import WorkerEnd
from everstep.runtime.agent.workers import Seated, Workers, WorkerSpec
from everstep.runtime.protocol.messages import FINISH_S
from everstep.runtime.protocol.survivor_link import SOCKET_NAME, SPARE_VARIABLE
from everstep.runtime.protocol.worker_link import AGENT_VARIABLE

DEADLINE_S = 60
ENTERS = """\
    link.receive()
    link.send(Left(int(os.environ["EVERSTEP_ROUND"])))
    seat, files = link.receive()
    for stream, file in enumerate(files, start=1):
        os.dup2(file, stream)
        os.close(file)
    os.environ.update(seat.environment)
    link.send(Seated(seat.round))
"""
"""It leaves its round when it is told, and takes its seat in the next one."""
LEAVES = f"""
import os, sys
from everstep.runtime.protocol.survivor_link import *
link = SurvivorLink.from_environment()
print("round", os.environ["EVERSTEP_ROUND"], flush=True)
while os.environ["EVERSTEP_ROUND"] != "3":
{ENTERS}\
    print("round", seat.round, seat.restores, os.getpid() == int(sys.argv[1] or os.getpid()), flush=True)
"""
STAYS = """
import threading
from everstep.runtime.protocol.survivor_link import SurvivorLink
link = SurvivorLink.from_environment()
print("connected", flush=True)
threading.Event().wait()
"""
HAS_RETURNED = """
import threading
from everstep.runtime.protocol.survivor_link import SurvivorLink
SurvivorLink.from_environment().close()
print("connected", flush=True)
threading.Event().wait()
"""
RETURNS = """
import threading
from everstep.runtime.protocol.survivor_link import SurvivorLink
link = SurvivorLink.from_environment()
print("connected", flush=True)
link.receive()
link.close()
threading.Event().wait()
"""
SPARE = """
import os
from everstep.runtime.protocol.survivor_link import *
link = SurvivorLink.from_environment()
if SPARE_VARIABLE in os.environ:
    link.send(Rehearsed(0.5, os.environ["PROBLEM"]))
    seat, files = link.receive()
    os.dup2(files[0], 1)
    os.environ.update(seat.environment)
    link.send(Seated(seat.round))
    print("was a spare", flush=True)
print("round", os.environ["EVERSTEP_ROUND"], flush=True)
link.receive()
"""
LOSES_CONNECTION = """
import threading
from everstep.runtime.protocol.survivor_link import *
link = SurvivorLink.from_environment()
for round_ in (0, 2, 1):
    link.send(LostConnection(round_, f"of round {round_}"))
threading.Event().wait()
"""
FAILS = """
import atexit, os, threading
from everstep.runtime.protocol.survivor_link import *
link = SurvivorLink.from_environment()
link.send(Failed(1, {code}))
atexit.register(lambda: [print("ends", flush=True), threading.Event().wait()])
raise {error}
"""
HOLDS_PARENT = """
import os, time
def hold():
    open({held!r}, "w").close()
    while not os.path.exists({go_on!r}):
        time.sleep(0.005)
os.register_at_fork(after_in_parent=hold)
"""
KEEPS_READERS = """
import os, sys
from everstep.runtime.protocol.survivor_link import *
link = SurvivorLink.from_environment()
readers = []
def start_reader():
    (asked, ask), (told, tell) = os.pipe(), os.pipe()
    if not os.fork():
        try:
            os.close(ask)
            while os.read(asked, 1):
                print("a reader of round", started_in, flush=True)
                os.write(tell, b"x")
        finally:
            os._exit(0)
    os.close(asked)
    os.close(tell)
    readers.append((ask, told))
started_in = 0
if SPARE_VARIABLE in os.environ:
    start_reader()
    link.send(Rehearsed(0.5, ""))
    seat, files = link.receive()
else:
    seat, files = NextRound(1, {}, False), []
while True:
    for stream, file in enumerate(files, start=1):
        os.dup2(file, stream)
        os.close(file)
    if files:
        link.send(Seated(seat.round))
    started_in = seat.round
    if seat.round < 3:
        start_reader()
    print("round", seat.round, "begins", flush=True)
    link.receive()
    for ask, told in readers:
        os.write(ask, b"x")
        if not os.read(told, 1):
            sys.exit("a reader has ended")
    print("round", seat.round, "ends", flush=True)
    link.send(Left(seat.round))
    seat, files = link.receive()
"""
SURVIVES = f"""
import os
from everstep.runtime.protocol.survivor_link import *
link = SurvivorLink.from_environment()
print("round", os.environ["EVERSTEP_ROUND"], flush=True)
while True:
{ENTERS}\
    print("round", seat.round, flush=True)
"""
PLAIN = "import threading\nprint('connected', flush=True)\nthreading.Event().wait()\n"


@dataclass
class Node:
    """A node's workers, and the log that they write to."""

    workers: Workers
    folder: Path
    command: Sequence[str]
    log: int
    ends: "asyncio.Queue[WorkerEnd]" = field(default_factory=asyncio.Queue)
    notes: list[str] = field(default_factory=list)
    disconnected: "asyncio.Queue[tuple[int, int, str]]" = field(default_factory=asyncio.Queue)

    def start(self, round_: int, cpus: Sequence[int] = ()) -> Seated:
        """Start the round's one worker, or seat it again."""
        output = NodeLog(self.log, self.folder).open(0, round_)
        environment = {
            "RANK": str(round_), "EVERSTEP_ROUND": str(round_), AGENT_VARIABLE: str(self.folder / "link"),
            TRACEBACK_VARIABLE: str(self.folder / "traceback"), ERROR_FILE_VARIABLE: output.error_file,
        }  # fmt: skip
        return self.workers.start(round_, round_ > 1, [WorkerSpec(environment, tuple(self.command), output, cpus)])

    def start_spare(self, problem: str = "", cpus: Sequence[int] = ()) -> None:
        """Start a spare of the worker."""
        environment = {
            "EVERSTEP_ROUND": "0", AGENT_VARIABLE: str(self.folder / "link"), SPARE_VARIABLE: "1", "PROBLEM": problem
        }  # fmt: skip
        self.workers.start_spare(0, environment, self.command, cpus)

    async def wait_for_note(self, words: str) -> None:
        """Wait until a line about spares has these words."""
        while not any(words in line for line in self.notes):
            await asyncio.sleep(0.005)

    async def wait_for(self, words: str) -> None:
        """Wait until the log has these words."""
        while words not in (self.folder / "log").read_text():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def node(
    folder: Path, script: str, preload: Sequence[str] = (), must_be_gone: bool = False
) -> AsyncIterator[Node]:
    (folder / "train.py").write_text(script)
    log = os.open(folder / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    command = [str(folder / "train.py"), ""]
    ends: asyncio.Queue[WorkerEnd] = asyncio.Queue()
    notes: list[str] = []
    disconnected: asyncio.Queue[tuple[int, int, str]] = asyncio.Queue()
    workers = Workers(
        command, preload, ends.put_nowait, note=notes.append, must_be_gone=must_be_gone,
        on_disconnected=lambda *lost: disconnected.put_nowait(lost),
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE_S):
            workers.open(folder / SOCKET_NAME)
            await workers.wait_until_ready(False)
            yield Node(workers, folder, command, log, ends, notes, disconnected)
    finally:
        await workers.close()
        os.close(log)


def open_pipes() -> int:
    """How many ends of pipes this process has open."""
    count = 0
    for file in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{file}").startswith("pipe:")
    return count


def test_a_worker_that_leaves_its_round_is_seated_again_with_a_new_environment_and_output(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, LEAVES) as worker_node:
            assert worker_node.start(1) == ([], [])
            await worker_node.wait_for("[1] round 1")
            before = worker_node.workers.pids()
            for round_ in (2, 3):
                worker_node.workers.end_round(round_ - 1)
                assert await worker_node.workers.wait_until_free() == []
                assert worker_node.start(round_) == ([0], [])
                await worker_node.wait_for(f"[{round_}] round {round_} True True")
                assert worker_node.workers.pids() in (before, {})
            end = await worker_node.ends.get()
            assert (end.round, end.exit_code) == (3, 0)

    asyncio.run(story())


def test_a_worker_that_leaves_its_round_after_its_iteration_is_not_told_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, LEAVES) as worker_node:
            worker_node.start(1)
            await worker_node.wait_for("[1] round 1")
            await worker_node.workers.end_iteration(1, 0.1)
            worker_node.workers.end_round(1)
            assert await worker_node.workers.wait_until_free() == []
            assert worker_node.start(2) == ([0], [])
            await worker_node.wait_for("[2] round 2 True True")

    asyncio.run(story())


@pytest.mark.parametrize("pace_s", [0.0, 0.02, FINISH_S])
def test_a_worker_whose_iteration_lasts_too_long_leaves_its_round_within_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace_s: float
) -> None:
    monkeypatch.setattr(survivors, "_LATE_S", 0.0)
    told = "assert isinstance(link.receive()[0], LastIteration)\n" if 0 < 2 * pace_s <= FINISH_S else ""
    script = LEAVES.replace("while", f"{told}while")

    async def story() -> None:
        async with node(tmp_path, script) as worker_node:
            worker_node.start(1)
            await worker_node.wait_for("[1] round 1")
            await worker_node.workers.end_iteration(1, pace_s)
            worker_node.workers.end_round(1)
            assert await worker_node.workers.wait_until_free() == []
            assert worker_node.start(2) == ([0], [])
            await worker_node.wait_for("[2] round 2 True True")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("script", "lines"),
    [(STAYS, 1), (PLAIN, 0), (HAS_RETURNED, 0), (RETURNS, 0)],
    ids=["connected", "not connected", "function has returned", "function returns meanwhile"],
)
def test_a_worker_that_does_not_leave_its_round_is_killed_and_started_anew(
    tmp_path: Path, script: str, lines: int
) -> None:
    async def story() -> None:
        async with node(tmp_path, script) as worker_node:
            worker_node.start(1)
            await worker_node.wait_for("connected")
            worker_node.workers.end_round(1)
            pids = await worker_node.workers.wait_until_free()
            assert len(pids) == lines
            assert all("did not leave the round" in line for line in pids)
            assert (await worker_node.ends.get()).exit_code == -signal.SIGKILL
            assert worker_node.start(2) == ([], [])
            await worker_node.wait_for("[2] connected")

    asyncio.run(story())


def test_a_connection_that_a_worker_lost_in_its_round_is_told_with_its_rank(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, LOSES_CONNECTION) as worker_node:
            worker_node.start(1)
            assert await worker_node.disconnected.get() == (1, 0, "of round 1")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("error", "code", "words"), [("ValueError('its own')", 1, "ValueError: its own"), ("SystemExit(3)", 3, "ends")]
)
def test_a_worker_that_has_failed_and_does_not_end_is_killed_and_counts_as_failed(
    tmp_path: Path, error: str, code: int, words: str
) -> None:
    async def story() -> None:
        async with node(tmp_path, FAILS.format(error=error, code=code)) as worker_node:
            worker_node.start(1)
            await worker_node.wait_for("ends")
            while not worker_node.workers._survivors.failed_with(worker_node.workers.pids().get(0, 0)):
                await asyncio.sleep(0.005)
            await worker_node.workers.wait_for_exits()
            end = worker_node.ends.get_nowait()
            assert (end.round, end.local_rank, end.exit_code) == (1, 0, code)
            assert words in end.error

    asyncio.run(story())


def test_a_worker_that_runs_before_its_fork_server_goes_on_leaves_its_round(tmp_path: Path) -> None:
    held, go_on = tmp_path / "held", tmp_path / "go-on"
    (tmp_path / "late.py").write_text(HOLDS_PARENT.format(held=str(held), go_on=str(go_on)))

    async def story() -> None:
        async with node(tmp_path, LEAVES, ["late"]) as worker_node:
            worker_node.start(1)
            await worker_node.wait_for("[1] round 1")
            worker_node.workers.end_round(1)
            assert await worker_node.workers.wait_until_free() == []
            assert worker_node.start(2) == ([0], [])
            await worker_node.wait_for("[2] round 2 True True")
            while not held.exists():
                await asyncio.sleep(0.005)
            go_on.touch()

    asyncio.run(story())


def test_a_worker_that_dies_between_two_rounds_is_started_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, LEAVES) as worker_node:
            worker_node.start(1)
            await worker_node.wait_for("[1] round 1")
            worker_node.workers.end_round(1)
            await worker_node.workers.wait_until_free()
            worker_node.workers.signal_all(signal.SIGKILL)
            await worker_node.ends.get()
            assert worker_node.start(2) == ([], [])
            await worker_node.wait_for("[2] round 2")

    asyncio.run(story())


def test_a_worker_that_dies_is_followed_by_a_warm_spare(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, SPARE) as worker_node:
            worker_node.start(1)
            await worker_node.wait_for("[1] round 1")
            worker_node.start_spare()
            await worker_node.wait_for_note("a spare is warm after 0.5 s")
            worker_node.workers.signal_all(signal.SIGKILL)
            await worker_node.ends.get()
            assert worker_node.start(2) == ([], [0])
            await worker_node.wait_for("[2] was a spare\n[2] round 2")
            assert worker_node.workers.spares.numbers() == []
            worker_node.workers.signal_all(signal.SIGKILL)
            assert (await worker_node.ends.get()).round == 2

    asyncio.run(story())


@pytest.mark.parametrize("must_be_gone", [False, True])
@pytest.mark.parametrize("spare", [False, True])
def test_a_workers_end_is_reported_before_its_parent_knows_and_only_a_spare_needs_no_room(
    tmp_path: Path, spare: bool, must_be_gone: bool
) -> None:
    """The fork server stands still, as if the kernel freed much memory."""

    async def story() -> None:
        async with node(tmp_path, SPARE, must_be_gone=must_be_gone) as one:
            one.start(1)
            await one.wait_for("[1] round 1")
            if spare:
                one.start_spare()
                await one.wait_for_note("a spare is warm")
            (worker,) = one.workers.pids().values()
            while not list(tmp_path.glob("life-1")):
                await asyncio.sleep(0.005)
            server = psutil.Process(worker).parent()
            assert server is not None
            server.suspend()
            try:
                os.kill(worker, signal.SIGKILL)
                end = await one.ends.get()
                assert (end.round, end.exit_code, end.pid) == (1, -signal.SIGKILL, worker)
                one.workers.end_round(1)
                free = asyncio.ensure_future(one.workers.wait_until_free())
                await asyncio.wait([free], timeout=0.1)
                assert free.done() == (spare and not must_be_gone)
            finally:
                server.resume()
            await free
            assert one.start(2) == ([], [0] if spare else [])
            await one.wait_for("[2] round 2")
            assert one.ends.empty(), "an end is reported once"

    asyncio.run(story())


def test_a_spare_that_still_rehearses_is_left_alone_and_the_worker_started_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, STAYS) as worker_node:
            worker_node.start_spare()
            assert worker_node.start(1) == ([], [])
            await worker_node.wait_for("[1] connected")
            assert worker_node.workers.spares.rehearses

    asyncio.run(story())


def test_a_spare_that_dies_is_buried_and_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, "raise SystemExit('no room')") as worker_node:
            worker_node.start_spare()
            await worker_node.wait_for_note("a spare ended with exit code 1: no room")
            assert worker_node.workers.spares.numbers() == []
            assert worker_node.ends.empty()

    asyncio.run(story())


def test_a_spare_runs_on_the_cpus_of_its_worker_and_takes_no_seat_with_others(tmp_path: Path) -> None:
    cpus = [max(os.sched_getaffinity(0))]
    script = SPARE.replace('"was a spare"', '"was a spare on", sorted(os.sched_getaffinity(0))')

    async def story() -> None:
        async with node(tmp_path, script) as worker_node:
            worker_node.start(1, cpus)
            await worker_node.wait_for("[1] round 1")
            worker_node.start_spare(cpus=cpus)
            await worker_node.wait_for_note("a spare is warm")
            worker_node.workers.signal_all(signal.SIGKILL)
            await worker_node.ends.get()
            assert worker_node.start(2) == ([], []), "the worker of this seat is not bound"
            await worker_node.wait_for("[2] round 2")
            worker_node.workers.signal_all(signal.SIGKILL)
            await worker_node.ends.get()
            assert worker_node.start(3, cpus) == ([], [0])
            await worker_node.wait_for(f"[3] was a spare on {cpus}")

    asyncio.run(story())


def test_a_worker_waits_for_a_seat_from_the_end_of_its_round_until_it_has_one_or_is_dead(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, SURVIVES) as worker_node:
            worker_node.start(1)
            for round_ in (1, 2):
                await worker_node.wait_for(f"[{round_}] round {round_}")
                assert worker_node.workers.unseated_ranks() == set()
                worker_node.workers.end_round(round_)
                assert worker_node.workers.unseated_ranks() == {0}
                await worker_node.workers.wait_until_free()
                assert worker_node.workers.unseated_ranks() == {0}
                if round_ == 1:
                    worker_node.start(2)
            worker_node.workers.signal_all(signal.SIGKILL)
            await worker_node.ends.get()
            assert worker_node.workers.unseated_ranks() == set()

    asyncio.run(story())


@pytest.mark.parametrize("spare", [False, True])
def test_processes_that_a_worker_keeps_write_to_the_output_of_the_round_that_started_them(
    tmp_path: Path, spare: bool
) -> None:
    async def story() -> None:
        async with node(tmp_path, KEEPS_READERS) as worker_node:
            before = open_pipes()
            if spare:
                worker_node.start_spare()
                await worker_node.wait_for_note("a spare is warm")
            assert worker_node.start(1) == ([], [0] if spare else [])
            for round_ in (1, 2, 3):
                await worker_node.wait_for(f"[{round_}] round {round_} begins")
                worker_node.workers.end_round(round_)
                assert await worker_node.workers.wait_until_free() == []
                assert worker_node.start(round_ + 1) == ([0], []), (tmp_path / "log").read_text()
            await worker_node.wait_for("[4] round 4 begins")
            lines = (tmp_path / "log").read_text().splitlines()
            assert [lines.count(f"[{number}] a reader of round {number}") for number in (1, 2)] == [3, 2]
            worker_node.workers.signal_all(signal.SIGKILL)
            await worker_node.ends.get()
            assert open_pipes() == before

    asyncio.run(story())


@pytest.mark.parametrize("keeps", [False, True])
def test_of_the_outputs_of_earlier_rounds_only_those_that_are_held_are_open_and_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    monkeypatch.setattr(workers, "_MOST_KEPT", 3)
    script = SURVIVES.replace("    link.receive()\n", "    link.receive()\n    os.dup(1)\n") if keeps else SURVIVES

    async def story() -> None:
        async with node(tmp_path, script) as worker_node:
            worker_node.start(1)
            counts = list[int]()
            for round_ in range(1, 21):
                await worker_node.wait_for(f"[{round_}] round {round_}\n")
                counts.append(open_pipes())
                worker_node.workers.end_round(round_)
                assert await worker_node.workers.wait_until_free() == []
                assert worker_node.start(round_ + 1) == ([0], [])
            more = [count - counts[0] for count in counts]
            assert more == ([0, 1, 2] + [3] * 17 if keeps else [0] * 20)

    asyncio.run(story())
