"""`everstep convert` with any input: a Workflow that can be written, or one line with the file; never a traceback."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.convert import ConvertError, convert
from everstep.convert.workflow import pipeline_of, workflow_of
from everstep.runtime.job.spec_reader import spec_of
from tests.examples import examples

JOBS = [yaml.safe_load(path.read_text()) for path in sorted(Path(__file__).with_name("jobs").glob("*.yaml"))]
LINE = re.compile(r"f(:[1-9][0-9]*)?: .+")

names = st.sampled_from(
    ["name", "replicas", "minReplicas", "maxReplicas", "template", "spec", "containers", "image", "command", "args",
     "env", "resources", "limits", "volumes", "volumeMounts", "emptyDir", "worker", "exitCodes", "queue", "a b", "<<"]
)  # fmt: skip
words = st.sampled_from(
    ["9" * 5000, "٣", "1Gi", "torchrun", "train.py", "--nnodes=4:2", "None", '"""', "a\nb", "{{x}}", "torchrun a.py"]
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), words,
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
changes = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["replace", "replace", "add", "remove", "twice"]), names, values),
    min_size=1, max_size=3,
)  # fmt: skip


def places(value: Any, inside: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in it."""
    if inside is not None:
        yield inside, key
    each = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in each:
        yield from places(inner, value, name)


def change(job: Any, which: int, how: str, name: str, value: Any) -> None:
    """One field of it, in place."""
    every = list(places(job))
    if not every:
        return
    inside, key = every[which % len(every)]
    if how == "remove":
        del inside[key]
    elif how == "replace":
        inside[key] = value
    elif isinstance(inside, list):
        inside.append(inside[key] if how == "twice" else value)
    else:
        inside[name] = inside[key] if how == "twice" else value


def assert_converted_or_refused(text: str) -> None:
    """Refused in one line; or what is written can be read."""
    try:
        conversion = convert(text, "f")
    except ConvertError as error:
        if not LINE.fullmatch(str(error)):
            raise
        return
    workflow = workflow_of(conversion, "store")
    written = yaml.safe_load(yaml.safe_dump(workflow, sort_keys=False, allow_unicode=True))
    assert written == json.loads(json.dumps(workflow))
    compile(pipeline_of(conversion), "pipeline.py", "exec")
    if "job_spec" in conversion.arguments:
        spec_of({**conversion.arguments["job_spec"], "job": "converted"})
    assert all("\n" not in note for note in conversion.notes)


@settings(max_examples=examples(300))
@given(st.sampled_from(JOBS), changes)
def test_a_job_with_fields_changed_at_random(job: dict[str, Any], changes: list[tuple[int, str, str, Any]]) -> None:
    changed = json.loads(json.dumps(job))
    for arguments in changes:
        change(changed, *arguments)
    assert_converted_or_refused(yaml.safe_dump(changed, allow_unicode=True))


@settings(max_examples=examples(100))
@given(st.text(max_size=60) | values.map(lambda value: yaml.safe_dump(value, allow_unicode=True)))
def test_any_text(text: str) -> None:
    assert_converted_or_refused(text)
