"""The engine in virtual time: every order of pod ends gives a whole workflow, and the log gives the same state."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from everstep.runtime.workflow import ManifestError, parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import (
    Event,
    GateOpened,
    PodEnded,
    PodStarted,
    RunCreated,
    RunResumed,
    ShutdownAsked,
)
from everstep.runtime.workflow.engine.nodes import Phase, fnv32a
from tests.workflow.running import workflow

DIAMOND = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  onExit: bye
  templates:
  - name: main
    dag:
      tasks:
      - {name: a, template: pod}
      - {name: b, template: pod, depends: a}
      - {name: c, template: pod, depends: "a || a.Failed"}
      - {name: d, template: pod, depends: "b && c"}
  - name: pod
    retryStrategy: {limit: 1, retryPolicy: Always, backoff: {duration: "5"},
                    expression: "asInt(lastRetry.exitCode) != 2"}
    container: {image: i, command: ["true"]}
  - name: bye
    container: {image: i, command: ["true"]}
"""


def snapshot(engine: Engine) -> list[Any]:
    """All that can be seen of it."""
    nodes = sorted((n.name, n.phase, n.message, sorted(n.children)) for n in engine.state.nodes.values())
    return [engine.phase, engine.message, nodes]


@given(some.lists(some.tuples(some.integers(0, 3), some.sampled_from([0, 0, 0, 1, 2, 75, None])), max_size=40))
def test_any_order_of_ends_is_whole_and_replays_to_the_same_state(ends: list[tuple[int, int | None]]) -> None:
    manifest, now = parse(DIAMOND), 100.0
    created = RunCreated(now, "w", "u")
    engine, log = Engine(manifest, created), list[Event]()

    def happen(event: Event) -> None:
        log.append(event)
        engine.handle(event)

    choices = iter([*ends, *[(0, 0)] * 40])
    while not engine.state.finished:
        now += 1
        for node in engine.pending_pods():
            happen(PodStarted(now, node.name, 7, 7))
        if running := engine.running_pods():
            which, code = next(choices)
            happen(PodEnded(now, running[which % len(running)].name, code))
        else:
            deadline = engine.next_deadline()
            if deadline is not None:
                now = max(now, deadline)
            engine.advance(now)
    assert all(node.phase.fulfilled for node in engine.state.nodes.values())
    assert "w.onExit" in engine.state.nodes
    main = engine.state.nodes["w"]
    assert (main.phase is Phase.SUCCEEDED) == all(not engine.state.nodes[f"w.{t}"].phase.bad for t in "abcd")
    again = Engine(manifest, created)
    for event in log:
        again.handle(event)
    again.advance(now)
    assert snapshot(again) == snapshot(engine)


def test_a_failed_attempt_waits_for_its_backoff() -> None:
    engine = Engine(parse(DIAMOND), RunCreated(0.0, "w", "u"))
    engine.handle(PodStarted(0.0, "w.a(0)", 7, 7))
    engine.handle(PodEnded(1.0, "w.a(0)", 75))
    assert engine.pending_pods() == []
    assert engine.next_deadline() == 6.0
    engine.advance(6.0)
    assert [node.name for node in engine.pending_pods()] == ["w.a(1)"]


def test_exit_code_2_is_not_tried_again() -> None:
    engine = Engine(parse(DIAMOND), RunCreated(0.0, "w", "u"))
    engine.handle(PodEnded(1.0, "w.a(0)", 2))
    assert engine.state.nodes["w.a"].message == "retryStrategy.expression evaluated to false"
    assert engine.state.nodes["w.b"].phase is Phase.OMITTED


def test_a_pod_that_began_after_its_time_was_over_is_killed() -> None:
    manifest = yaml.safe_load(DIAMOND)
    manifest["spec"]["activeDeadlineSeconds"] = 10
    engine = Engine(parse(manifest), RunCreated(0.0, "w", "u"))
    engine.handle(PodStarted(11.0, "w.a(0)", 7, 7))
    assert engine.state.nodes["w.a(0)"].phase is Phase.FAILED
    assert set(engine.state.kills) == {"w.a(0)"}


