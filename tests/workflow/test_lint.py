"""The lint against the recorded manifests: planted mistakes are found, what succeeded on Argo is not accused."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import main
from everstep.runtime.workflow.lint.lint import Finding, as_json, as_sarif, findings
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.yaml_source import Document, read, read_text
from tests.workflow.running import manifest_text, workflow

GOLDEN = Path(__file__).with_name("golden")
MISTAKES = sorted(path.stem for path in (GOLDEN / "mistakes").glob("*.yaml"))
RIGHT = sorted(
    f"{path.parent.name}/{path.stem}"
    for kind in ("flow", "pods")
    for path in (GOLDEN / kind).glob("*.yaml")
    if json.loads(path.with_suffix(".json").read_text()).get("phase") == "Succeeded"
)
REFUSED_BY_ARGO = ("flow/yaml-name-n-is-boolean-refused", "pods/yaml-name-n-is-boolean")
"""Recorded as JSON; of the file argo lint says what the lint says here."""
WARNED = manifest_text("""
  - name: main
    dag:
      tasks:
      - name: a
        template: say
        arguments: {parameters: [{name: txt, value: x}]}
        when: "{{workflow.name}} = w"
  - name: say
    inputs: {parameters: [{name: text, default: hello}]}
    container: {image: i, command: [echo, "{{inputs.parameters.text}}"]}
""")


def findings_in(path: Path) -> list[Finding]:
    """What is found in a case."""
    documents = read(path)
    workflow = next(document for document in documents if document.value.get("kind") == "Workflow")
    return findings(
        workflow, Library.from_objects(document.value for document in documents if document is not workflow)
    )


@pytest.mark.parametrize("case", MISTAKES)
def test_a_planted_mistake_is_found(case: str) -> None:
    assert findings_in(GOLDEN / "mistakes" / f"{case}.yaml")


@pytest.mark.parametrize("case", [case for case in RIGHT if case not in REFUSED_BY_ARGO])
def test_what_succeeded_on_argo_is_no_error(case: str) -> None:
    assert [finding for finding in findings_in(GOLDEN / f"{case}.yaml") if finding.error] == []


def test_a_finding_says_the_line_the_code_the_path_and_the_mend() -> None:
    (document,) = read_text(WARNED, "w.yaml")
    lines = [finding.text_with_place for finding in findings(document, Library())]
    assert lines == [
        "w.yaml:13: warning: argument: spec.templates[0].dag.tasks[0].arguments.parameters[0].name: "
        "say has no input 'txt'; did you mean text?",
        "w.yaml:14: wrong: when: spec.templates[0].dag.tasks[0].when: Invalid 'when' expression 'x = w': Invalid "
        "token: '=' "
        '(hint: try wrapping the affected expression in quotes (")); '
        "put quotes around what may be empty or have spaces",
    ]


def test_json_has_a_map_for_each_finding() -> None:
    (document,) = read_text(WARNED, "w.yaml")
    first, second = as_json(findings(document, Library()))
    assert (first["severity"], second["severity"]) == ("warning", "error")
    assert (second["file"], second["line"], second["code"]) == ("w.yaml", 14, "when")
    assert second["path"] == "spec.templates[0].dag.tasks[0].when"


def test_sarif_names_file_line_and_rule() -> None:
    (document,) = read_text(WARNED, "w.yaml")
    (run,) = as_sarif(findings(document, Library()))["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "w.yaml"}, "region": {"startLine": 13}}
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {"argument", "when"}


def test_a_key_that_is_there_twice_is_told_with_the_line_of_the_second() -> None:
    (document,) = read_text("a: 1\nb: {c: 1,\n  c: 2}\n")
    assert document.repeated == [(("b", "c"), 3)]
    (merged,) = read_text("a: &a {c: 1, d: 2}\nb: {<<: *a,\n  c: 2}\ne: {<<: *a, c: 3,\n  c: 4}\n")
    assert merged.value["b"] == {"c": 2, "d": 2}
    assert merged.repeated == [(("e", "c"), 5)]
    assert isinstance(document, Document)


NEEDS = manifest_text("""
  - name: main
    dag:
      tasks:
      - {name: a, template: gone}
      - {name: b, template: image}
      - {name: c, template: secret}
      - {name: d, templateRef: {name: library, template: t}}
  - {name: image, container: {image: argosay}}
  - name: secret
    container: {image: i, command: [env], env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}
