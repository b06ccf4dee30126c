"""What a manifest, a parameter or a pod's output may hold: a node fails in one line, or the manifest is refused."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.cli.main import main
from everstep.runtime.workflow import ManifestError, parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import PodEnded, PodStarted, RunCreated
from everstep.runtime.workflow.engine.loops import expand
from everstep.runtime.workflow.engine.nodes import LOG_NAME, MOST, Phase, log_name
from everstep.runtime.workflow.expressions import ExpressionError, ExpressionSyntaxError, bounds, evaluate, regexp
from everstep.runtime.workflow.expressions.govaluate import should_run
from everstep.runtime.workflow.expressions.tags import FUNCTIONS, substitute, tags
from everstep.runtime.workflow.lint.findings import findings
from everstep.runtime.workflow.manifest.yaml_source import Document, ReadError, read_text
from everstep.runtime.workflow.pods.processes import RESULT_BYTES, Pod
from everstep.runtime.workflow.pods.sandbox import NoSandboxError, Sandbox, check
from tests.workflow import fuzz
from tests.workflow.running import log, run, sh, workflow

LOOP = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: a, template: gen}
    - - {name: b, template: use, withParam: "{{steps.a.outputs.result}}", arguments: {parameters: [{name: x, value: "{{item}}"}]}}
  - name: gen
    container: {image: i, command: ["true"]}
  - name: use
    inputs: {parameters: [{name: x}]}
    container: {image: i, command: [echo, "{{inputs.parameters.x}}"]}
"""  # noqa: E501
ARGUMENT = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  templates:
  - name: main
    steps: [[{name: b, template: use, arguments: {parameters: [{name: x, value: "EXPRESSION"}]}}]]
  - name: use
    inputs: {parameters: [{name: x}]}
    container: {image: i, command: [echo, hi]}
