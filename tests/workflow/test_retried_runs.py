"""What a retried run keeps and what it runs again: hooks, what comes after a failure, outputs of the whole workflow."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from everstep.runtime.workflow import parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import GateOpened, PodEnded, PodStarted, RunCreated, RunResumed
from everstep.runtime.workflow.engine.nodes import Phase
from tests.workflow.running import workflow

POD = {"name": "pod", "container": {"image": "i", "command": ["true"]}}
RETRIED = {**POD, "name": "retried", "retryStrategy": {"limit": 1}}
EXIT = {"exit": {"template": "pod"}}
GLOBAL = {"name": "p", "globalName": "x"}
MAKE = {**POD, "name": "make", "outputs": {"parameters": [{**GLOBAL, "valueFrom": {"path": "/tmp/p"}}]}}
USE = {"name": "use", "container": {"image": "i", "command": ["echo"], "args": ["{{workflow.outputs.parameters.x}}"]}}


def run_to_end(engine: Engine, now: float, failing: Collection[str] = ()) -> dict[str, Mapping[str, Any]]:
    """Let all pods end until none is pending; the containers that ran, by node, in that order."""
    containers: dict[str, Mapping[str, Any]] = {}
    while pending := engine.pending_pods():
        for node in pending:
            containers[node.name] = node.spec["container"]
            engine.handle(PodStarted(now, node.name, 7, 7))
            engine.handle(PodEnded(now, node.name, int(node.name in failing), {"p": "made"}))
    return containers


def retried_containers(templates: list[Any], failing: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """What runs in the second life of a run in whose first life these nodes failed."""
    engine = Engine(parse(workflow(templates)), RunCreated(0.0, "w", "u"))
    run_to_end(engine, 1.0, failing)
    assert engine.phase is Phase.FAILED
    engine.handle(RunResumed(2.0, after_failures=True))
    containers = run_to_end(engine, 3.0)
    assert engine.phase is Phase.SUCCEEDED
    return containers


def dag(*tasks: Mapping[str, Any], name: str = "main") -> dict[str, Any]:
    """A template of these tasks."""
    return {"name": name, "dag": {"tasks": list(tasks)}}


@pytest.mark.parametrize(
    ("template", "failing", "again"),
    [
        ("pod", {"w.a"}, ["w.a", "w.a.onExit"]),
        ("retried", {"w.a(0)", "w.a(1)"}, ["w.a(0)", "w.a.onExit"]),
        ("inner", {"w.a.x"}, ["w.a.x", "w.a.onExit"]),
    ],
)
def test_the_hooks_of_what_failed_run_again_with_it(template: str, failing: set[str], again: list[str]) -> None:
    inner = dag({"name": "x", "template": "pod"}, {"name": "y", "template": "pod"}, name="inner")
    main = dag({"name": "a", "template": template, "hooks": EXIT}, {"name": "b", "template": "pod", "hooks": EXIT})
    assert list(retried_containers([main, inner, POD, RETRIED], failing)) == again


@pytest.mark.parametrize("template", ["pod", "retried", "inner"])
def test_what_came_after_a_failure_runs_again_after_it(template: str) -> None:
    names = {"pod": ["w[0].a"], "retried": ["w[0].a(0)", "w[0].a(1)"], "inner": ["w[0].a.x(0)", "w[0].a.x(1)"]}[
        template
    ]
    a = {"name": "a", "template": template, "continueOn": {"failed": True}}
    beside, after, last = ({"name": name, "template": "pod"} for name in ("beside", "after", "last"))
    inner = dag({"name": "x", "template": "retried"}, name="inner")
    main = {"name": "main", "steps": [[a, beside], [after], [last]]}
    again = retried_containers([main, inner, POD, RETRIED], {*names, "w[2].last"})
    assert list(again) == [names[0], "w[1].after", "w[2].last"]


def test_what_came_after_an_attempt_that_succeeded_is_kept() -> None:
    main = dag(
        {"name": "a", "template": "retried", "hooks": EXIT},
        {"name": "b", "template": "pod", "depends": "a"},
        {"name": "c", "template": "pod", "depends": "b"},
    )
    assert list(retried_containers([main, POD, RETRIED], {"w.a(0)", "w.c"})) == ["w.c"]


LOCKED = {"synchronization": {"mutexes": [{"name": "one"}]}}
BOTH = dag({"name": "x", "template": "pod"}, {"name": "y", "template": "pod"}, name="both")


def with_lock(
    template: Mapping[str, Any], failing: Collection[str], resumption: RunResumed
) -> tuple[Engine, list[str]]:
    """(a run in its second life, the nodes that then wait for a lock): `w.a` has that template and one lock."""
    main = dag({"name": "a", "template": "locked"}, {"name": "b", "template": "pod", "depends": "a"})
    templates = [main, POD, RETRIED, BOTH, {**template, "name": "locked", **LOCKED}]
    engine = Engine(parse(workflow(templates)), RunCreated(0.0, "w", "u"))
    assert list(engine.state.gates) == ["w.a"]
    engine.handle(GateOpened(1.0, "w.a"))
    run_to_end(engine, 2.0, failing)
    assert engine.phase is Phase.FAILED
    engine.handle(resumption)
    return engine, list(engine.state.gates)


@pytest.mark.parametrize("template", [POD, RETRIED, BOTH], ids=["pod", "retried", "both"])
def test_what_is_kept_as_a_whole_waits_for_no_lock(template: Mapping[str, Any]) -> None:
    engine, gates = with_lock(template, {"w.a(0)", "w.b"}, RunResumed(3.0, after_failures=True))
    assert not gates
    assert list(run_to_end(engine, 4.0, {"w.b"})) == ["w.b"]
    engine.handle(RunResumed(5.0, after_failures=True))
    assert not engine.state.gates, "in the third life neither"
    assert list(run_to_end(engine, 6.0)) == ["w.b"]
    assert engine.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("template", "failing", "resumption"),
    [
        (POD, "w.a", RunResumed(3.0)),
        (POD, "w.b", RunResumed(3.0, ["w.a"])),
        (RETRIED, "w.b", RunResumed(3.0, ["w.a(0)"])),
        (BOTH, "w.a.y", RunResumed(3.0)),
        (BOTH, "w.b", RunResumed(3.0, ["w.a.x"])),
        (BOTH, "w.b", RunResumed(3.0, [], {"p": "other"})),
    ],
)
def test_what_runs_again_even_in_part_waits_for_its_lock_again(
    template: Mapping[str, Any], failing: str, resumption: RunResumed
) -> None:
    _, gates = with_lock(template, {failing}, resumption)
    assert gates == ["w.a"]


def test_a_group_that_skipped_all_waits_for_its_lock_as_it_may_run_more_after_what_runs_again() -> None:
    skips = dag({"name": "x", "template": "pod", "when": "{{inputs.parameters.p}} == other"}, name="locked")
    skips |= {"inputs": {"parameters": [{"name": "p"}]}, **LOCKED}
    made = {"parameters": [{"name": "p", "value": "{{tasks.a.outputs.parameters.p}}"}]}
    b = {"name": "b", "template": "locked", "depends": "a", "arguments": made}
    templates = [dag({"name": "a", "template": "make"}, b), MAKE, POD, skips]
    engine = Engine(parse(workflow(templates)), RunCreated(0.0, "w", "u"))
    run_to_end(engine, 1.0)
    engine.handle(GateOpened(2.0, "w.b"))
    assert engine.phase is Phase.SUCCEEDED
    engine.handle(RunResumed(3.0, ["w.a"]))
    run_to_end(engine, 4.0)
    assert list(engine.state.gates) == ["w.b"]


def test_a_retry_that_an_earlier_version_logged_is_replayed_as_it_went() -> None:
    main = dag({"name": "a", "template": "pod", "hooks": EXIT}, {"name": "b", "template": "pod", "depends": "a"})
    engine = Engine(parse(workflow([main, POD])), RunCreated(0.0, "w", "u"))
    run_to_end(engine, 1.0, {"w.a"})
    engine.handle(RunResumed(2.0))
    assert list(run_to_end(engine, 3.0)) == ["w.a", "w.b"]


def test_a_call_that_a_limit_held_until_the_end_runs_again_with_the_others() -> None:
    items = {"name": "a", "template": "pod", "depends": "z", "withItems": [0, 1, 2]}
    main = {**dag({"name": "z", "template": "pod"}, items), "parallelism": 1, "failFast": True}
    engine = Engine(parse(workflow([main, POD])), RunCreated(0.0, "w", "u"))
    assert list(run_to_end(engine, 1.0, {"w.a(1:1)"})) == ["w.z", "w.a(0:0)", "w.a(1:1)"]
    engine.handle(RunResumed(2.0, ["w.z"]))
    assert list(run_to_end(engine, 3.0)) == ["w.z", "w.a(0:0)", "w.a(1:1)", "w.a(2:2)"]


@pytest.mark.parametrize("items", [{}, {"withItems": ["only"]}])
def test_a_kept_step_gives_the_workflow_its_outputs_again(items: Mapping[str, Any]) -> None:
    steps = [[{"name": "a", "template": "make", **items}], [{"name": "b", "template": "pod"}]]
    main = {"name": "main", "steps": [*steps, [{"name": "c", "template": "use"}]]}
    again = retried_containers([main, MAKE, POD, USE], {"w[1].b"})
    assert list(again) == ["w[1].b", "w[2].c"]
    assert again["w[2].c"]["args"] == ["made"]


def test_a_step_whose_outputs_are_remembered_gives_them_to_the_workflow() -> None:
    memoize = {"key": "k", "cache": {"configMap": {"name": "c"}}}
    main = {"name": "main", "steps": [[{"name": "a", "template": "make"}], [{"name": "c", "template": "use"}]]}
    engine = Engine(parse(workflow([main, {**MAKE, "memoize": memoize}, USE])), RunCreated(0.0, "w", "u"))
    engine.handle(GateOpened(1.0, "w[0].a", hit=True, parameters=[{**GLOBAL, "value": "remembered"}]))
    assert run_to_end(engine, 2.0)["w[1].c"]["args"] == ["remembered"]
