"""Loads a workflow and what it refers to from files and folders: `load([run.yaml], with_=[library/])`."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from everstep.runtime.workflow.manifest.library import KINDS, WORKFLOW_TEMPLATES, Library
from everstep.runtime.workflow.manifest.parse import ManifestError
from everstep.runtime.workflow.manifest.python_files import read_python
from everstep.runtime.workflow.manifest.schema import Problem, Where, dotted_path
from everstep.runtime.workflow.manifest.yaml_source import Document, ReadError, read

ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class LoadedWorkflow:
    """One Workflow (or WorkflowTemplate), its document, and the objects beside it."""

    document: Document
    library: Library
    others: Mapping[str, Document]
    """The documents of the objects, by kind and name."""

    def location(self, problem: Problem) -> str:
        """`file:line` of a problem."""
        document = self.others.get(problem.of, self.document)
        return f"{document.file}:{document.line(problem.where)}"


def load(
    files: Iterable[Path],
    with_: Iterable[Path] = (),
    images: Mapping[str, Sequence[str]] = MappingProxyType({}),
    templates: bool = False,
) -> LoadedWorkflow:
    """The one Workflow of these files (YAML, or Python that declares it); it may refer to what else they have.

    `with_`: files and folders of more that it may refer to. `images`: what images run whose containers name no
    command. `templates`: where there is no Workflow, a WorkflowTemplate will do. Raises ManifestError: unreadable, no
    Workflow or several, an object of another kind.
    """
    try:
        documents = [
            one for path in _expand_paths(files) for one in (read_python if path.suffix == ".py" else read)(path)
        ]
        others = [one for path in _expand_paths(with_) for one in read(path)]
    except ReadError as error:
        raise ManifestError(str(error)) from None
    for one in [*documents, *others]:
        if _kind(one) not in KINDS:
            raise ManifestError(f"{_kind_location(one)}: kind {_kind(one) or 'none'}: use {', '.join(KINDS)}")
        for where, said in _object_mistakes(one.value):
            raise ManifestError(f"{one.file}:{one.line(where)}: {dotted_path(where)}: {said}")
    workflows = [one for one in documents if _kind(one) == "Workflow"]
    if not workflows and templates:
        workflows = [one for one in documents if _kind(one) in WORKFLOW_TEMPLATES][:1]
    if not workflows:
        raise ManifestError(
            f"{_kind_location(documents[0]) if documents else ', '.join(map(str, files))}: there is no Workflow"
        )
    if len(workflows) > 1:
        raise ManifestError(f"{_kind_location(workflows[1])}: is a second Workflow; only one can run at a time")
    beside = [one for one in [*documents, *others] if _kind(one) != "Workflow"]
    named = {f"{_kind(one)} {(one.value.get('metadata') or {}).get('name')}": one for one in beside}
    return LoadedWorkflow(workflows[0], Library.from_objects((one.value for one in beside), images), named)


def _kind_location(document: Document) -> str:
    """`file:line` of a document's kind."""
    return f"{document.file}:{document.line(('kind',))}"


def _object_mistakes(value: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """(where, what) of parts of an object that cannot be looked up, or that a cluster would refuse."""
    for field in ("metadata", "spec", "data", "stringData"):
        if not isinstance(value.get(field) or {}, Mapping):
            yield (field,), "is not a map"
            return
    kind, metadata = value.get("kind"), value.get("metadata") or {}
    if kind != "Workflow" and not isinstance(metadata.get("name"), str):
        yield ("metadata", "name"), "is required and must be a string"
    for field in ("data", "stringData") if kind in ("ConfigMap", "Secret") else ():
        for key, text in (value.get(field) or {}).items():
            if not isinstance(text, str):
                yield (field, str(key)), "is not a string; put it in quotes"
            elif kind == "Secret" and field == "data" and not _is_base64(text):
                yield (field, str(key)), "is not base64; put plain text in stringData"


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return False
    return True


def _expand_paths(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.rglob("*") if one.suffix in ENDINGS)
        else:
            yield path


def _kind(document: Document) -> str:
    return str(document.value.get("kind") or "") if isinstance(document.value, Mapping) else ""