"""


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
    (pod,) = after(f"[{deep}]").pending()
    assert pod.inputs["parameters"][0]["value"] == deep


def test_numbers_that_no_float_holds_keep_their_digits_in_names_only() -> None:
    pods = after(f"[{'1' * 5000}, 1e400, 1.50, 12345678901234567890]").pending()
    assert [pod.inputs["parameters"][0]["value"] for pod in pods] == ["", "", "1.50", "12345678901234567890"]
    assert pods[0].name == f"w[1].b(0:{'1' * 5000})"
    engine = after(f"[{'1' * 5000}]")
    assert len(log_name(engine.name, engine.pending()[0])) <= LOG_NAME + 11


def test_half_a_character_is_the_replacement_character() -> None:
    assert after('["\\ud800x"]').pending()[0].inputs["parameters"][0]["value"] == "\ufffdx"


@pytest.mark.parametrize("count", [MOST + 1, 10**6])
def test_more_items_than_a_run_can_have_are_refused_at_once(count: int) -> None:
    engine = after(json.dumps([0] * count))
    assert engine.message == (
        f"workflow is longer than maximum allowed size: more than {MOST} nodes; the loop has {count} items"
    )
    assert len(engine.nodes) < 10


@pytest.mark.parametrize("sequence", [{"count": "1000000000"}, {"start": "-9223372036854775808", "end": "7"}])
def test_a_sequence_without_end_is_refused_at_once(sequence: dict[str, str]) -> None:
    with pytest.raises(ExpressionError, match="workflow is longer than maximum allowed size"):
        expand({"name": "a", "withSequence": sequence}, {})


def test_loops_in_loops_are_together_no_longer_than_a_run_may_be() -> None:
    inner = {"name": "inner", "steps": [[{"name": "c", "template": "use", "withSequence": {"count": "1000"}}]]}
    source = yaml.safe_load(ARGUMENT)
    source["spec"]["templates"] = [
        {"name": "main", "steps": [[{"name": "b", "template": "inner", "withSequence": {"count": "1000"}}]]},
        inner, {"name": "use", "suspend": {}},
    ]  # fmt: skip
    engine = Engine(parse(source), RunCreated(0.0, "w", "u"))
    assert len(engine.nodes) <= MOST + 3000
    assert any("workflow is longer than maximum allowed size" in node.message for node in engine.nodes.values())


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
    with bounds.metered() as meter:
        engine = Engine(manifest, RunCreated(0.0, "w", "u"))
    assert len(engine.pending()) == 1000, engine.message
    assert meter.left >= bounds.EVENT


def test_what_an_expression_may_cost_does_not_depend_on_what_was_read_before() -> None:
    """Else a log would be folded to another state by the launcher that takes the run up."""
    left = []
    for _ in range(2):
        with bounds.metered() as meter:
            evaluate("len(filter([1, 2, 3], # > 1)) + 77", {})
            left.append(meter.left)
    assert left[0] == left[1] < bounds.EVENT


def test_loops_side_by_side_are_together_no_longer_than_a_run_may_be() -> None:
    source = yaml.safe_load(ARGUMENT)
    step = {"template": "use", "withSequence": {"count": str(MOST // 2 - 100)}}
    group = [{"name": f"b{number}", **step} for number in range(100)]
    source["spec"]["templates"] = [{"name": "main", "steps": [group]}, {"name": "use", "suspend": {}}]
    engine = Engine(parse(source), RunCreated(0.0, "w", "u"))
    assert engine.phase.bad
    assert "workflow is longer than maximum allowed size" in engine.nodes["w[0]"].message


def test_loops_that_wait_for_a_limit_count_as_nodes_to_be() -> None:
    source = yaml.safe_load(ARGUMENT)
    step = {"template": "use", "withSequence": {"count": str(MOST // 3)}}
    tasks = [{"name": f"b{number}", **step} for number in range(20)]
    source["spec"]["templates"] = [{"name": "main", "dag": {"tasks": tasks}}, {"name": "use", "suspend": {}}]
    source["spec"]["parallelism"] = 1
    source["spec"]["templates"][1] = {"name": "use", "container": {"image": "i", "command": ["true"]}}
    engine = Engine(parse(source), RunCreated(0.0, "w", "u"))
    assert engine.limits.waiting < MOST
    assert sum("longer than maximum allowed size" in node.message for node in engine.nodes.values()) == 18


@pytest.mark.parametrize("form", ["%999999999d", "%.999999999d", "%1000000d" * 20])
def test_a_format_writes_no_more_than_there_is_room_for(form: str) -> None:
    with pytest.raises(ExpressionError):
        expand({"name": "a", "withSequence": {"count": "3", "format": form}}, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sprig.repeat(8000000000, 'a')", "memory budget exceeded"),
        ("repeat('a', 1000001)", "memory budget exceeded"),
        ("len(sprig.until(2000000000))", "memory budget exceeded"),
        ("len(map(1..2000000000, {#}))", "memory budget exceeded"),
        ("reduce(1..100, #acc + #acc, 'a')", "memory budget exceeded"),
        ("toJson(reduce(1..100, [#acc, #acc]))", "memory budget exceeded"),
        ("len(filter(1..9000, # in 1..9000))", "memory budget exceeded"),
        ("replace(repeat('a', 9999), 'a', repeat('b', 9999))", "memory budget exceeded"),
        ("sprig.indent(999999999, 'a')", "memory budget exceeded"),
        ("jsonpath(repeat('[', 900) + repeat(']', 900), '$..*..*..*..*')", "memory budget exceeded"),
        ("reduce(1..5000, [#acc])", "recursion depth exceeded"),
        ("len(fromJSON(repeat('[', 200000)))", "invalid character '[' exceeded max depth"),
        ("(" * 10_000 + "1" + ")" * 10_000, "nested deeper than 1000 levels"),
        ("not " * 5_000 + "true", "nested deeper than 1000 levels"),
        ("1" + " + 1" * 30_000, "expression exceeds maximum allowed nodes"),
        ("/*" * 100_000, "unclosed comment"),
        ("99999999999999999999", "integer literal is too large"),
        ("'x' matches '('", "error parsing regexp: missing ): `(`"),
        ("toJson(10.0 ** 999)", "json: unsupported value: +Inf"),
        ("int('" + "1" * 5000 + "')", "invalid operation: int("),
    ],
)
def test_an_expression_that_would_fill_the_launcher_is_an_error(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as error:
        evaluate(text, {}, FUNCTIONS)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("string(10 ** 10 ** 9)", "+Inf"),
        ("bitshl(1, 80000000000)", 0),
        ("9223372036854775807 + 1", -(2**63)),
        ("sprig.mul(9223372036854775807, 2)", -2),
        ("(" * 300 + "1" + ")" * 300, 1),
        ("1" + " + 1" * 5_000, 5_001),
        ("len(uniq(1..300000))", 300_000),
        ("sprig.regexMatch('^(a+)+$', sprig.repeat(999999, 'a') + '!')", False),
        ("sprig.regexReplaceAll('a(x*)b', '-axxb-ab-', '${1}W')", "-xxW-W-"),
        ("sprig.regexSplit('a', 'banana', -1)", ["b", "n", "n", ""]),
        ("sprig.regexFindAll('a*', 'baab', -1)", ["", "aa", ""]),
        ("len(sprig.snakecase(sprig.repeat(999999, 'A')))", 999_999),
    ],
)
def test_arithmetic_and_patterns_are_gos(text: str, value: Any) -> None:
    assert evaluate(text, {}, FUNCTIONS) == value


@pytest.mark.parametrize("pattern", ["(", "a**", "x{1001}", "(?=a)", "\\C", "[z-a]", "(?P<n"])
def test_what_go_takes_for_no_pattern_is_told(pattern: str) -> None:
    with pytest.raises(ExpressionError, match="error parsing regexp: "):
        regexp.matches(pattern, "a")


def test_the_attacks_arguments_fail_their_step_and_nothing_else() -> None:
    for expression in ("string(10 ** 10 ** 9)", "len(map(1..2000000000, {#}))", "(" * 5000 + "1" + ")" * 5000):
        try:
            engine = Engine(parse(ARGUMENT.replace("EXPRESSION", "{{=" + expression + "}}")), RunCreated(0.0, "w", "u"))
        except ManifestError:
            continue
        assert engine.phase.bad or engine.pending(), [
            (one.name, one.phase, one.message) for one in engine.nodes.values()
        ]


@pytest.mark.parametrize("text", ["(" * 5_000 + "1 == 1" + ")" * 5_000, " && ".join(["1 == 1"] * 3_000)])
def test_a_when_may_be_nested_and_long(text: str) -> None:
    assert should_run(text)


@pytest.mark.parametrize(
    "text", ["(" * 50_000, "1 << 99999999999 == a", "'a' =~ '('", "2 ** 99999 == a b", "\u00b2 == 1"]
)
def test_a_when_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ExpressionError):
        should_run(text) or should_run("neither")  # Some have a value, which is false.


def test_tags_are_found_in_one_pass() -> None:
    """In calls, not in seconds: half a million braces that nothing closes took minutes."""
    assert tags("{{" * 500_000) == []
    assert substitute("{{" * 500_000, {}) == "{{" * 500_000


def test_tags_write_no_more_than_there_is_room_for() -> None:
    with pytest.raises(ExpressionError, match="the texts of templates are longer than"):
        substitute(["x{{a}}"] * 100, {"a": "b" * (bounds.SUBSTITUTED // 50)})


def test_a_text_that_is_one_tag_is_not_copied() -> None:
    big = "b" * 1_000_000
    assert all(one is big for one in substitute(["{{a}}"] * 10_000, {"a": big}))


ALIASES = "l0: &l0 [x, x, x]\n" + "".join(f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}, *l{n - 1}]\n" for n in range(1, 30))
YAML = {
    "aliases": (ALIASES, r"f:\d+: not YAML: with its aliases it has more than 200000 values"),
    "brackets": ("[" * 100_000, r"f:1: not YAML: lists and mappings stand more than 100 deep in each other"),
    "mappings": ("{a: " * 100_000, r"f:1: not YAML: lists and mappings stand more than 100 deep in each other"),
    "an alias in itself": ("a: &a [*a]", r"f:1: not YAML: an alias stands inside of what it names"),
    "a long file": ("#" * (4 << 20), r"f: larger than 3 MiB; Kubernetes takes objects of 1.5 MiB"),
    "a long number": ("a: " + "1" * 5000, r"f: not YAML: a number of 5000 digits"),
    "infinity": ("a: .inf", r"f: not YAML: .inf: JSON has no such number"),
    "a set": ("!!set {a, b}", r"f:1: not YAML: could not determine a constructor for the tag .*set'"),
}


@pytest.mark.parametrize("what", YAML)
def test_yaml_that_would_fill_the_launcher_is_refused_in_one_line(what: str) -> None:
    text, said = YAML[what]
    with pytest.raises(ReadError, match=f"^{said}$"):
        read_text(text, "f")


@pytest.mark.parametrize("verb", ["lint", "run"])
def test_a_hundred_thousand_brackets_end_neither_command(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text("a: " + "[" * 100_000)
    assert main(["workflow", verb, "w.yaml"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("output", ["a-folder-of-megabytes", "a-pipe", "a-link-to-itself"])
def test_an_output_that_is_no_small_file_fails_its_node(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    makes = {
        "a-folder-of-megabytes": "head -c 9000000 /dev/zero > /tmp/o",
        "a-pipe": "mkfifo /tmp/o",
        "a-link-to-itself": "ln -s /dev/zero /tmp/o",
    }
    outputs = {"parameters": [{"name": "o", "valueFrom": {"path": "/tmp/o"}}]}
    status = run(tmp_path, workflow([{"name": "main", "container": sh(makes[output]), "outputs": outputs}]))
    assert status["phase"] == "Error"
    assert status["message"].startswith("wait: Error (exit code 64): /tmp/o is ")


@pytest.mark.parametrize("path", ["/tmp/" + "a" * 300, "a" * 300, "b/" * 3000])
def test_an_output_whose_path_is_too_long_is_missing(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = {"parameters": [{"name": "o", "valueFrom": {"path": path}}]}
    status = run(tmp_path, workflow([{"name": "main", "container": sh("true"), "outputs": outputs}]))
    assert status["phase"] == "Error"
    assert status["message"].endswith("no such file or directory")


def test_what_a_pod_prints_is_read_from_its_end(tmp_path: Path) -> None:
    pod = Pod(tmp_path, tmp_path / "log")
    with pod.stdout.open("wb") as file:
        file.truncate(1 << 40)  # A terabyte, most of it a hole.
        file.seek(0, 2)
        file.write(b"end\n")
    assert pod.result()[-3:] == "end"
    assert len(pod.result()) == RESULT_BYTES - 1


@pytest.mark.parametrize("kind", ["one container", "several", "in a sandbox"])
def test_of_all_that_a_pod_prints_the_end_is_kept(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB here; a gigabyte takes the same memory and the same place."""
    monkeypatch.chdir(tmp_path)
    if kind == "in a sandbox":
        _skip_without_sandbox()
    prints = {"name": "prints", "container": sh("head -c 67108864 /dev/zero | tr '\\0' a; echo the end")}
    if kind == "several":
        prints["sidecars"] = [{"name": "beside", **sh("exec sleep 600")}]
    reads = {
        "name": "reads", "inputs": {"parameters": [{"name": "x"}]},
        "script": {"image": "i", "command": ["sh"], "source": "printf %s '{{=sprig.trunc(-8, inputs.parameters.x)}}'"},
    }  # fmt: skip
    given = {"parameters": [{"name": "x", "value": "{{steps.prints.outputs.result}}"}]}
    steps = [[{"name": "prints", "template": "prints"}], [{"name": "reads", "template": "reads", "arguments": given}]]
    shut_in = Sandbox() if kind == "in a sandbox" else None
    status = run(tmp_path, workflow([{"name": "main", "steps": steps}, prints, reads]), sandbox=shut_in)
    assert status["phase"] == "Succeeded"
    assert log(tmp_path, "[1].reads") == "athe end"
    kept = [path for name in ("exit.stdout", "told/stdout") for path in (tmp_path / "runs").glob(f"w/pods/*/{name}")]
    assert [path.stat().st_size for path in kept] == [RESULT_BYTES]


