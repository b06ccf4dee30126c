"""Lists that pods print and manifests make: a loop fails in one line when it is no list, or too long a one."""

import json
from typing import Any

import pytest
import yaml

from everstep.runtime.workflow import parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import PodEnded, PodStarted, RunCreated
from everstep.runtime.workflow.engine.loops import expand_loop
from everstep.runtime.workflow.engine.nodes import MAX_LOG_NAME_BYTES, MAX_NODES, Phase, log_name
from everstep.runtime.workflow.expressions import ExpressionError, bounds
from tests.workflow.running import ARGUMENT, manifest_text

LOOP = manifest_text("""
  - name: main
    steps:
    - - {name: a, template: gen}
    - - {name: b, template: use, withParam: "{{steps.a.outputs.result}}", arguments: {parameters: [{name: x, value: "{{item}}"}]}}
  - name: gen
    container: {image: i, command: ["true"]}
  - name: use
    inputs: {parameters: [{name: x}]}
    container: {image: i, command: [echo, "{{inputs.parameters.x}}"]}
""")  # noqa: E501


def after(result: str) -> Engine:
    """The engine when the first pod has printed this; what follows from it is folded again to the same."""
    engines = []
    for _ in range(2):
        engine = Engine(parse(LOOP), RunCreated(0.0, "w", "u"))
        engine.handle(PodStarted(1.0, "w[0].a", 7, 7))
        engine.handle(PodEnded(2.0, "w[0].a", 0, result=result))
        engines.append(engine)
    assert engines[0].message == engines[1].message
    return engines[0]


def test_deep_json_fails_the_loop_in_argos_words() -> None:
    engine = after("[" * 60_000 + "]" * 60_000)
    assert engine.phase is Phase.FAILED
    assert engine.message.startswith("withParam value could not be parsed as a JSON list: [[[")
    assert engine.message.endswith("]]]: invalid character '[' exceeded max depth")


def test_json_of_a_thousand_levels_is_an_item_as_on_argo() -> None:
    deep = "[" * 999 + "]" * 999
    (pod,) = after(f"[{deep}]").pending_pods()
    assert pod.inputs["parameters"][0]["value"] == deep


def test_numbers_that_no_float_holds_keep_their_digits_in_names_only() -> None:
    pods = after(f"[{'1' * 5000}, 1e400, 1.50, 12345678901234567890]").pending_pods()
    assert [pod.inputs["parameters"][0]["value"] for pod in pods] == ["", "", "1.50", "12345678901234567890"]
    assert pods[0].name == f"w[1].b(0:{'1' * 5000})"
    engine = after(f"[{'1' * 5000}]")
    assert len(log_name(engine.state.name, engine.pending_pods()[0])) <= MAX_LOG_NAME_BYTES + 11


def test_half_a_character_is_the_replacement_character() -> None:
    assert after('["\\ud800x"]').pending_pods()[0].inputs["parameters"][0]["value"] == "\ufffdx"


@pytest.mark.parametrize("count", [MAX_NODES + 1, 10**6])
def test_more_items_than_a_run_can_have_are_refused_at_once(count: int) -> None:
    engine = after(json.dumps([0] * count))
    assert engine.message == (
        f"workflow is longer than maximum allowed size: more than {MAX_NODES} nodes; the loop has {count} items"
    )
    assert len(engine.state.nodes) < 10


@pytest.mark.parametrize("sequence", [{"count": "1000000000"}, {"start": "-9223372036854775808", "end": "7"}])
def test_a_sequence_without_end_is_refused_at_once(sequence: dict[str, str]) -> None:
    with pytest.raises(ExpressionError, match="workflow is longer than maximum allowed size"):
        expand_loop({"name": "a", "withSequence": sequence}, {})


