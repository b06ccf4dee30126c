"""Random DAGs and ends against a slow, obviously right model; and a launcher that dies after any event."""

import re
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from everstep.runtime.workflow import parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import Event, PodEnded, PodStarted, RunCreated
from everstep.runtime.workflow.manifest.parse import Manifest

STATES = {"Succeeded": "Succeeded", "Failed": "Failed", "Error": "Errored", "Omitted": "Omitted"}
CODES: dict[str, int | None] = {"Succeeded": 0, "Failed": 1, "Error": None}


@some.composite
def dags(draw: some.DrawFn) -> tuple[dict[str, str], dict[str, str]]:
    """({task: depends}, {task: how its pod ends})."""
    names = [f"t{number}" for number in range(draw(some.integers(1, 7)))]
    depends: dict[str, str] = {}
    for place, name in enumerate(names):
        parts = []
        for need in draw(some.lists(some.sampled_from(names[:place]), max_size=3, unique=True)) if place else []:
            suffix = draw(some.sampled_from(["", ".Succeeded", ".Failed", ".Errored", ".Omitted"]))
            parts.append(f"{draw(some.sampled_from(['', '!']))}{need}{suffix}")
        depends[name] = draw(some.sampled_from([" && ", " || "])).join(parts)
    ends = {name: draw(some.sampled_from(["Succeeded", "Succeeded", "Failed", "Error"])) for name in names}
    return depends, ends


def manifest_of(depends: Mapping[str, str], **template: Any) -> Manifest:
    """A workflow of that DAG."""
    tasks = [{"name": name, "template": "pod", "depends": text} for name, text in depends.items()]
    pod = {"name": "pod", "container": {"image": "i", "command": ["true"]}, **template}
    spec = {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": tasks}}, pod]}
    return parse({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w"}, "spec": spec})


def model(depends: Mapping[str, str], ends: Mapping[str, str]) -> dict[str, str]:
    """Phases, by going through the tasks in their order: what one depends on stands before it."""
    phases: dict[str, str] = {}
    for name, text in depends.items():

        def holds(match: re.Match[str]) -> str:
            state = STATES[phases[match[1]]]
            states = [match[2]] if match[2] else ["Succeeded", "Skipped", "Daemoned"]
            return str(state in states)

        expression = (
            re.sub(r"(t\d)(?:\.(\w+))?", holds, text).replace("&&", "and").replace("||", "or").replace("!", "not ")
        )
        phases[name] = ends[name] if not text or eval(expression) else "Omitted"
    return phases


def play(engine: Engine, ends: Mapping[str, str], log: list[Event], now: float) -> float:
    """Let every pod start and end as it shall, until the workflow has ended."""
    while not engine.state.finished:
        happened: list[Event] = [PodStarted(now + 1, node.name, 7, 7) for node in engine.pending_pods()]
        for node in engine.running_pods():
            happened.append(PodEnded(now + 2, node.name, CODES[ends[re.findall(r"t\d", node.name)[-1]]]))
        now += 2
        for event in happened:
            log.append(event)
            engine.handle(event)
        if not happened:
            deadline = engine.next_deadline()
            assert deadline is not None, "nothing to do and not at the end"
            now = max(now, deadline)
            engine.advance(now)
    return now


def phases(engine: Engine) -> dict[str, Any]:
    """Phase and message of everything."""
    return {node.name: (node.phase, node.message, sorted(node.children)) for node in engine.state.nodes.values()}


@given(dags())
def test_every_task_has_the_phase_that_going_through_the_tasks_in_order_gives(dag: Any) -> None:
    depends, ends = dag
    engine = Engine(manifest_of(depends), RunCreated(0.0, "w", "u"))
    play(engine, ends, [], 0.0)
    assert {name: engine.state.nodes[f"w.{name}"].phase.value for name in depends} == model(depends, ends)


@given(dags(), some.integers(0, 40), some.sampled_from([{}, {"retryStrategy": {"limit": 1, "retryPolicy": "Always"}}]))
def test_a_launcher_that_dies_after_any_event_is_followed_by_one_that_comes_to_the_same_end(
    dag: Any, died: int, template: dict[str, Any]
) -> None:
    depends, ends = dag
    manifest, created, log = manifest_of(depends, **template), RunCreated(0.0, "w", "u"), list[Event]()
    undisturbed = Engine(manifest, created)
    play(undisturbed, ends, log, 0.0)
    again, now = Engine(manifest, created), 0.0
    for event in log[:died]:
        again.handle(event)
        now = event.time
    play(again, ends, [], now)
    assert phases(again) == phases(undisturbed)
    assert again.phase == undisturbed.phase
