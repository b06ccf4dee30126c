"""Manifests that nobody can have meant: a node fails in one line, or they are refused; and the fuzzer of more."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.cli.main import main
from everstep.runtime.workflow import ManifestError, parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import PodEnded, PodStarted, RunCreated
from everstep.runtime.workflow.engine.nodes import Phase
from everstep.runtime.workflow.manifest.yaml_source import ReadError, read_text
from tests.workflow import fuzz
from tests.workflow.running import ARGUMENT, run, workflow

ALIASES = "l0: &l0 [x, x, x]\n" + "".join(f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}, *l{n - 1}]\n" for n in range(1, 30))

YAML = {
    "aliases": (ALIASES, r"f:\d+: not YAML: it has more than 200000 values, with its aliases expanded"),
    "brackets": ("[" * 100_000, r"f:1: not YAML: lists and mappings are nested more than 100 deep"),
    "mappings": ("{a: " * 100_000, r"f:1: not YAML: lists and mappings are nested more than 100 deep"),
    "an alias in itself": ("a: &a [*a]", r"f:1: not YAML: an alias stands inside the value that it refers to"),
    "a long file": ("#" * (4 << 20), r"f: larger than 3 MiB; Kubernetes accepts objects of at most 1.5 MiB"),
    "a long number": ("a: " + "1" * 5000, r"f: not YAML: a number has 5000 digits, which is too long"),
    "infinity": ("a: .inf", r"f: not YAML: .inf: JSON has no such number"),
    "a set": ("!!set {a, b}", r"f:1: not YAML: could not determine a constructor for the tag .*set'"),
}


@pytest.mark.parametrize("what", YAML)
def test_yaml_that_would_fill_the_launcher_is_refused_in_one_line(what: str) -> None:
    text, expected_text = YAML[what]
    with pytest.raises(ReadError, match=f"^{expected_text}$"):
        read_text(text, "f")


@pytest.mark.parametrize("verb", ["lint", "run"])
def test_a_hundred_thousand_brackets_end_neither_command(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text("a: " + "[" * 100_000)
    assert main(["workflow", verb, "w.yaml"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("field", ["command", "env"])
def test_a_zero_byte_fails_the_node(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    container: dict[str, Any] = {"image": "i", "command": ["echo", "a\0b" if field == "command" else "x"]}
    if field == "env":
        container["env"] = [{"name": "A", "value": "a\0b"}]
    status = run(tmp_path, workflow([{"name": "main", "container": container}]))
    assert Phase(status["phase"]).bad
    assert "\n" not in status["message"]


def test_an_output_whose_path_has_a_zero_byte_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = {"artifacts": [{"name": "a", "path": "/tmp/a\0b"}]}
    container = {"image": "i", "command": ["true"]}
    status = run(tmp_path, workflow([{"name": "main", "container": container, "outputs": outputs}]))
    assert Phase(status["phase"]).bad
    assert "no such file or directory" in status["message"]


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
            for node in engine.pending_pods():
                engine.handle(PodStarted(float(now), node.name, 7, 7))
                engine.handle(PodEnded(float(now), node.name, 1))
        assert engine.state.finished
        assert engine.phase.bad


def test_a_target_that_names_no_task_is_an_error_as_on_argo() -> None:
    ok = {"name": "ok", "container": {"image": "i", "command": ["true"]}}
    main_ = {"name": "main", "dag": {"target": "a {{item}}", "tasks": [{"name": "a", "template": "ok"}]}}
    engine = Engine(parse(workflow([main_, ok])), RunCreated(1.0, "w", "u"))
    assert engine.state.finished
    assert engine.phase is Phase.ERROR
    assert engine.message.endswith("target {{item}} does not exist")


def test_an_exit_hook_whose_arguments_cannot_be_made_ends_its_dag() -> None:
    arguments = {"parameters": [{"name": "x", "value": "{{tasks.a.outputs.result}}"}]}
    task = {"name": "a", "template": "says", "hooks": {"exit": {"template": "ok", "arguments": arguments}}}
    ok = {"name": "ok", "inputs": {"parameters": [{"name": "x"}]}, "container": {"image": "i", "command": ["true"]}}
    says = {"name": "says", "script": {"image": "i", "command": ["sh"], "source": "echo"}}
    engine = Engine(parse(workflow([{"name": "main", "dag": {"tasks": [task]}}, ok, says])), RunCreated(1.0, "w", "u"))
    engine.handle(PodStarted(2.0, "w.a", 7, 7))
    engine.handle(PodEnded(3.0, "w.a", 0, result="\x01"))
    assert engine.state.finished
    assert engine.phase is Phase.ERROR


def test_a_template_without_a_kind_is_an_error_also_when_its_name_is_made_late() -> None:
    templates = {"templates": [{"name": "make"}]}
    library = fuzz.library_of([{"kind": "WorkflowTemplate", "metadata": {"name": "l"}, "spec": templates}])
    task = {"name": "a", "templateRef": {"name": "l", "template": "{{item}}"}, "withItems": ["make"]}
    engine = Engine(parse(workflow([{"name": "main", "dag": {"tasks": [task]}}]), library), RunCreated(1.0, "w", "u"))
    assert engine.state.finished
    assert engine.state.nodes["w.a(0:make)"].phase is Phase.ERROR
    assert "not supported by the executor on this machine" in engine.state.nodes["w.a(0:make)"].message


def test_a_container_without_a_command_fails_its_node_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lint cannot know what an image runs whose name is yet to be made."""
    monkeypatch.chdir(tmp_path)
    status = run(tmp_path, workflow([{"name": "main", "container": {"image": "{{=1"}}]))
    assert Phase(status["phase"]).bad
    assert "its container has no command" in status["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"volumeClaimTemplates": [{"metadata": "words"}]},
        {"volumes": [{"name": "v", "configMap": "words"}]},
        {"templateDefaults": {"container": {"readinessProbe": "words"}}},
        {"metrics": {"prometheus": [{"name": "n", "help": "h", "gauge": ["a"]}]}},
        {"arguments": {"parameters": [{"name": "x", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]}},
    ],
)
def test_metadata_that_is_no_mapping_is_refused_in_one_line(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ok = {"name": "ok", "container": {"image": "i", "command": ["true"]}}
    objects = [workflow([ok], **more), {"kind": "ConfigMap", "metadata": {"name": "m", "labels": ["a"]}, "data": "k"}]
    Path("w.yaml").write_text(yaml.safe_dump_all(objects))
    assert main(["workflow", "run", "w.yaml"]) == 2
    error_text = capsys.readouterr().err
    assert "Traceback" not in error_text
    assert error_text


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_some_of_the_fuzzers_cases_come_to_what_is_expected(first: int) -> None:
    """`benchmarks/hardening/engine.py` runs 100,000."""
    for seed in range(first, first + 100):
        fuzz.run_limited(seed)


def test_the_fuzzer_finds_what_is_planted() -> None:
    def crashes(seed: int) -> str:
        return str(1 // (seed - seed))

    def hangs(_: int) -> str:
        end = time.process_time() + 60
        while time.process_time() < end:
            pass
        return "never"

    with pytest.raises(fuzz.FindingError, match="seed 3: ZeroDivisionError"):
        fuzz.run_limited(3, crashes)
    with pytest.raises(fuzz.FindingError, match=r"seed 3: TimeoutError: longer than 0\.1 s"):
        fuzz.run_limited(3, hangs, limit_s=0.1)
