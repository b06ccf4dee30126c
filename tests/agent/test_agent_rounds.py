"""An agent process, its fork server and its workers, against a master that the test plays."""

import asyncio
import os
import signal
import textwrap
from contextlib import closing
from typing import Any

import aiohttp
import psutil
import pytest

from everstep.runtime.protocol.holdings import Holding, Restore
from everstep.runtime.protocol.messages import (
    Action,
    Disconnected,
    Dumped,
    Finished,
    Join,
    Leaving,
    Persisted,
    WorkerExit,
)
from tests.harness import wait_until
from tests.wire import FAR, Wire

REPORTS = """
import json, os, sys, threading
from everstep.runtime.protocol.worker_link import Link, Report
link = Link.from_environment()
link.tell(Report(1, {"pid": os.getpid(), "argv": json.dumps(sys.argv[1:]), "loss": float("nan")}))
"""
TRAINS = REPORTS + "threading.Event().wait()\n"


def run(story: Any) -> None:
    """Run a test's coroutine."""
    asyncio.run(story)


def test_workers_that_end_with_0_make_the_node_finished_and_leave_ends_it(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, REPORTS, "--lr", "0.1", slots="2"))
            line = await master.telemetry("pid")
            assert line["argv"] == '["--lr", "0.1"]'
            assert (line["v"], line["round"], line["iteration"], line["loss"]) == (1, 1, 1, "nan")
            assert (await master.next(Finished)).round == 1
            await master.direct(Action.LEAVE)
            node_end = await wait_for_end()
            assert (node_end.name, node_end.exit_code) == ("worker-0-0", 0)
            assert job.leftovers() == []

    run(story())


def test_an_agent_that_reaches_another_jobs_master_ends(job: Any, masters: Any, wait_for_end: Any) -> None:
    async def story() -> None:
        async with masters(job="other") as master:
            await job.platform.create(job.request(master.url, TRAINS))
            assert (await wait_for_end()).exit_code == 0
            assert f"the master of job other, not of {job.name}" in job.log()
            assert job.leftovers() == []

    run(story())


def test_that_a_node_was_unknown_before_it_joined_is_not_held_against_it_afterwards(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            master.stale = late = asyncio.Event()
            await job.platform.create(job.request(master.url, TRAINS))
            await master.telemetry("pid")
            late.set()
            await master.direct(Action.LEAVE)
            assert (await wait_for_end()).exit_code == 0
            assert "leaves: the test said so" in job.log()

    run(story())


def test_a_killed_worker_is_reported_its_siblings_die_and_the_node_joins_again(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, TRAINS, slots="2"))
            first, second = await master.telemetry("pid"), None
            while second is None or second["rank"] == first["rank"]:
                second = await master.telemetry("pid")
            os.kill(first["pid"], signal.SIGKILL)
            fault = await master.next(WorkerExit)
            assert (fault.exit_code, fault.round, fault.rank, fault.iteration) == (-9, 1, first["rank"], 1)
            assert (await master.next(Join)).after_round == 1
            fresh = await master.telemetry("pid")
            assert fresh["round"] == 2
            assert not _lives(second["pid"])
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_an_exception_is_reported_with_its_traceback_from_the_script_on(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, "print('so far')\nraise ValueError('no such thing')"))
            fault = await master.next(WorkerExit)
            assert fault.exit_code == 1
            assert "ValueError: no such thing" in fault.error
            assert "script.py" not in fault.error.replace("script-worker-0-0.py", "")
            assert "[0] so far" in job.log()
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_the_worker_that_broke_the_connections_is_reported_though_it_ends_after_a_sibling_that_lost_its_own(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    script = """
import os, time
if os.environ["LOCAL_RANK"] == "1":
    raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242")
other = f"/proc/{os.getppid()}/task/{os.getppid()}/children"
while len(open(other).read().split()) > 1:
    time.sleep(0.01)
raise ValueError("the cause")
"""

    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, script, slots="2"))
            fault = await master.next(WorkerExit)
            assert (fault.rank, fault.error.splitlines()[-1]) == (0, "ValueError: the cause")
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_an_error_file_is_preferred_to_the_last_words(job: Any, masters: Any, wait_for_end: Any) -> None:
    script = """
import json, os
told = {"message": {"message": "short", "extraInfo": {"py_callstack": "the whole story"}}}
open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(json.dumps(told))
raise SystemExit(3)
"""

    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, script))
            fault = await master.next(WorkerExit)
            assert (fault.exit_code, fault.error) == (3, "the whole story")
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


