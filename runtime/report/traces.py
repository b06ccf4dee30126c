"""A run as an OpenTelemetry trace: each step is a span, and what happened to its job is events of it. Pure.

The form is OTLP/JSON (OpenTelemetry Protocol 1.x, "JSON Protobuf Encoding"), which every collector takes at
`/v1/traces`. Ids come from the run's uid: exported twice it is the same trace.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.runtime.report import flow
from everstep.runtime.report.history import History
from everstep.runtime.report.read import Run

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-[0-9a-f]{2}")
_INTERNAL, _OK, _ERROR = 1, 1, 2


def traces(run: Run, now: float, parent: str = "") -> dict[str, Any]:
    """The run as of `now` (Unix seconds). `parent`: what TRACEPARENT says (W3C, "Trace Context"), as Argo sets it;
    anything of another form is ignored."""
    trace_match = _TRACEPARENT.fullmatch(parent)
    trace = trace_match["trace"] if trace_match else _digest(run.uid or run.name, 32)
    steps = _steps(run, now)
    root = _digest(f"{run.uid or run.name}/", 16)
    begins = [step.begin for step in steps if step.begin is not None]
    ends = [step.end or now for step in steps if step.begin is not None]
    above, spans = trace_match["span"] if trace_match else "", list[dict[str, Any]]()
    if begins:
        spans.append(_span(trace, root, above, run.name, (min(begins), max(ends)), run.phase))
    for step in steps:
        if step.begin is not None:
            identity, times = _digest(f"{run.uid or run.name}/{step.name}", 16), (step.begin, step.end or now)
            span = _span(trace, identity, root, step.name, times, step.phase)
            span["attributes"] += _attributes({"everstep.attempts": step.attempts, "everstep.message": step.message})
            span["events"] = list(_events(run.jobs[step.name])) if step.name in run.jobs else []
            spans.append(span)
    resource = {"service.name": "everstep", "everstep.run": run.name, "everstep.uid": run.uid}
    scope = {"scope": {"name": "everstep"}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _steps(run: Run, now: float) -> list[flow.Step]:
    """The steps, and the jobs of which no step says when it began, such as that of `everstep launch`."""
    steps = flow.steps(run, now)
    begun = {step.name for step in steps if step.begin is not None}
    return steps + [
        flow.Step(name, "", history.result.capitalize() or "Running", begin=history.begin, end=history.end)
        for name, history in run.jobs.items()
        if name not in begun
    ]


def _span(trace: str, identity: str, parent: str, name: str, times: tuple[float, float], phase: str) -> dict[str, Any]:
    has_failed, is_done = phase in ("Failed", "Error"), phase == "Succeeded"
    return {
        "traceId": trace,
        "spanId": identity,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanoseconds(times[0]),
        "endTimeUnixNano": _nanoseconds(times[1]),
        "attributes": _attributes({"everstep.phase": phase}),
        "status": {"code": _ERROR if has_failed else _OK} if has_failed or is_done else {},
    }


def _events(history: History) -> Iterator[dict[str, Any]]:
    for round_ in history.rounds:
        facts = {"everstep.round": round_.number, "everstep.nodes": len(round_.nodes), "everstep.reason": round_.reason}
        yield _event(round_.begin, "round", facts)
    for restart in history.restarts:
        facts = {
            "everstep.what": restart.what,
            "everstep.reason": restart.reason,
            "everstep.decision": restart.decision,
        }
        yield _event(restart.time, "restart", facts)
    for time in history.takeovers:
        yield _event(time, "new master", {})


def _event(time: float, name: str, facts: Mapping[str, str | int]) -> dict[str, Any]:
    return {"timeUnixNano": _nanoseconds(time), "name": name, "attributes": _attributes(facts)}


def _attributes(facts: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in facts.items()
        if value != ""
    ]


def _nanoseconds(time: float) -> str:
    return str(round(time * 1e6) * 1000)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