@pytest.mark.parametrize("first", ["Stop", "Terminate"])
def test_a_pod_has_time_to_save_until_it_is_terminated_a_second_time(first: str) -> None:
    engine = Engine(parse(DIAMOND), RunCreated(0.0, "w", "u"))
    engine.handle(PodStarted(0.0, "w.a(0)", 7, 7))
    engine.handle(ShutdownAsked(1.0, first))
    assert not engine.state.kills["w.a(0)"].at_once
    engine.handle(ShutdownAsked(2.0, "Terminate"))
    assert engine.state.kills["w.a(0)"].at_once


def run_to_end(engine: Engine, now: float) -> list[str]:
    """Let all that is pending succeed, until nothing is; the order in which it ran."""
    ran = []
    while pending := engine.pending_pods():
        for node in pending:
            ran.append(node.name)
            engine.handle(PodStarted(now, node.name, 7, 7))
            engine.handle(PodEnded(now, node.name, 0))
    return ran


def test_a_step_that_succeeded_runs_again_when_it_is_asked_for_with_what_came_after_it() -> None:
    engine = Engine(parse(DIAMOND), RunCreated(0.0, "w", "u"))
    assert run_to_end(engine, 1.0) == ["w.a(0)", "w.b(0)", "w.c(0)", "w.d(0)", "w.onExit"]
    engine.handle(RunResumed(2.0, ["w.b"]))
    assert run_to_end(engine, 3.0) == ["w.b(0)", "w.d(0)", "w.onExit"]
    assert engine.phase is Phase.SUCCEEDED


LOCKED = {
    "name": "main",
    "synchronization": {"mutexes": [{"name": "m"}]},
    "container": {"image": "i", "command": ["a"]},
}


def with_hook(expression: str) -> dict[str, Any]:
    """A workflow whose entrypoint waits for a lock, and which has a hook."""
    beside = {"name": "beside", "container": {"image": "i", "command": ["b"]}}
    return workflow([LOCKED, beside], hooks={"beside": {"expression": expression, "template": "beside"}})


def test_a_hook_of_the_workflow_begins_while_the_entrypoint_waits_for_a_lock() -> None:
    engine = Engine(parse(with_hook("workflow.status == 'Running'")), RunCreated(0.0, "w", "u"))
    assert [node.name for node in engine.pending_pods()] == ["w.hooks.beside"]
    engine.handle(GateOpened(0.0, "w"))
    assert engine.state.nodes["w"].children == ["w.hooks.beside"]
    assert set(run_to_end(engine, 1.0)) == {"w", "w.hooks.beside"}
    assert engine.phase is Phase.SUCCEEDED


def test_a_hook_whose_expression_is_wrong_ends_a_workflow_that_waits_for_a_lock() -> None:
    engine = Engine(parse(with_hook("steps.zzz.status == 'Running'")), RunCreated(0.0, "w", "u"))
    assert engine.phase is Phase.ERROR
    assert not engine.state.gates


def test_what_waits_for_a_limit_when_its_group_fails_never_begins() -> None:
    bad = {"name": "bad", "container": {"image": "i", "command": ["{{=}}"]}}
    good = {"name": "good", "container": {"image": "i", "command": ["true"]}}
    steps = [[{"name": name, "template": template} for name, template in (("a", "good"), ("b", "bad"), ("c", "good"))]]
    source = workflow([{"name": "main", "parallelism": 1, "steps": steps}, good, bad])
    engine = Engine(parse(source), RunCreated(0.0, "w", "u"))
    assert run_to_end(engine, 1.0) == ["w[0].a"]
    assert engine.phase is Phase.FAILED
    assert "w[0].c" not in engine.state.nodes
    assert engine.state.waiting == 0


def limited_dag(children: dict[str, Any], **main: Any) -> dict[str, Any]:
    """A DAG of `children`, each a template of its own, none of which waits for another, with limits."""
    tasks = [{"name": name, "template": name} for name in children]
    templates = [
        {"name": name, "container": {"image": "i", "command": ["true"]}, **more} for name, more in children.items()
    ]
    return workflow([{"name": "main", "dag": {"tasks": tasks}, **main}, *templates])


