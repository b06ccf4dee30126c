"""The lint against the recorded manifests: planted mistakes are found, what succeeded on Argo is not accused."""

import json
from pathlib import Path

import pytest

from everstep.runtime.workflow.lint.findings import Finding, as_json, as_sarif, findings
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.yaml_source import Document, read, read_text
from tests.workflow.running import manifest_text

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
    workflow = next(one for one in documents if one.value.get("kind") == "Workflow")
    return findings(workflow, Library.from_objects(one.value for one in documents if one is not workflow))


@pytest.mark.parametrize("case", MISTAKES)
def test_a_planted_mistake_is_found(case: str) -> None:
    assert findings_in(GOLDEN / "mistakes" / f"{case}.yaml")


@pytest.mark.parametrize("case", [case for case in RIGHT if case not in REFUSED_BY_ARGO])
def test_what_succeeded_on_argo_is_no_error(case: str) -> None:
    assert [one for one in findings_in(GOLDEN / f"{case}.yaml") if one.error] == []


def test_a_finding_says_the_line_the_code_the_path_and_the_mend() -> None:
    (document,) = read_text(WARNED, "w.yaml")
    lines = [one.text_with_place for one in findings(document, Library())]
    assert lines == [
        "w.yaml:13: argument: spec.templates[0].dag.tasks[0].arguments.parameters[0].name: "
        "say has no input 'txt'; did you mean text?",
        "w.yaml:14: when: spec.templates[0].dag.tasks[0].when: Invalid 'when' expression 'x = w': Invalid token: '=' "
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
    assert isinstance(document, Document)