FAILS = (
    REPORTS
    + """
while not os.path.exists(sys.argv[1]):
    threading.Event().wait(0.01)
os.execv("/bin/sh", ["sh", "-c", "sleep 1; exit 201"])
"""
)
"""As another program, it holds no life line: only the fork server hears of its end."""


def test_a_worker_that_failed_before_its_round_was_broken_up_is_told_of_before_the_node_joins_again(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            fails = job.folder / "fails"
            await job.platform.create(job.request(master.url, FAILS, str(fails)))
            pid = (await master.telemetry("pid"))["pid"]
            assert (await master.next(Join)).after_round == 0
            server = psutil.Process(pid).ppid()
            os.kill(server, signal.SIGSTOP)  # What it has to tell comes later than what the master says.
            fails.touch()
            await asyncio.to_thread(wait_until, lambda: not _lives(pid), "the end of the worker")
            fails.unlink()
            await master.direct(Action.REJOIN, 1)
            await asyncio.to_thread(wait_until, lambda: "round 1 is over" in job.log(), "the end of the round")
            os.kill(server, signal.SIGCONT)
            exit_report, joins = await master.next((WorkerExit, Join)), await master.next((WorkerExit, Join))
            assert (exit_report.exit_code, exit_report.round) == (201, 1)
            assert joins.after_round == 1
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_what_a_failed_worker_reported_arrives_before_its_end_which_may_end_the_job(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            master.takes_telemetry.clear()
            (fails := job.folder / "fails").touch()
            await job.platform.create(job.request(master.url, FAILS, str(fails)))
            await asyncio.to_thread(
                wait_until, lambda: "ended with exit code 201" in job.log(), "the end of the worker"
            )
            fault = asyncio.create_task(master.next(WorkerExit))
            await asyncio.wait([fault], timeout=0.5)
            assert not fault.done(), "its telemetry is still on its way"
            fails.unlink()
            master.takes_telemetry.set()
            assert (await fault).exit_code == 201
            assert (await master.telemetry("pid"))["iteration"] == 1
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


ENDS_SLOWLY = (
    REPORTS
    + """
import atexit, time
atexit.register(lambda: time.sleep(0.1) or [open(sys.argv[1], "w"), time.sleep(1)])
raise ValueError("its own")
"""
)


ENDS_WITH_AN_ITERATION = """
import signal, sys, threading, time
from everstep.runtime.watch import in_worker
board = in_worker._watch._board
signal.signal(signal.SIGTERM, lambda *_: [board.finish_iteration(0.1, time.time()), sys.exit(0)])
board.finish_iteration(0.1, time.time())
threading.Event().wait()
"""
"""A script that does not report its iterations: its board shows them."""


def test_an_iteration_that_ends_while_the_workers_are_ended_is_told(job: Any, masters: Any, wait_for_end: Any) -> None:
    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, ENDS_WITH_AN_ITERATION))
            assert (await master.telemetry("stall_s"))["iteration"] == 1
            await master.direct(Action.LEAVE)
            await wait_for_end()
            assert (await master.telemetry("stall_s"))["iteration"] == 2

    run(story())


