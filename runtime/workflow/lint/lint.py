"""Mistakes in a workflow before it runs: `findings(document, library)`.

Errors are what Argo refuses, what this machine does not do, and what is sure to fail when it runs. Warnings are what
passes silently and is probably not meant. A code says for whom it counts: `here`, `cluster`, any other for both.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from everstep.runtime.workflow.expressions.bounds import use_meter
from everstep.runtime.workflow.expressions.tags import names_read
from everstep.runtime.workflow.lint import calls, cron, fields, scripts, texts, undefined_names
from everstep.runtime.workflow.manifest import parse, validate
from everstep.runtime.workflow.manifest.fields import list_at, mapping_at
from everstep.runtime.workflow.manifest.library import WORKFLOW_TEMPLATES, Library
from everstep.runtime.workflow.manifest.schema import Problem, Where, dotted_path
from everstep.runtime.workflow.manifest.yaml_source import Document

RUNS_HERE = "here"
"""Code of what keeps it from running on this machine, or is lacking here, and is no matter to Argo."""
CLUSTER = "cluster"
"""Code of what is a matter of a cluster only."""
NO_DOCUMENTS: Mapping[str, Document] = MappingProxyType({})
INVALID = "invalid"
"""Code of what Argo refuses."""
SUPPLIED: Mapping[str, Any] = {"supplied": {}}
Target = Literal["argo", "local"]
_TARGETS: Mapping[str, Target] = {RUNS_HERE: "local", CLUSTER: "argo"}


class Finding(NamedTuple):
    """One mistake or warning."""

    line: int
    where: Where
    code: str
    error: bool
    message: str
    file: str

    @property
    def target(self) -> Target | None:
        """For whom alone it counts; None: for both."""
        return _TARGETS.get(self.code)

    @property
    def level(self) -> str:
        """How bad it is, in words."""
        words = {None: "wrong", "local": "cannot run here", "argo": "cannot run on a cluster"}
        return words[self.target] if self.error else "warning"

    @property
    def text_with_place(self) -> str:
        """`file:line: level: code: path: message`."""
        return f"{self.file}:{self.line}: {self.level}: {self.text}"

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
    kind = document.value.get("kind") if isinstance(document.value, Mapping) else None
    if kind in WORKFLOW_TEMPLATES:
        findings = _findings(replace(document, value=_as_workflow(document.value)), library, others)
        return [
            finding
            for finding in findings
            if finding.code != "unused" and not finding.message.startswith(validate.NO_ENTRYPOINT)
        ]
    if kind == "CronWorkflow":
        return _cron_findings(document, library, others)
    if kind and kind != parse.KIND:
        message = f"{kind} is not a workflow, so it is not checked"
        return [_to_finding(document, Problem(("kind",), message), RUNS_HERE, False)]
    return _workflow_findings(document, library, others)


def _cron_findings(document: Document, library: Library, others: Mapping[str, Document]) -> list[Finding]:
    """Of a CronWorkflow and of the workflow that it starts."""
    own = [_to_finding(document, problem, INVALID, True) for problem in cron.problems(document.value)]
    inside = mapping_at(document.value, "spec", "workflowSpec")
    workflow = {"apiVersion": document.value.get("apiVersion"), "kind": parse.KIND, "metadata": {}, "spec": inside}
    prefix = ("spec", "workflowSpec")
    lines = {("spec", *path[2:]): line for path, line in document.lines.items() if path[:2] == prefix}
    findings = _findings(replace(document, value=workflow, lines={**document.lines, **lines}), library, others)
    findings = [
        finding._replace(where=(*prefix, *finding.where[1:])) if finding.where[:1] == prefix[:1] else finding
        for finding in findings
    ]
    message = "a CronWorkflow needs a scheduler; a Workflow of its workflowSpec can run here"
    return [_to_finding(document, Problem(("kind",), message), RUNS_HERE, True), *own, *findings]


def _workflow_findings(document: Document, library: Library, others: Mapping[str, Document]) -> list[Finding]:
    source = document.value
    findings: list[Finding] = []
    for problem in parse.problems(source, library):
        holder = others.get(problem.of)
        findings.append(_to_finding(holder or document, problem._replace(of="") if holder else problem, INVALID, True))
    findings += [Finding(line, where, "duplicate-key", True, f"{where[-1]!r} appears twice; keep one", document.file)
              for where, line in document.repeated]  # fmt: skip
    wrong = any(finding.code == INVALID for finding in findings)
    if isinstance(source, Mapping) and isinstance(source.get("spec"), Mapping) and not wrong:
        for code, error, problem in _raw_findings(source, library):
            if not any(finding.where == problem.where and finding.message == problem.message for finding in findings):
                findings.append(_to_finding(document, problem, code, error))
    return sorted(findings, key=lambda finding: (finding.line, not finding.error))


def _to_finding(document: Document, problem: Problem, code: str, error: bool) -> Finding:
    message = f"{problem.of}: {problem.message}" if problem.of else problem.message
    return Finding(document.line(problem.where), problem.where, problem.only or code, error, message, document.file)


def _as_workflow(template: Mapping[str, Any]) -> dict[str, Any]:
    """A WorkflowTemplate as a workflow: who submits or calls it gives its parameters, also those that it only reads,
    and the inputs of its entrypoint.
    """
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        return {**template, "kind": parse.KIND}
    arguments_of_spec = mapping_at(spec, "arguments")
    entries = [
        entry if not isinstance(entry, Mapping) or "value" in entry else {"valueFrom": SUPPLIED, **entry}
        for entry in list_at(arguments_of_spec, "parameters")
    ]
    prefix = "workflow.parameters."
    read = {name.removeprefix(prefix) for name in names_read(spec.get("templates")) if name.startswith(prefix)}
    more = sorted(read - {str(entry.get("name")) for entry in entries if isinstance(entry, Mapping)} - {"json"})
    entries += [{"name": name, "valueFrom": SUPPLIED} for name in more]
    arguments = {"arguments": {**arguments_of_spec, "parameters": entries}} if entries else {}
    template_names = {template.get("name") for template in list_at(spec, "templates") if isinstance(template, Mapping)}
    entry = {"entrypoint": ""} if spec.get("entrypoint") in template_names else {}
    return {**template, "kind": parse.KIND, "spec": {**spec, **entry, **arguments}}


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
        undefined_names.findings(spec),
    ]
    for some in every:
        yield from some


def as_json(findings: list[Finding]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {"file": finding.file, "line": finding.line, "path": dotted_path(finding.where), "code": finding.code,
         "severity": "error" if finding.error else "warning", "target": finding.target or "both",
         "message": finding.message}
        for finding in findings
    ]  # fmt: skip


def _sarif_location(finding: Finding) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": finding.file}, "region": {"startLine": finding.line}}}


def as_sarif(findings: list[Finding]) -> dict[str, Any]:
    """For code hosts (SARIF 2.1.0)."""
    results = [
        {
            "ruleId": finding.code,
            "level": "error" if finding.error else "warning",
            "message": {"text": f"{dotted_path(finding.where)}: {finding.message}"},
            "locations": [_sarif_location(finding)],
        }
        for finding in findings
    ]
    rules = [{"id": code} for code in sorted({finding.code for finding in findings})]
    driver = {"name": "everstep workflow lint", "rules": rules}
    return {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