""")
CRON = """
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: nightly}
spec:
  schedules: ["0 3 * * *"]
  workflowSpec:
    entrypoint: main
    templates: [{name: main, container: {image: i, command: [echo, "{{inputs.parameters.no}}"]}}]
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: few}
"""
LIBRARY = """
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: library}
spec:
  ENTRYtemplates:
  - name: say
    inputs: {parameters: [{name: text}]}
    container: {image: i, command: [echo, "{{inputs.parameters.text}} {{workflow.parameters.of-the-event}}"]}
"""


def lint(folder: Path, text: str, *flags: str) -> tuple[int, list[str]]:
    """The exit code of the command and what it prints, without the file's name."""
    path = folder / "w.yaml"
    path.write_text(text)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = main(["workflow", "lint", str(path), *flags])
    return code, [line.replace(str(path), "w.yaml") for line in errors.getvalue().splitlines()]


def test_lint_tells_what_is_wrong_everywhere_from_what_this_machine_lacks(tmp_path: Path) -> None:
    text = NEEDS.replace("      - {name: a, template: gone}\n", "")
    code, lines = lint(tmp_path, text)
    assert (code, [line.partition("cannot run here: here: ")[2] for line in lines[:-1]]) == (2, [
        "spec.templates[0].dag.tasks[2].templateRef: there is no WorkflowTemplate 'library' in these files; "
        "provide it: --with FILE",
        "spec.templates[1].container.command: is required; or set what its image runs: --image argosay=COMMAND",
        "spec.templates[2].container.env[0].valueFrom.secretKeyRef: there is no Secret 's' in these files; "
        "provide it: --with FILE",
    ])  # fmt: skip
    assert lines[-1] == "w.yaml: 0 errors, 3 cannot run here, 0 warnings"
    code, lines = lint(tmp_path, NEEDS, "--target", "argo")
    assert (code, lines) == (2, [
        "w.yaml:11: wrong: invalid: spec.templates[0].dag.tasks[0].template: there is no template 'gone'",
        "w.yaml: 1 errors, 0 warnings",
    ])  # fmt: skip


def test_lint_for_a_cluster_does_not_ask_for_what_only_this_machine_lacks(tmp_path: Path) -> None:
    text = NEEDS.replace("      - {name: a, template: gone}\n", "")
    assert lint(tmp_path, text, "--target", "argo") == (0, ["w.yaml: 0 errors, 0 warnings"])
    assert lint(tmp_path, text, "--target", "local")[0] == 2


def test_lint_looks_into_a_cron_workflow_and_passes_by_what_is_no_workflow(tmp_path: Path) -> None:
    code, lines = lint(tmp_path, CRON)
    assert (code, lines) == (2, [
        "w.yaml:3: cannot run here: here: kind: a CronWorkflow needs a scheduler; a Workflow of its workflowSpec can "
        "run here",
        "w.yaml:9: wrong: invalid: spec.workflowSpec.templates[0]: cannot resolve {{inputs.parameters.no}}; "
        "did you mean inputs.parameters?",
        "w.yaml:12: warning: here: kind: ResourceQuota is not a workflow, so it is not checked",
        "w.yaml: 1 errors, 1 cannot run here, 1 warnings",
    ])  # fmt: skip


@pytest.mark.parametrize("entry", ["", "entrypoint: say\n  "])
def test_a_library_whose_template_needs_an_input_is_right(entry: str, tmp_path: Path) -> None:
    assert lint(tmp_path, LIBRARY.replace("ENTRY", entry)) == (0, ["w.yaml: 0 errors, 0 warnings"])


