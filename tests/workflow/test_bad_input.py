"""What cannot be run is said in one line with file and line, with exit code 2, and nothing has run."""

import re
from pathlib import Path

import pytest

from everstep.cli.main import main
from tests.workflow.running import manifest_text

GOOD = manifest_text("""
  - name: main
    container: {image: i, command: [echo, hello]}
""")
ENV = "command: [echo, hello], env: [{name: A, valueFrom: {REF: {name: me, key: k}}}]"
BAD = {
    "no YAML": ("entrypoint: main", "entrypoint: {", r":\d+: not YAML: "),
    "an unknown field": ("entrypoint: main", "entryPoint: main",
                         r":6: spec.entryPoint: there is no such field; did you mean entrypoint\?"),
    "a missing Secret": ("command: [echo, hello]", ENV.replace("REF", "secretKeyRef"),
                         r":9: .*secretKeyRef: there is no Secret 'me' in these files"),
    "a missing ConfigMap": ("command: [echo, hello]", ENV.replace("REF", "configMapKeyRef"),
                            r":9: .*configMapKeyRef: there is no ConfigMap 'me' in these files"),
    "a circle": ("container: {image: i, command: [echo, hello]}",
                 "steps: [[{name: a, template: b}]]\n  - name: b\n    steps: [[{name: c, template: main}]]",
                 r":9: .*main -> b -> main: calls itself forever; give one of them a when"),
    "a missing WorkflowTemplate": ("container: {image: i, command: [echo, hello]}",
                                   "steps: [[{name: a, templateRef: {name: far, template: x}}]]",
                                   r":9: .*there is no WorkflowTemplate 'far' in these files"),
    "a cluster's resource": ("container: {image: i, command: [echo, hello]}", "resource: {action: get}",
                             r":9: spec.templates\[0\].resource: it needs a cluster; not supported by the executor"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("verb", ["run", "lint"])
def test_bad_input_is_one_line_with_file_and_line(
    what: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, expected_text = BAD[what]
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(GOOD.replace(good, bad))
    assert main(["workflow", verb, "w.yaml"]) == 2
    out, error_text = capsys.readouterr()
    first, *more = error_text.splitlines()
    assert out == ""
    without_code = re.sub(r"(?<=: )(wrong|cannot run here): (invalid|here|template): ", "", first)
    assert re.search(rf"w\.yaml{expected_text}", without_code), first
    assert verb == "lint" or not more
    assert not Path("runs").exists()


def test_a_run_of_another_kind_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(GOOD.replace("kind: Workflow", "kind: CronWorkflow"))
    assert main(["workflow", "run", "w.yaml"]) == 2
    assert re.fullmatch(r"everstep workflow run: w.yaml:3: kind CronWorkflow: use .*\n", capsys.readouterr().err)


def test_what_stands_in_another_file_is_told_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(GOOD.replace("container: {image: i, command: [echo, hello]}",
                                           "steps: [[{name: a, templateRef: {name: far, template: x}}]]"))  # fmt: skip
    far = GOOD.replace("kind: Workflow", "kind: WorkflowTemplate").replace("name: w", "name: far")
    Path("far.yaml").write_text(far.replace("name: main", "name: x").replace("command: [", "comand: ["))
    assert main(["workflow", "run", "w.yaml", "--with", "far.yaml"]) == 2
    error_text = capsys.readouterr().err
    assert error_text.startswith("everstep workflow run: far.yaml:9: "), error_text
    assert "comand: there is no such field; did you mean command?" in error_text
    assert error_text.count("\n") == 1
    assert main(["workflow", "lint", "far.yaml"]) == 2
    assert "far.yaml:9: wrong: invalid: spec.templates[0].container.comand: there is no" in capsys.readouterr().err
    Path("far.yaml").write_text(far)
    assert main(["workflow", "lint", "far.yaml"]) == 0


WRONG = {
    "a folder of programs": (["--path", "nowhere"], r"--path \S*nowhere: not a folder"),
    "a library": (["--with", "nowhere"], r"run: nowhere: No such file or directory"),
    "an image's quotes": (["--image", 'i="x'], r'--image i="x: No closing quotation'),
    "an image": (["--image", "i"], r"--image 'i': write NAME=VALUE"),
    "a parameter": (["-p", "x"], r"-p 'x': write NAME=VALUE"),
    "a file of parameters": (["--parameter-file", "nothing"], r"nothing: No such file or directory"),
    "a list of parameters": (["--parameter-file", "list.yaml"], r"list.yaml: not a map of parameters"),
    "a folder to work in": (["--work-dir", "nowhere"], r"--work-dir nowhere: not a folder"),
    "a place for runs": (["--runs", "w.yaml"], r"--runs \S*w: Not a directory; choose another folder"),
    "a name": (["--name", "Bad_Name"], r"name 'Bad_Name': use at most 63 of a-z, 0-9 and -"),
    "a name that is taken": (
        ["--name", "artifacts"],
        r"name 'artifacts': that folder is shared by all runs; choose another name",
    ),
    "an entrypoint": (["--entrypoint", "mian"], r"w\.yaml:6: spec.entrypoint: .*mian.*; did you mean main\?"),
    "a second workflow": (["w.yaml"], r"w\.yaml:3: is a second Workflow; only one can run at a time"),
    "a file": (["nothing.yaml"], r"nothing\.yaml: No such file or directory"),
    "a binary": (["binary.yaml"], r"binary\.yaml: not YAML: not UTF-8 text"),
    "a Secret": (["secret.yaml"], r"secret\.yaml:3: data.k: is not base64; put plain text in stringData"),
    "a ConfigMap": (["config.yaml"], r"config\.yaml:3: data.k: is not a string; put it in quotes"),
    "an object without a name": (
        ["nameless.yaml"],
        r"nameless\.yaml:1: metadata.name: is required and must be a string",
    ),
    "an object's metadata": (["headless.yaml"], r"headless\.yaml:2: metadata: is not a map"),
    "an alias": (["alias.yaml"], r"alias\.yaml:\d+: not YAML: an alias stands inside the value that it refers to"),
}
FILES = {
    "list.yaml": b"[1]",
    "binary.yaml": b"\xff\xfe\x00",
    "secret.yaml": b"kind: Secret\nmetadata: {name: s}\ndata: {k: plain text}",
    "config.yaml": b"kind: ConfigMap\nmetadata: {name: s}\ndata: {k: 5}",
    "nameless.yaml": b"kind: ConfigMap\ndata: {}",
    "headless.yaml": b"kind: ConfigMap\nmetadata: name",
    "alias.yaml": b"kind: ConfigMap\nmetadata: &a {name: *a}",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_or_object_is_one_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected_text = WRONG[what]
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(GOOD)
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    assert main(["workflow", "run", "w.yaml", *arguments]) == 2
    out, error_text = capsys.readouterr()
    assert (out, error_text.count("\n")) == ("", 1), error_text
    assert re.search(expected_text, error_text), error_text
    assert {path.name for path in tmp_path.iterdir()} == {"w.yaml", *FILES}


def test_a_spec_that_is_no_map_is_told_also_with_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for spec, expected_text in (
        ("main", "spec: is not a map"),
        ("{arguments: [1]}", "spec.arguments: must be a mapping"),
    ):
        Path("w.yaml").write_text(f"apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nspec: {spec}\n")
        assert main(["workflow", "run", "w.yaml", "-p", "a=b"]) == 2
        error_text = capsys.readouterr().err
        assert error_text.startswith("everstep workflow run: w.yaml:3: "), error_text
        assert expected_text in error_text
        assert error_text.count("\n") == 1


def test_what_is_asked_of_a_run_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(GOOD)
    assert main(["workflow", "run", "w.yaml"]) == 0
    Path("other.yaml").write_text(GOOD.replace("hello", "bye"))
    Path("runs/broken").mkdir()
    Path("runs/broken/workflow.json").write_text("{")
    capsys.readouterr()
    again = ["--restart-successful", "--node-field-selector"]
    for words, expected_text in (
        (["run", "other.yaml"], "has a run of another manifest; choose another name"),
        (["retry", "w"], "w: has already succeeded; --restart-successful --node-field-selector displayName=STEP"),
        (["retry", "w", *again, "colour=red"], "'colour=red': write FIELD=VALUE with one of displayName, "),
        (["retry", "w", *again, "displayName=nobody"], "no node that has succeeded matches"),
        (["stop", "w"], "w: has already ended: Succeeded"),
        (["set", "w", "--phase", "Failed"], "w: no process runs it; `everstep workflow resume w` resumes it"),
        (["get", "nobody"], "nobody: no such run; `everstep workflow list --runs runs` shows them"),
        (["logs", "w", "z"], "w: no pod of that name has a log, and no step or node begins with 'z'"),
        (["get", "broken"], "broken/workflow.json: not JSON: "),
    ):
        assert main(["workflow", *words]) == 2, words
        error_text = capsys.readouterr().err
        assert expected_text in error_text, error_text
        assert error_text.count("\n") == 1, error_text


@pytest.mark.parametrize("verb", ["run", "lint"])
def test_a_parameter_that_no_workflow_has_is_a_warning(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    declared = "entrypoint: main\n  arguments: {parameters: [{name: rate, value: 1}]}"
    text = GOOD.replace("entrypoint: main", declared).replace("hello", "'{{workflow.parameters.only-read}}'")
    Path("w.yaml").write_text(text)
    assert main(["workflow", verb, "w.yaml", "-p", "ratte=1", "-p", "rate=2", "-p", "only-read=3"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: -p")]
    assert warnings == [
        "warning: -p ratte: the workflow has no such parameter, so it changes nothing; did you mean rate?"
    ]


@pytest.mark.parametrize("verb", ["run", "lint"])
def test_an_empty_folder_is_one_line_with_the_mend(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert main(["workflow", verb, "empty"]) == 2
    assert re.fullmatch(
        rf"everstep workflow {verb}: empty: there is no Workflow; give a YAML file of one, or a pipeline's .py\n",
        capsys.readouterr().err,
    )
