"""OpenTelemetry's own package reads the trace of a run."""

import json
import subprocess
from pathlib import Path

from everstep.runtime.report import read_run
from everstep.runtime.report.traces import traces
from everstep.runtime.store import open_store
from tests.frameworks.environments import environment
from tests.report import run_maker

READS = """
import base64, json, sys
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

def in_base64(span):  # OTLP writes these three as hexadecimal digits, protocol buffers' own JSON as base64.
    ids = ("traceId", "spanId", "parentSpanId")
    return {**span, **{key: base64.b64encode(bytes.fromhex(span[key])).decode() for key in ids if key in span}}

told = json.load(sys.stdin)
for resource in told["resourceSpans"]:
    for scope in resource["scopeSpans"]:
        scope["spans"] = [in_base64(span) for span in scope["spans"]]
request = ParseDict(told, ExportTraceServiceRequest())
spans = [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]
root = spans[0].span_id
print(json.dumps([[span.name, span.parent_span_id == root, len(span.trace_id), span.end_time_unix_nano >
    span.start_time_unix_nano, span.status.code, [event.name for event in span.events]] for span in spans]))
"""


def test_its_own_package_reads_every_step_as_a_span(tmp_path: Path) -> None:
    made = run_maker.full_run(tmp_path)
    run = read_run(open_store(str(made.store)), made.name, folder=made.folder)
    python = environment("trackers", "tensorboard", "mlflow", "wandb")
    told = subprocess.run(
        [str(python), "-c", READS],
        input=json.dumps(traces(run, run_maker.BEGIN + 200)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    root, *steps = json.loads(told.stdout)
    assert root[:3] == [made.name, False, 16]
    assert all(step[1:4] == [True, 16, True] for step in steps)
    assert any("round" in step[5] for step in steps)