TWICE_CALLED = manifest_text("""
  - name: main
    steps:
    - - {name: a, template: twice}
      - {name: b, template: twice, arguments: {parameters: [{name: size, value: "2"}]}}
  - name: twice
    inputs: {parameters: [{name: size, value: "1"}]}
    dag:
      tasks:
      - {name: c, template: say, arguments: {parameters: [{name: text}]}}
      - {name: d, template: say, arguments: {parameters: [{name: text, value: "{{tasks.c.outputs.result}}"}]}}
  - name: say
    inputs: {parameters: [{name: text}]}
    container: {image: i, command: [echo, "{{inputs.parameters.text}}"]}
""")


def test_a_mistake_in_a_template_that_is_called_in_two_ways_is_told_once() -> None:
    (document,) = read_text(TWICE_CALLED, "w.yaml")
    assert [(finding.line, finding.message) for finding in findings(document, Library())] == [
        (16, "text needs a value or a valueFrom"),
        (17, "reads c, which it does not depend on; add c to its depends"),
    ]


UNDEFINED: dict[str, tuple[Any, list[str]]] = {
    "a module that nobody imports": (("python", "import json\nprint(json.dumps(sys.argv))"), ["line 2: sys"]),
    "a misspelled name": (("python3", "total = {{workflow.name}}\nprint(totl)"), ["line 2: totl"]),
    "names of every kind": (("python", """
import os.path as p, re
from math import *
"""), []),
    "names of all scopes": (("python", """
import a.b
def f(x, *y, k=1, **z):
    global g
    g = [q for q in y if (w := q)]
    return x, k, z, w, a, g, __name__, __file__
class C(f):
    pass
try:
    (lambda h: h)(C)
except OSError as e:
    print(e)
match f:
    case [m, *n]: print(m, n, r)
for r in "x": pass
"""), []),
    "names that exec may define": (("python", "exec(open('x').read())\nprint(later)"), []),
    "code that a tag brings": (("python", "{{workflow.parameters.code}}\nprint(later)"), []),
    "a misspelled variable": (("sh", "name=a\necho $naem"), ["line 2: naem"]),
    "capitals like those of its container": (("bash", "echo \\\n$MESAGE $MESSAGE $GOPATH"), ["line 2: MESAGE"]),
    "what a shell sets": (("bash", """
for i in 1 2; do echo $i ${i} "${x:-none}" '$single' \\$escaped; done  # $comment
while read -r one two; do echo "it's $one" $two $HOME $RANDOM $1 $$; done
local z; arr=(1); arr[0]=2; echo ${#arr[@]} $z
cat <<'EOF'
$literal
EOF
"""), []),
    "what another file may set": (("sh", ". ./settings\necho $setting"), []),
}  # fmt: skip


@pytest.mark.parametrize("case", UNDEFINED)
def test_a_name_that_nothing_defines_in_a_script_is_a_warning(case: str) -> None:
    (language, text), expected = UNDEFINED[case]
    env = [{"name": "MESSAGE", "value": "hello"}]
    script = {"image": "i", "command": [language], "source": text, "env": env}
    container = {"image": "i", "command": [language, "-c"], "args": [text], "env": env}
    manifest = workflow([
        {"name": "main", "steps": [[{"name": "a", "template": "script"}, {"name": "b", "template": "container"}]]},
        {"name": "script", "script": script}, {"name": "container", "container": container},
    ], arguments={"parameters": [{"name": "code", "value": ""}]})  # fmt: skip
    warnings = [finding for finding in findings(Document(manifest, "w.yaml"), Library()) if finding.code == "script"]
    assert [warning.error for warning in warnings] == [False] * 2 * len(expected)
    assert [warning.message.partition(" is read")[0] for warning in warnings] == expected * 2


def test_the_scripts_of_the_recorded_manifests_have_no_undefined_name() -> None:
    reported = [(case, finding.message) for case in RIGHT for finding in findings_in(GOLDEN / f"{case}.yaml")
                if "nothing here defines it" in finding.message]  # fmt: skip
    assert reported == []
