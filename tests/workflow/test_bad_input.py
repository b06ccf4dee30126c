"""What cannot be run is said in one line with file and line, with exit code 2, and nothing has run."""

import re
from pathlib import Path

import pytest

from everstep.cli import main

GOOD = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  templates:
  - name: main
    container: {image: i, command: [echo, hello]}
"""
ENV = "command: [echo, hello], env: [{name: A, valueFrom: {REF: {name: me, key: k}}}]"
BAD = {
    "no YAML": ("entrypoint: main", "entrypoint: {", r":\d+: not YAML: "),
    "an unknown field": ("entrypoint: main", "entryPoint: main",
                         r":6: spec.entryPoint: there is no such field; did you mean entrypoint\?"),
    "another kind": ("kind: Workflow", "kind: CronWorkflow", r":3: kind CronWorkflow: use Workflow, "),
    "a missing Secret": ("command: [echo, hello]", ENV.replace("REF", "secretKeyRef"),
                         r":9: .*secretKeyRef: there is no Secret 'me' in these files"),
    "a missing ConfigMap": ("command: [echo, hello]", ENV.replace("REF", "configMapKeyRef"),
                            r":9: .*configMapKeyRef: there is no ConfigMap 'me' in these files"),
    "a circle": ("container: {image: i, command: [echo, hello]}",
                 "steps: [[{name: a, template: b}]]\n  - name: b\n    steps: [[{name: c, template: main}]]",
                 r":9: .*main -> b -> main: calls itself for ever; give one of them a when"),
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
    good, bad, said = BAD[what]
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(GOOD.replace(good, bad))
    assert main(["workflow", verb, "w.yaml"]) == 2
    out, told = capsys.readouterr()
    first, *more = told.splitlines()
    assert out == ""
    without_code = re.sub(r"(?<=: )(invalid|here|template): ", "", first)
    assert re.search(rf"w\.yaml{said}", without_code), first
    assert verb == "lint" or not more
    assert not Path("runs").exists()


def test_what_stands_in_another_file_is_told_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(GOOD.replace("container: {image: i, command: [echo, hello]}",
                                           "steps: [[{name: a, templateRef: {name: far, template: x}}]]"))  # fmt: skip
    far = GOOD.replace("kind: Workflow", "kind: WorkflowTemplate").replace("name: w", "name: far")
    Path("far.yaml").write_text(far.replace("name: main", "name: x").replace("command: [", "comand: ["))
    assert main(["workflow", "run", "w.yaml", "--with", "far.yaml"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("everstep workflow run: far.yaml:9: "), told
    assert "comand: there is no such field; did you mean command?" in told
    assert told.count("\n") == 1
    assert main(["workflow", "lint", "far.yaml"]) == 2
    assert "far.yaml:9: invalid: spec.templates[0].container.comand: there is no" in capsys.readouterr().err
    Path("far.yaml").write_text(far)
    assert main(["workflow", "lint", "far.yaml"]) == 0