def test_loops_in_loops_are_together_no_longer_than_a_run_may_be() -> None:
    inner = {"name": "inner", "steps": [[{"name": "c", "template": "use", "withSequence": {"count": "1000"}}]]}
    source = yaml.safe_load(ARGUMENT)
    source["spec"]["templates"] = [
        {"name": "main", "steps": [[{"name": "b", "template": "inner", "withSequence": {"count": "1000"}}]]},
        inner, {"name": "use", "suspend": {}},
    ]  # fmt: skip
    engine = Engine(parse(source), RunCreated(0.0, "w", "u"))
    assert len(engine.state.nodes) <= MAX_NODES + 3000
    assert any("workflow is longer than maximum allowed size" in node.message for node in engine.state.nodes.values())


ITEM = {"n": 7, "words": "some words of an ordinary length", "path": "s3://bucket/a/b.json"}

LOOPS: dict[str, dict[str, Any]] = {
    "numbers": {"withSequence": {"count": "1000"}, "when": "{{item}} >= 0 && {{item}} < 5000 || '{{item}}' == 'x'"},
    "maps": {"withItems": [ITEM] * 1000, "when": "{{item.n}} % 2 == 1"},
    "JSON": {"withParam": json.dumps([json.dumps(ITEM)] * 1000)},
}

EXPRESSIONS = {
    "numbers": "asInt(item) * 2 + asInt(inputs.parameters.x) % 7",
    "maps": "sprig.upper(item.words) + '-' + string(asInt(item.n) > 3 ? 'large' : 'small')",
    "JSON": "jsonpath(item, '$.n') + len(filter(split(fromJSON(item).words, ' '), {len(#) > 3}))",
}


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("around", ["steps", "dag"])
def test_an_item_of_an_ordinary_loop_needs_less_than_it_brings_along(kind: str, around: str) -> None:
    """So that such a loop may be as long as a run may be."""
    source = yaml.safe_load(ARGUMENT.replace("EXPRESSION", "{{=" + EXPRESSIONS[kind] + "}}"))
    task = source["spec"]["templates"][0]["steps"][0][0] | LOOPS[kind]
    inputs = {"inputs": {"parameters": [{"name": "x", "value": "5"}]}}
    body = {"steps": [[task]]} if around == "steps" else {"dag": {"tasks": [task]}}
    source["spec"]["templates"][0] = {"name": "main", **inputs, **body}
    manifest = parse(source)
    with bounds.use_meter() as meter:
        engine = Engine(manifest, RunCreated(0.0, "w", "u"))
    assert len(engine.pending_pods()) == 1000, engine.message
    assert meter.left >= bounds.EVENT


def test_loops_side_by_side_are_together_no_longer_than_a_run_may_be() -> None:
    source = yaml.safe_load(ARGUMENT)
    step = {"template": "use", "withSequence": {"count": str(MAX_NODES // 2 - 100)}}
    group = [{"name": f"b{number}", **step} for number in range(100)]
    source["spec"]["templates"] = [{"name": "main", "steps": [group]}, {"name": "use", "suspend": {}}]
    engine = Engine(parse(source), RunCreated(0.0, "w", "u"))
    assert engine.phase.bad
    assert "workflow is longer than maximum allowed size" in engine.state.nodes["w[0]"].message


def test_loops_that_wait_for_a_limit_count_as_nodes_to_be() -> None:
    source = yaml.safe_load(ARGUMENT)
    step = {"template": "use", "withSequence": {"count": str(MAX_NODES // 3)}}
    tasks = [{"name": f"b{number}", **step} for number in range(20)]
    source["spec"]["templates"] = [{"name": "main", "dag": {"tasks": tasks}}, {"name": "use", "suspend": {}}]
    source["spec"]["parallelism"] = 1
    source["spec"]["templates"][1] = {"name": "use", "container": {"image": "i", "command": ["true"]}}
    engine = Engine(parse(source), RunCreated(0.0, "w", "u"))
    assert engine.state.waiting < MAX_NODES
    assert sum("longer than maximum allowed size" in node.message for node in engine.state.nodes.values()) == 18


@pytest.mark.parametrize("form", ["%999999999d", "%.999999999d", "%1000000d" * 20])
def test_a_format_writes_no_more_than_there_is_room_for(form: str) -> None:
    with pytest.raises(ExpressionError):
        expand_loop({"name": "a", "withSequence": {"count": "3", "format": form}}, {})
