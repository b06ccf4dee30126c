"""A run's steps and their dependencies: from the manifest and Argo's status.nodes to boxes and arrows. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from everstep.runtime.report.read import Run
from everstep.runtime.workflow.engine.retries import NOT_TRIED_AGAIN
from everstep.runtime.workflow.run.own_errors import node_message

WIDTH, HEIGHT, GAP = 150, 58, 14
ARROW = 34
"""Pixels: a box, the gap beside it, the arrow to the next level."""


@dataclass(frozen=True)
class Step:
    """A task of the workflow as the page shows it."""

    name: str
    template: str
    phase: str
    after: tuple[str, ...] = ()
    begin: float | None = None
    end: float | None = None
    seconds: float | None = None
    message: str = ""
    exit_code: str = ""
    log: str = ""
    attempts: int = 1


@dataclass(frozen=True)
class Box:
    """A step's box in the drawing, in pixels."""

    step: Step
    x: int
    y: int


@dataclass(frozen=True)
class Drawing:
    """Boxes and the arrows (SVG paths) between them."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]


def steps(run: Run, now: float) -> list[Step]:
    """The run's steps in the manifest's order, the exit handler last.

    Without a workflow: the steps that left a summary or failed.
    """
    spec = _dict_or_empty(run.workflow.get("spec"))
    templates = {str(t.get("name")): t for t in map(_dict_or_empty, spec.get("templates") or [])}
    paths = _steps_by_path(_dict_or_empty(templates.get(str(spec.get("entrypoint")))))
    nodes = [
        _dict_or_empty(node)
        for node in _dict_or_empty(_dict_or_empty(run.workflow.get("status")).get("nodes")).values()
    ]
    if not paths:
        return _without_workflow(run)
    name = str(_dict_or_empty(run.workflow.get("metadata")).get("name") or run.name)
    by_name = {str(node.get("name")): node for node in nodes}
    entry = by_name.get(name, {})
    above = str([entry, *_tries(entry, nodes)][-1].get("name"))
    shown = {path: by_name.get(above + path) or _loop_node(above, path, by_name) for path in paths}
    run_steps = [_with_node(step, run, shown[path], nodes, now) for path, step in paths.items()]
    if handler := str(spec.get("onExit") or ""):
        last = Step(handler, handler, "Pending", after=_leaves(run_steps))
        run_steps.append(_with_node(last, run, by_name.get(f"{name}.onExit"), nodes, now))
    return run_steps


def _steps_by_path(entry: Mapping[str, Any]) -> dict[str, Step]:
    """The tasks of a DAG, or lists of steps, none of which has begun. A path follows the entry's name in the node's:
    `.train`, `[1].train`."""
    by_path: dict[str, Step] = {}
    if dag := _dict_or_empty(entry.get("dag")):
        tasks = [_dict_or_empty(task) for task in dag.get("tasks") or []]
        names = {str(task.get("name")) for task in tasks}
        for task in tasks:
            words = re.findall(r"[A-Za-z0-9_-]+", str(task.get("depends") or "")) + list(task.get("dependencies") or [])
            after = tuple(dict.fromkeys(word for word in words if word in names))
            by_path[f".{task.get('name')}"] = _pending(task, after)
        return by_path
    before: tuple[str, ...] = ()
    for index, group in enumerate(entry.get("steps") or []):
        group_steps = [_pending(_dict_or_empty(step), before) for step in group]
        by_path |= {f"[{index}].{step.name}": step for step in group_steps}
        before = tuple(step.name for step in group_steps)
    return by_path


def _pending(task: Mapping[str, Any], after: tuple[str, ...]) -> Step:
    return Step(str(task.get("name")), str(task.get("template") or ""), "Pending", after)


def _leaves(tasks: list[Step]) -> tuple[str, ...]:
    followed_steps = {name for step in tasks for name in step.after}
    return tuple(step.name for step in tasks if step.name not in followed_steps)


def _with_node(
    step: Step, run: Run, node: Mapping[str, Any] | None, nodes: list[Mapping[str, Any]], now: float
) -> Step:
    if node is None:
        return step
    begin, end = parse_time(node.get("startedAt")), parse_time(node.get("finishedAt"))
    tries = _tries(node, nodes)
    last = [node, *tries][-1]
    phase = str(node.get("phase") or "Pending")
    if phase == "Running" and step.name == run.own:
        phase, end = "Succeeded", now
    idle = phase in ("Pending", "Skipped", "Omitted")
    return replace(
        step,
        phase=phase,
        begin=begin,
        end=end,
        seconds=None if begin is None or idle else max((end or now) - begin, 0.0),
        message=node_message(node, {str(item.get("id")): item for item in nodes}),
        exit_code=str(
            _dict_or_empty(last.get("outputs")).get("exitCode")
            or _dict_or_empty(node.get("outputs")).get("exitCode")
            or ""
        ),
        log=run.logs.get(str(last.get("id")), run.logs.get(str(node.get("id")), "")),
        attempts=max(len(tries), 1),
    )


def _loop_node(above: str, path: str, by_name: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """What stands for the items of a step's loop: the last that failed, else the last, with the times of all. Argo has
    no node of the step itself then (a DAG's task has one): the items are children of the StepGroup."""
    group = by_name.get(above + path.partition(".")[0], {})
    by_id, children = {node.get("id"): node for node in by_name.values()}, group.get("children") or []
    found = [by_id[child] for child in children if child in by_id]
    items = [node for node in found if str(node.get("name")).startswith(f"{above}{path}(")]
    if not items:
        return None
    phases = [str(item.get("phase") or "Pending") for item in items]
    last = next((item for item in reversed(items) if item.get("phase") in ("Failed", "Error")), items[-1])
    if {"Pending", "Running"} & {*phases} or (group.get("phase") == "Running" and len(found) < len(children)):
        phase, end = "Pending" if {*phases} == {"Pending"} else "Running", None
    else:
        phase = "Succeeded" if last.get("phase") == "Skipped" and "Succeeded" in phases else str(last.get("phase"))
        end = max(str(item.get("finishedAt") or "") for item in items)
    begin = min((str(item["startedAt"]) for item in items if item.get("startedAt")), default=None)
    return {**last, "phase": phase, "startedAt": begin, "finishedAt": end}


def _tries(node: Mapping[str, Any], nodes: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The attempts of a node with a retryStrategy, the newest last."""
    children = node.get("children") or [] if node.get("type") == "Retry" else []
    tries = [n for n in nodes if n.get("id") in children and re.search(r"\(\d+\)$", str(n.get("name", "")))]
    return sorted(tries, key=lambda n: int(str(n.get("name")).rsplit("(", 1)[1][:-1]))


def _without_workflow(run: Run) -> list[Step]:
    idle = "Omitted" if run.phase in ("Succeeded", "Failed", "Error") else "Pending"
    steps = {name: Step(name, "", idle, after) for name, after in run.graph.items()}
    for name, summary in sorted(run.steps.items(), key=lambda item: str(item[0])):
        seconds, end = _float_or_none(summary.get("seconds")), _float_or_none(summary.get("ended"))
        begin = None if end is None or seconds is None else end - seconds
        after = steps[name].after if name in steps else ()
        steps[name] = Step(name, name, "Succeeded", after, begin, end, seconds)
    for failed_step in _failed_steps(run):
        steps[failed_step.name] = replace(
            failed_step, after=steps[failed_step.name].after if failed_step.name in steps else ()
        )
    if run.graph and run.own:
        after = _leaves([step for name, step in steps.items() if name != run.own])
        steps[run.own] = Step(run.own, run.own, "Succeeded", after)
    return list(steps.values())


def _failed_steps(run: Run) -> Iterator[Step]:
    for failure in run.failures:
        name = str(failure.get("displayName") or "")
        if name and name != run.name:
            template = str(failure.get("templateName") or "")
            attempts = [failure for failure in run.failures if str(failure.get("displayName")).startswith(f"{name}(")]
            message = str(failure.get("message") or "")
            if attempts and message in NOT_TRIED_AGAIN:
                message = str(attempts[-1].get("message") or message)
            yield Step(name, template, str(failure.get("phase") or "Failed"), message=message)


def draw(run_steps: list[Step], *, across: bool) -> Drawing:
    """Boxes in levels, from left to right or downward. A step is one level after the last step that it depends on."""
    level: dict[str, int] = {}
    for _ in run_steps:
        for step in run_steps:
            level[step.name] = 1 + max((level.get(name, -1) for name in step.after), default=-1)
    rows: dict[int, list[Step]] = {}
    for step in run_steps:
        rows.setdefault(level[step.name], []).append(step)
    widest = max((len(row) for row in rows.values()), default=0)
    along, beside = (WIDTH, HEIGHT) if across else (HEIGHT, WIDTH)
    breadth = widest * (beside + GAP) - GAP
    boxes: dict[str, Box] = {}
    for depth, row in rows.items():
        margin = (breadth - (len(row) * (beside + GAP) - GAP)) // 2
        for index, step in enumerate(row):
            main, cross = depth * (along + ARROW), margin + index * (beside + GAP)
            boxes[step.name] = Box(step, *((main, cross) if across else (cross, main)))
    arrows = tuple(
        _arrow(boxes[name], boxes[step.name], across) for step in run_steps for name in step.after if name in boxes
    )
    length = max(len(rows) * (along + ARROW) - ARROW, 0)
    width, height = (length, breadth) if across else (breadth, length)
    return Drawing(max(width, 1), max(height, 1), tuple(boxes.values()), arrows)


def _arrow(source: Box, target: Box, across: bool) -> str:
    """An arrow from edge to edge; if it skips a level, it bends just before the target."""
    if across:
        x1, y1, x2, y2 = source.x + WIDTH, source.y + HEIGHT // 2, target.x - 5, target.y + HEIGHT // 2
        bend = x2 - ARROW // 2
        return f"M{x1} {y1}H{bend - 8}C{bend + 2} {y1} {bend - 4} {y2} {x2} {y2}"
    x1, y1, x2, y2 = source.x + WIDTH // 2, source.y + HEIGHT, target.x + WIDTH // 2, target.y - 5
    bend = y2 - ARROW // 2
    return f"M{x1} {y1}V{bend - 8}C{x1} {bend + 2} {x2} {bend - 4} {x2} {y2}"


def parse_time(text: object) -> float | None:
    """Argo's RFC 3339 time as Unix seconds."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp() if text else None
    except ValueError:
        return None


def _float_or_none(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _dict_or_empty(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
