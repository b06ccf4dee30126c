"""A run as an OpenTelemetry trace: a step is a span, below the parent that Argo names."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from everstep.runtime.report import read_run
from everstep.runtime.report.traces import traces
from everstep.runtime.store import open_store

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The example of W3C's Trace Context, 3.2."""


@pytest.fixture
def exported(maker: ModuleType, tmp_path: Path) -> Any:
    """Spans by name, given a parent."""
    maker_run = maker.full_run(tmp_path)
    run = read_run(open_store(str(maker_run.store)), maker_run.name, folder=maker_run.folder)

    def export(parent: str = "") -> dict[str, dict[str, Any]]:
        spans = traces(run, maker.BEGIN + 200, parent)["resourceSpans"][0]["scopeSpans"][0]["spans"]
        return {span["name"]: span for span in spans}

    return export


def test_each_step_is_a_span_of_the_run(exported: Any, maker: ModuleType) -> None:
    spans = exported()
    root = spans["llama-finetune-x7k2"]
    assert "parentSpanId" not in root
    assert spans["train"]["parentSpanId"] == root["spanId"]
    assert {span["traceId"] for span in spans.values()} == {root["traceId"]}
    assert int(spans["train"]["endTimeUnixNano"]) > int(spans["train"]["startTimeUnixNano"])


def test_what_happened_to_a_job_is_events_of_its_step(exported: Any) -> None:
    names = [event["name"] for event in exported()["train"]["events"]]
    assert names.count("round") == 3
    assert names.count("restart") == 2


def test_the_parent_is_argos(exported: Any) -> None:
    root = exported(PARENT)["llama-finetune-x7k2"]
    assert root["traceId"] == "0af7651916cd43dd8448eb211c80319c"
    assert root["parentSpanId"] == "b7ad6b7169203331"


@pytest.mark.parametrize("text", ["", "no", PARENT.upper(), PARENT.replace("b7ad6b7169203331", "0" * 16)])
def test_what_is_no_parent_is_none(exported: Any, text: str) -> None:
    assert "parentSpanId" not in exported(text)["llama-finetune-x7k2"]
