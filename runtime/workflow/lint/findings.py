"""Mistakes in a workflow before it runs: `findings(document, library)`.

Errors are what Argo refuses, what this machine does not do, and what is sure to fail when it runs. Warnings are what
passes silently and is probably not meant.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from everstep.runtime.workflow.expressions.bounds import use_meter
from everstep.runtime.workflow.lint import calls, fields, scripts, texts
from everstep.runtime.workflow.manifest import parse
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import WORKFLOW_TEMPLATES, Library
from everstep.runtime.workflow.manifest.schema import UNSUPPORTED, Problem, Where, dotted_path
from everstep.runtime.workflow.manifest.yaml_source import Document

RUNS_HERE = "here"
"""Code of what Argo would do and this machine does not."""
NO_DOCUMENTS: Mapping[str, Document] = MappingProxyType({})
INVALID = "invalid"
"""Code of what Argo refuses."""


class Finding(NamedTuple):
    """One mistake or warning."""

    line: int
    where: Where
    code: str
    error: bool
    message: str
    file: str

    @property
    def text_with_place(self) -> str:
        """`file:line: code: path: message`."""
        return f"{self.file}:{self.line}: {self.text}"

    @property
    def text(self) -> str:
        """`code: path: message`."""
        place = f"{dotted_path(self.where)}: " if self.where else ""
        return f"{self.code}: {place}{self.message}"


def findings(document: Document, library: Library, others: Mapping[str, Document] = NO_DOCUMENTS) -> list[Finding]:
    """All findings, by line. `others`: the documents of objects that the workflow refers to."""
    with use_meter():
        return _findings(document, library, others)


def _findings(document: Document, library: Library, others: Mapping[str, Document]) -> list[Finding]:
    if isinstance(document.value, Mapping) and document.value.get("kind") in WORKFLOW_TEMPLATES:
        found = _findings(replace(document, value=_as_workflow(document.value)), library, others)
        return [one for one in found if one.code != "unused"]
    source = document.value
    found = []
    for one in parse.problems(source, library):
        code = RUNS_HERE if one.message.endswith(UNSUPPORTED) else INVALID
        other = others.get(one.of)
        found.append(
            _to_finding(other, one._replace(of=""), code, True) if other else _to_finding(document, one, code, True)
        )
    found += [Finding(line, where, "duplicate-key", True, f"{where[-1]!r} appears twice; the last one wins",
                      document.file) for where, line in document.repeated]  # fmt: skip
    wrong = any(one.code == INVALID for one in found)
    if isinstance(source, Mapping) and isinstance(source.get("spec"), Mapping) and not wrong:
        for code, error, problem in _raw_findings(source, library):
            if not any(one.where == problem.where and one.message == problem.message for one in found):
                found.append(_to_finding(document, problem, code, error))
    return sorted(found, key=lambda one: (one.line, not one.error))


def _to_finding(document: Document, problem: Problem, code: str, error: bool) -> Finding:
    said = f"{problem.of}: {problem.message}" if problem.of else problem.message
    return Finding(document.line(problem.where), problem.where, code, error, said, document.file)


def _as_workflow(template: Mapping[str, Any]) -> dict[str, Any]:
    """A WorkflowTemplate as a workflow: with all its parameters, its first template as the entrypoint."""
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        return {**template, "kind": parse.KIND}
    given = spec.get("arguments")
    entries = [
        one if not isinstance(one, Mapping) or "value" in one else {"valueFrom": {"supplied": {}}, **one}
        for one in list_at(given, "parameters")
    ]
    first = next((one.get("name") for one in list_at(spec, "templates") if isinstance(one, Mapping)), "")
    more = {"arguments": {**given, "parameters": entries}} if entries and isinstance(given, Mapping) else {}
    return {**template, "kind": parse.KIND, "spec": {**spec, "entrypoint": spec.get("entrypoint") or first, **more}}


def _raw_findings(source: Mapping[str, Any], library: Library) -> Iterator[tuple[str, bool, Problem]]:
    """(code, whether it is an error, the problem) of what Argo's own validation lets pass."""
    spec = library.merged_spec(source["spec"]) or source["spec"]
    if source.get("apiVersion") != "argoproj.io/v1alpha1":
        yield "version", False, Problem(("apiVersion",), "the version is argoproj.io/v1alpha1")
    every: list[Iterable[tuple[str, bool, Problem]]] = [
        fields.findings(source, spec, library),
        texts.findings(spec, library),
        calls.findings(spec, library),
        scripts.findings(spec, library),
    ]
    for some in every:
        yield from some


def as_json(found: list[Finding]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {"file": one.file, "line": one.line, "path": dotted_path(one.where), "code": one.code,
         "severity": "error" if one.error else "warning", "message": one.message}
        for one in found
    ]  # fmt: skip


def _sarif_location(one: Finding) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": one.file}, "region": {"startLine": one.line}}}


def as_sarif(found: list[Finding]) -> dict[str, Any]:
    """For code hosts (SARIF 2.1.0)."""
    results = [
        {
            "ruleId": one.code,
            "level": "error" if one.error else "warning",
            "message": {"text": f"{dotted_path(one.where)}: {one.message}"},
            "locations": [_sarif_location(one)],
        }
        for one in found
    ]
    rules = [{"id": code} for code in sorted({one.code for one in found})]
    driver = {"name": "everstep workflow lint", "rules": rules}
    return {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
