"""A stop and the deadline end also what waits: for a lock that nobody may ever release, or for its next attempt."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.workflow import RunOptions, execute, parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import GateOpened, PodEnded, PodStarted, RunCreated, ShutdownAsked
from everstep.runtime.workflow.engine.gates import Lock
from everstep.runtime.workflow.engine.nodes import Phase
from everstep.runtime.workflow.run.control_requests import ControlRequest, submit_request
from everstep.runtime.workflow.run.run_locks import SharedState
from tests.harness import PATIENCE_S
from tests.workflow.running import workflow

LOCK = {"mutexes": [{"name": "m"}]}
POD = {"name": "pod", "container": {"image": "i", "command": ["true"]}}
LOCKED = {**POD, "name": "locked", "synchronization": LOCK}
RETRIED = {**POD, "name": "retried", "retryStrategy": {"limit": 3, "backoff": {"duration": "1h"}}}
DEADLINE = "Step exceeded its deadline"
ENDS = {
    "Stop": "workflow shutdown with strategy:  Stop",
    "Terminate": "workflow shutdown with strategy:  Terminate",
    "deadline": DEADLINE,
}
"""How a run is ended from outside, and what that says of a node that has not begun."""


def begun(*templates: Any, **spec: Any) -> Engine:
    """A run of these templates, the first of which begins; it has 10 seconds."""
    return Engine(parse(workflow([*templates], activeDeadlineSeconds=10, **spec)), RunCreated(1.0, "w", "u"))


def end(engine: Engine, how: str) -> None:
    """End the run from outside."""
    if how == "deadline":
        engine.advance(11.0)
    else:
        engine.handle(ShutdownAsked(5.0, how))
        engine.advance(6.0)


def end_pod(engine: Engine, name: str, code: int) -> None:
    """Let a pending pod end."""
    engine.handle(PodStarted(1.0, name, 7, 7))
    engine.handle(PodEnded(2.0, name, code))


@pytest.mark.parametrize("how", ENDS)
def test_what_waits_for_a_lock_and_what_would_wait_after_it_is_ended(how: str) -> None:
    tasks = [{"name": "a", "template": "locked"}, {"name": "b", "template": "locked", "depends": "a.Failed"}]
    engine = begun({"name": "main", "dag": {"tasks": tasks}}, LOCKED, POD, onExit="pod")
    assert set(engine.state.gates) == {"w.a"}
    end(engine, how)
    assert not engine.state.gates
    nodes = {name: engine.state.nodes[name] for name in ("w.a", "w.b")}
    assert {(node.phase, node.message) for node in nodes.values()} == {(Phase.FAILED, ENDS[how])}
    pending = [node.name for node in engine.pending_pods()]
    assert pending == ([] if how == "Terminate" else ["w.onExit"]), "the exit handler runs but after Terminate"
    for name in pending:
        end_pod(engine, name, 0)
    assert engine.state.finished
    assert engine.phase is Phase.FAILED


@pytest.mark.parametrize("how", ENDS)
def test_a_run_that_waits_for_its_own_lock_is_ended(how: str) -> None:
    engine = begun(POD, synchronization=LOCK)
    assert set(engine.state.gates) == {""}
    end(engine, how)
    said = DEADLINE if how == "deadline" else f"Stopped with strategy '{how}'"
    assert (bool(engine.state.finished), engine.phase, engine.message) == (True, Phase.FAILED, said)
    engine.handle(GateOpened(12.0, ""))  # The lock was taken at the same time.
    assert not engine.state.nodes


@pytest.mark.parametrize("how", ENDS)
def test_a_node_that_waits_for_its_next_attempt_is_ended_at_once(how: str) -> None:
    engine = begun(RETRIED)
    end_pod(engine, "w(0)", 1)
    assert engine.state.nodes["w"].message == "Backoff for 3600 seconds"
    end(engine, how)
    assert engine.state.finished
    assert set(engine.state.nodes) == {"w", "w(0)"}
    said = "main: Error (exit code 1)" if how == "deadline" else f"Stopped with strategy '{how}'"
    assert (engine.state.nodes["w"].phase, engine.state.nodes["w"].message) == (Phase.FAILED, said)
    engine.advance(5000.0)
    assert not engine.pending_pods()


@pytest.mark.parametrize("handler", [LOCKED, RETRIED])
@pytest.mark.parametrize("how", ENDS)
def test_only_terminate_ends_an_exit_handler_that_waits(handler: dict[str, Any], how: str) -> None:
    engine = begun(POD, handler, onExit=handler["name"])
    end_pod(engine, "w", 0)
    if handler is RETRIED:
        end_pod(engine, "w.onExit(0)", 1)
    end(engine, how)
    assert bool(engine.state.finished) == (how == "Terminate")
    if handler is LOCKED:
        engine.handle(GateOpened(12.0, "w.onExit"))
    engine.advance(5000.0)
    going_on = {"locked": "w.onExit", "retried": "w.onExit(1)"}[handler["name"]]
    assert [node.name for node in engine.pending_pods()] == ([] if how == "Terminate" else [going_on])


def test_after_terminate_an_exit_handler_makes_no_further_attempt() -> None:
    handler = {**POD, "name": "handler", "retryStrategy": {"limit": 3}}
    engine = begun(POD, handler, onExit="handler")
    end_pod(engine, "w", 0)
    engine.handle(PodStarted(3.0, "w.onExit(0)", 7, 7))
    engine.handle(ShutdownAsked(4.0, "Terminate"))
    engine.handle(PodEnded(5.0, "w.onExit(0)", 143))
    assert engine.state.finished
    assert "w.onExit(1)" not in engine.state.nodes


def test_what_waits_for_a_lock_when_its_workflow_ends_takes_none() -> None:
    bad = {"name": "bad", "container": {"image": "i", "command": ["{{=}}"]}}
    steps = [[{"name": name, "template": template} for name, template in (("a", "locked"), ("b", "bad"))]]
    engine = begun({"name": "main", "steps": steps}, LOCKED, bad)
    assert engine.state.finished
    assert not engine.state.gates


def test_a_run_that_waits_for_a_lock_whose_holder_is_gone_is_terminated(tmp_path: Path) -> None:
    assert SharedState(tmp_path, "gone").take_locks("gone", [Lock("default/Mutex/m", 1)])

    async def terminated() -> Phase:
        waits = asyncio.Event()

        def look(engine: Engine, _: Path) -> None:
            if engine.state.gates:
                waits.set()

        running = asyncio.create_task(execute(workflow([LOCKED]), RunOptions("w", tmp_path, on_change=look)))
        async with asyncio.timeout(PATIENCE_S):
            await waits.wait()
            submit_request(tmp_path / "w", ControlRequest("terminate"))
            return (await running).phase

    assert asyncio.run(terminated()) is Phase.FAILED