def test_a_worker_that_has_printed_its_own_error_may_end_before_the_node_joins_again(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            ends = job.folder / "ends"
            await job.platform.create(job.request(master.url, ENDS_SLOWLY, str(ends)))
            pid = (await master.telemetry("pid"))["pid"]
            assert (await master.next(Join)).after_round == 0
            await asyncio.to_thread(wait_until, ends.exists, "the error")
            assert _lives(pid), "another rank's end may be reported first"
            await master.direct(Action.REJOIN, 1)
            exit_report, joins = await master.next((WorkerExit, Join)), await master.next((WorkerExit, Join))
            assert (exit_report.exit_code, exit_report.round, joins.after_round) == (1, 1, 1)
            assert "ValueError: its own" in exit_report.error
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


LOSES_CONNECTION = (
    REPORTS
    + """
from everstep.runtime.protocol.survivor_link import LostConnection, SurvivorLink
SurvivorLink.from_environment().send(LostConnection(1, "RuntimeError: Connection closed by peer"))
threading.Event().wait()
"""
)


def test_a_worker_that_lives_and_has_lost_a_connection_is_told_of_and_the_node_goes_on(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, LOSES_CONNECTION))
            told = await master.next(Disconnected)
            assert told == Disconnected("worker-0-0", 1, 0, told.iteration, "RuntimeError: Connection closed by peer")
            assert "rank 0 lost its connection to another rank: RuntimeError: Connection closed by peer" in job.log()
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


SOME_FAIL = """
import atexit, os, sys, threading, time
rank = os.environ["RANK"]
if rank == "1":
    threading.Event().wait()
if rank == "2":
    atexit.register(lambda: [open(sys.argv[1], "w"), threading.Event().wait()])
while rank == "0" and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
raise ValueError("of " + rank)
"""
"""Rank 0 fails when rank 2 has failed and has not ended yet; rank 1 trains on."""


def test_the_ranks_of_a_node_that_failed_by_themselves_are_reported_with_the_first(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            seen = job.folder / "seen"
            await job.platform.create(job.request(master.url, SOME_FAIL, str(seen), slots="3"))
            fault = await master.next(WorkerExit)
            assert seen.exists(), "rank 2 has failed"
            assert (fault.rank, fault.failed) == (0, (0, 2))
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_rejoin_ends_the_round_but_not_a_later_one(job: Any, masters: Any, wait_for_end: Any) -> None:
    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, TRAINS))
            first = await master.telemetry("pid")
            await master.direct(Action.REJOIN, 1)
            second = await master.telemetry("pid")
            assert (second["round"], _lives(first["pid"])) == (2, False)
            await master.direct(Action.REJOIN, 1)  # Late: the agent sits in round 2 by now.
            await master.direct(Action.REJOIN, 2)
            third = await master.telemetry("pid")
            assert (third["round"], master.round) == (3, 3)
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_sigterm_is_told_as_leaving_and_the_workers_train_on_until_the_master_says_leave(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            node = await job.platform.create(job.request(master.url, TRAINS))
            worker = await master.telemetry("pid")
            os.kill(_agent(node), signal.SIGTERM)
            leaving = await master.next(Leaving)
            assert (leaving.node, leaving.grace_s) == ("worker-0-0", 17), "then its workers are told to end"
            assert "SIGTERM" in leaving.reason
            assert _lives(worker["pid"])
            await master.direct(Action.LEAVE)
            assert (await wait_for_end()).exit_code == 143
            assert job.leftovers() == []

    run(story())


@pytest.mark.parametrize("how", ["the notice is over", "a second signal"])
def test_a_node_that_nobody_tells_to_leave_goes_by_itself(job: Any, masters: Any, wait_for_end: Any, how: str) -> None:
    async def story() -> None:
        async with masters() as master:
            notice = "3.5" if how == "the notice is over" else "10000"
            node = await job.platform.create(job.request(master.url, TRAINS, notice=notice))
            await master.telemetry("pid")
            os.kill(_agent(node), signal.SIGTERM)
            await master.next(Leaving)
            if how == "a second signal":
                os.kill(_agent(node), signal.SIGTERM)
            assert (await wait_for_end()).exit_code == 143
            assert job.leftovers() == []

    run(story())


def test_told_to_dump_the_agent_writes_the_stacks_of_every_rank_to_its_log_and_the_store(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    script = f"def stuck_in_a_collective():\n{textwrap.indent(TRAINS, '    ')}stuck_in_a_collective()\n"

    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, script, slots="2"))
            workers = {}
            while len(workers) < 2:
                line = await master.telemetry("pid")
                workers[line["rank"]] = line["pid"]
            await master.direct(Action.DUMP)
            assert (await master.next(Dumped)).round == 1
            assert all(_lives(pid) for pid in workers.values())
            (log_copy,) = (job.folder / "store" / "jobs" / job.name / "logs" / "worker-0-0").iterdir()
            for text in (job.log(), log_copy.read_text()):
                assert text.count("stuck_in_a_collective (") == 2
                assert all(f"--- rank {rank}, process {pid}" in text for rank, pid in workers.items())
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_told_to_persist_the_agent_puts_the_newest_state_into_the_store(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    script = """
import threading
from everstep.runtime.protocol.worker_link import *
link = Link.from_environment()
segment = link.ask(Announce(100), Segment)
slot = link.ask(Acquire(7), Slot)
link.ask(Staged(slot.slot, 7, 10, False), Done)
link.tell(Report(7, {"staged": 7}))
threading.Event().wait()
"""

    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, script))
            await master.telemetry("staged")
            await master.direct(Action.PERSIST)
            assert (await master.next(Persisted)).holding == Holding(1, 7, key="newest")
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_a_killed_agent_takes_along_its_workers_and_what_they_started(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    script = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n" + TRAINS

    async def story() -> None:
        async with masters() as master:
            node = await job.platform.create(job.request(master.url, script))
            worker = await master.telemetry("pid")
            assert any("sleep" in line for line in job.leftovers())
            os.kill(int(node.uid.partition("-")[0]), signal.SIGKILL)
            assert (await wait_for_end()).exit_code == -9
            assert job.leftovers() == []
            assert not _lives(worker["pid"])

    run(story())


def test_workers_train_on_without_a_master_and_the_journal_leads_to_the_next(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    from everstep.runtime.journal.journal import claim
    from everstep.runtime.store import open_store

    async def story() -> None:
        async with masters(epoch=1) as master:
            await job.platform.create(job.request(master.url, TRAINS))
            worker = await master.telemetry("pid")
        store = open_store(str(job.folder / "store"))
        async with masters(epoch=2, after_round=1) as master:
            claim(store, job.name, "127.0.0.1:9", 0.0)
            claim(store, job.name, master.url.removeprefix("http://"), 0.0)
            os.kill(worker["pid"], signal.SIGKILL)
            assert (await master.next(WorkerExit)).exit_code == -9
            while (await master.telemetry("pid"))["round"] != 2:
                pass  # What the master before had not stored is told again, too.
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_without_any_master_the_dead_man_ends_the_node_with_75(job: Any, masters: Any, wait_for_end: Any) -> None:
    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, TRAINS, EVERSTEP_DEAD_MAN_S="2"))
            await master.telemetry("pid")
        assert (await wait_for_end()).exit_code == 75
        assert job.leftovers() == []
        assert "no master of this job answered for 2 s" in job.log()

    run(story())