def _skip_without_sandbox() -> None:
    try:
        check()
    except NoSandboxError:
        pytest.skip("this kernel makes no sandbox")


@pytest.mark.parametrize("field", ["command", "env"])
def test_a_zero_byte_fails_the_node(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    container: dict[str, Any] = {"image": "i", "command": ["echo", "a\0b" if field == "command" else "x"]}
    if field == "env":
        container["env"] = [{"name": "A", "value": "a\0b"}]
    status = run(tmp_path, workflow([{"name": "main", "container": container}]))
    assert Phase(status["phase"]).bad
    assert "\n" not in status["message"]


def test_deadlines_and_retries_that_are_no_numbers_fail_their_node() -> None:
    for field in ({"activeDeadlineSeconds": "{{inputs.parameters.x}}"},
                  {"retryStrategy": {"limit": "{{inputs.parameters.x}}"}},
                  {"retryStrategy": {"backoff": {"duration": "9" * 40, "factor": 9}}},
                  {"timeout": "{{inputs.parameters.x}}s"}):  # fmt: skip
        source = yaml.safe_load(ARGUMENT)
        source["spec"]["templates"][1] |= field
        source["spec"]["templates"][0]["steps"][0][0]["arguments"]["parameters"][0]["value"] = "1e999"
        try:
            engine = Engine(parse(source), RunCreated(1.0, "w", "u"))
        except ManifestError:
            continue
        for now in range(2, 6):
            for node in engine.pending():
                engine.handle(PodStarted(float(now), node.name, 7, 7))
                engine.handle(PodEnded(float(now), node.name, 1))
        assert engine.finished
        assert engine.phase.bad


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_some_of_the_fuzzers_cases_come_to_what_is_expected(first: int) -> None:
    """`benchmarks/hardening/engine.py` runs 100,000."""
    for seed in range(first, first + 100):
        fuzz.limited(seed)


def test_the_fuzzer_finds_what_is_planted() -> None:
    def crashes(seed: int) -> str:
        return str(1 // (seed - seed))

    def hangs(_: int) -> str:
        end = time.process_time() + 60
        while time.process_time() < end:
            pass
        return "never"

    with pytest.raises(fuzz.FindingError, match="seed 3: ZeroDivisionError"):
        fuzz.limited(3, crashes)
    with pytest.raises(fuzz.FindingError, match=r"seed 3: TimeoutError: longer than 0\.1 s"):
        fuzz.limited(3, hangs, limit_s=0.1)


def test_the_lint_survives_what_the_executor_refuses() -> None:
    source = yaml.safe_load(ARGUMENT.replace("EXPRESSION", "{{=" + "(" * 5000 + "}}"))
    assert any(
        "nested" in one.told or "unexpected token" in one.told
        for one in findings(Document(source, "f"), fuzz.Library())
    )
    with pytest.raises(ExpressionSyntaxError):
        evaluate("(" * 5000, {})