def test_a_retry_node_takes_no_place_beside_its_attempt() -> None:
    retried = {"retryStrategy": {"limit": 2}}
    engine = Engine(parse(limited_dag({"a": retried, "b": retried}, parallelism=1)), RunCreated(0.0, "w", "u"))
    assert [node.name for node in engine.pending_pods()] == ["w.a(0)"]
    assert run_to_end(engine, 1.0) == ["w.a(0)", "w.b(0)"]
    assert engine.phase is Phase.SUCCEEDED


def test_a_place_is_free_while_an_attempt_waits_for_its_turn() -> None:
    retried = {"retryStrategy": {"limit": 1, "backoff": {"duration": "60"}}}
    engine = Engine(parse(limited_dag({"a": retried, "b": {}}, parallelism=1)), RunCreated(0.0, "w", "u"))
    engine.handle(PodStarted(1.0, "w.a(0)", 7, 7))
    engine.handle(PodEnded(2.0, "w.a(0)", 1, {}, {}, "", "", ""))
    assert [node.name for node in engine.pending_pods()] == ["w.b"]
    engine.advance(70.0)
    assert [node.name for node in engine.pending_pods()] == ["w.b", "w.a(1)"]


@pytest.mark.parametrize("main", [{"parallelism": 1}, {"parallelism": 1, "failFast": True}])
def test_what_cannot_begin_takes_no_place(main: dict[str, Any]) -> None:
    bad = {"container": {"image": "i", "command": ["{{=}}"]}}
    engine = Engine(parse(limited_dag({"a": {}, "b": bad, "c": {}}, **main)), RunCreated(0.0, "w", "u"))
    assert run_to_end(engine, 1.0) == ["w.a", "w.c"]
    assert engine.phase is Phase.ERROR


def test_what_an_earlier_life_did_takes_no_place() -> None:
    engine = Engine(parse(limited_dag({"a": {}, "b": {}, "c": {}}, parallelism=1)), RunCreated(0.0, "w", "u"))
    for name, code in (("w.a", 0), ("w.b", 1), ("w.c", 1)):
        engine.handle(PodStarted(1.0, name, 7, 7))
        engine.handle(PodEnded(2.0, name, code, {}, {}, "", "", ""))
    assert engine.phase is Phase.FAILED
    engine.handle(RunResumed(3.0, []))
    assert run_to_end(engine, 4.0) == ["w.b", "w.c"]
    assert engine.phase is Phase.SUCCEEDED


def test_ids_are_the_fnv_hash_of_the_name() -> None:
    assert fnv32a("") == 0x811C9DC5
    assert fnv32a("a") == 0xE40C292C


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"volumes": [{"name": "v", "nfs": {}}]}, "spec.volumes"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s", "items": ["key"]}}]}, "spec.volumes"),
        ({"shutdown": "Stop"}, "spec.shutdown"),
        ({"onExit": "nobody"}, "spec.onExit"),
        ({"entrypoint": "nobody"}, "spec.entrypoint"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], part: str) -> None:
    manifest = yaml.safe_load(DIAMOND)
    manifest["spec"] |= change
    with pytest.raises(ManifestError, match=part):
        parse(manifest)


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("inline", {"plugin": {}, "name": "h"}, r"tasks\[0\].inline.plugin: it needs a plugin of the controller; not"),
        ("depends", "nobody", "there is no task nobody"),
        ("depends", "b", "wait for each other"),
        ("template", "nobody", "there is no template 'nobody'"),
    ],
)
def test_a_task_beyond_reach_is_refused_by_name(field: str, value: Any, part: str) -> None:
    manifest = yaml.safe_load(DIAMOND)
    manifest["spec"]["templates"][0]["dag"]["tasks"][0][field] = value
    with pytest.raises(ManifestError, match=part):
        parse(manifest)