def test_a_node_cut_off_from_the_store_too_ends_by_its_dead_man(job: Any, masters: Any, wait_for_end: Any) -> None:
    """The store does not answer: who reads the journal waits for ever."""

    async def story() -> None:
        journal = job.folder / "store" / "jobs" / job.name / "journal"
        journal.mkdir(parents=True)
        os.mkfifo(journal / "000001")
        async with masters() as master:
            await job.platform.create(job.request(master.url, TRAINS, EVERSTEP_DEAD_MAN_S="2"))
            await master.telemetry("pid")
        assert (await wait_for_end()).exit_code == 75
        assert job.leftovers() == []

    run(story())


def test_a_node_whose_packets_vanish_ends_by_its_dead_man(job: Any, masters: Any, wait_for_end: Any) -> None:
    """Nobody refuses it, nobody hangs up: its agent ends it, with its workers."""

    async def story() -> None:
        with closing(Wire()) as wire:
            async with masters() as master:
                port = int(master.url.rpartition(":")[2])
                wire.lead(port)
                await job.platform.create(job.request(f"http://{FAR}:{port}", TRAINS, EVERSTEP_DEAD_MAN_S="2"))
                worker = await master.telemetry("pid")
                assert await asyncio.to_thread(wire.answers, port, 20)
                wire.cut()
                assert not await asyncio.to_thread(wire.answers, port, 0.5), "the fault fired"
                assert (await wait_for_end()).exit_code == 75
                assert wire.held, "what it said did not pass"
                assert "no master of this job answered for 2 s" in job.log()
                assert not _lives(worker["pid"])
                assert job.leftovers() == []

    run(story())


def test_a_fork_server_that_dies_is_replaced_and_its_workers_are_a_fault(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, TRAINS))
            worker = await master.telemetry("pid")
            server = psutil.Process(worker["pid"]).ppid()
            os.kill(server, signal.SIGKILL)
            assert (await master.next(WorkerExit)).exit_code == -9
            assert (await master.telemetry("pid"))["round"] == 2
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_what_the_workers_of_a_dead_fork_server_have_started_does_not_run_beside_the_next_round(
    job: Any, masters: Any, wait_for_end: Any
) -> None:
    script = """
import os, subprocess, threading
from everstep.runtime.protocol.worker_link import Link, Report
child = subprocess.Popen(["sleep", "1000"])
Link.from_environment().tell(Report(1, {"pid": os.getpid(), "child": child.pid}))
threading.Event().wait()
"""

    async def story() -> None:
        async with masters() as master:
            await job.platform.create(job.request(master.url, script))
            worker = await master.telemetry("child")
            assert _lives(worker["child"])
            os.kill(psutil.Process(worker["pid"]).ppid(), signal.SIGKILL)
            assert (await master.next(WorkerExit)).exit_code == -9
            await asyncio.to_thread(wait_until, lambda: not _lives(worker["child"]), "the end of what it has started")
            fresh = await master.telemetry("child")
            assert fresh["round"] == 2
            assert _lives(fresh["child"])
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def test_what_is_staged_is_served_and_a_persisted_shard_is_told(job: Any, masters: Any, wait_for_end: Any) -> None:
    script = """
import mmap, os, threading
from everstep.runtime.protocol.worker_link import *
link = Link.from_environment()
assert link.ask(Fetch(), Fetched).path == "/some/where"
segment = link.ask(Announce(100), Segment)
assert link.ask(Acquire(13), Slot).waited_s == 0.25
slot = link.ask(Acquire(7), Slot)
with open(segment.path, "r+b") as file:
    file.write(b"0123456789")
link.ask(Staged(slot.slot, 7, 10, True), Done)
try:
    link.ask(Staged(1, 7, 10, True), Done)
except LinkError as error:
    link.tell(Report(7, {"problem": str(error), "flushed": link.ask(Flush(7), Done).detail}))
threading.Event().wait()
"""

    async def story() -> None:
        async with masters() as master:
            master.restore = Restore(0, 5, (), "newest")
            await job.platform.create(job.request(master.url, script))
            address = (await master.next(Join)).address
            events_by_kind = {"restored": None, "problem": None}
            assert (await master.next(Persisted)).holding == Holding(1, 7, key="k")
            events_by_kind = await master.telemetry("problem")
            assert (events_by_kind["problem"], events_by_kind["flushed"]) == ("there is one slot only", "manifest-7")
            url = f"http://{address}/v1/shards/1/7/0"
            bearer = {"Authorization": "Bearer secret"}
            async with aiohttp.ClientSession() as session:
                async with session.get(url) as reply:
                    assert reply.status == 401
                async with session.get(url, headers=bearer) as reply:
                    assert await reply.read() == b"0123456789"
                async with session.get(url, headers={**bearer, "Range": "bytes=2-4"}) as reply:
                    assert (reply.status, await reply.read()) == (206, b"234")
                async with session.get(url.replace("/7", "/8"), headers=bearer) as reply:
                    assert reply.status == 404
                copies = f"http://{address}/v1/copies"
                async with session.post(copies, headers=bearer, json={"source": {"round": 1, "iteration": 7}}) as reply:
                    assert (reply.status, await reply.text()) == (200, "no room"), (
                        "it answers at once, and at the end why not"
                    )
                async with session.post(copies, headers=bearer, json={"source": {"round": "x"}}) as reply:
                    assert reply.status == 400
            await master.direct(Action.LEAVE)
            await wait_for_end()

    run(story())


def _agent(node: Any) -> int:
    return int(node.uid.partition("-")[0])


def _lives(pid: int) -> bool:
    from everstep.runtime.system.processes import start_time

    return start_time(pid) is not None
