"""Loads a workflow and what it refers to from files and folders: `load([run.yaml], with_=[library/])`."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from everstep.runtime.workflow.manifest.library import KINDS, Library
from everstep.runtime.workflow.manifest.parse import ManifestError
from everstep.runtime.workflow.manifest.python_files import read_python
from everstep.runtime.workflow.manifest.schema import Problem, Where, dotted_path
from everstep.runtime.workflow.manifest.yaml_source import Document, ReadError, read

ENDINGS = (".yaml", ".yml", ".json")
NOTHING_THERE = "; give a YAML file of one, or a pipeline's .py"


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
    files: Iterable[Path], with_: Iterable[Path] = (), images: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> LoadedWorkflow:
    """The one Workflow of these files (YAML, or Python that declares it); it may refer to what else they have.

    `with_`: files and folders of more that it may refer to. `images`: what images run whose containers name no
    command. Raises ManifestError: unreadable, no Workflow or several, an object of another kind.
    """
    documents, others = _read_documents(files), _read_documents(with_)
    _check_objects([*documents, *others])
    workflows = [document for document in documents if _kind(document) == "Workflow"]
    if not workflows:
        place = _kind_location(documents[0]) if documents else ", ".join(map(str, files))
        raise ManifestError(f"{place}: there is no Workflow{'' if documents else NOTHING_THERE}")
    if len(workflows) > 1:
        raise ManifestError(f"{_kind_location(workflows[1])}: is a second Workflow; only one can run at a time")
    return _with_objects(workflows[0], [*documents, *others], images)


def load_each(
    files: Iterable[Path], with_: Iterable[Path] = (), images: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[LoadedWorkflow]:
    """Each Workflow, WorkflowTemplate, CronWorkflow and object of an unknown kind of these files, for the lint.

    Raises ManifestError: unreadable, nothing there, or `with_` has an object of another kind.
    """
    documents, others = _read_documents(files), _read_documents(with_)
    if not documents:
        raise ManifestError(f"{', '.join(map(str, files))}: there is no Workflow{NOTHING_THERE}")
    own_objects = [document for document in documents if _kind(document) in KINDS]
    _check_objects([*own_objects, *others])
    linted = [document for document in documents if _kind(document) not in ("ConfigMap", "Secret")]
    return [_with_objects(document, [*own_objects, *others], images) for document in linted]


def _with_objects(document: Document, every: Iterable[Document], images: Mapping[str, Sequence[str]]) -> LoadedWorkflow:
    beside = [object_ for object_ in every if _kind(object_) != "Workflow"]
    objects_by_name = {
        f"{_kind(object_)} {(object_.value.get('metadata') or {}).get('name')}": object_ for object_ in beside
    }
    return LoadedWorkflow(
        document, Library.from_objects((object_.value for object_ in beside), images), objects_by_name
    )


def _read_documents(files: Iterable[Path]) -> list[Document]:
    try:
        return [
            document
            for path in _expand_paths(files)
            for document in (read_python if path.suffix == ".py" else read)(path)
        ]
    except ReadError as error:
        raise ManifestError(str(error)) from None


def _check_objects(documents: Iterable[Document]) -> None:
    for document in documents:
        if _kind(document) not in KINDS:
            raise ManifestError(f"{_kind_location(document)}: kind {_kind(document) or 'none'}: use {', '.join(KINDS)}")
        for where, mistake in _object_mistakes(document.value):
            raise ManifestError(f"{document.file}:{document.line(where)}: {dotted_path(where)}: {mistake}")


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
            yield from sorted(file for file in path.rglob("*") if file.suffix in ENDINGS)
        else:
            yield path


def _kind(document: Document) -> str:
    return str(document.value.get("kind") or "") if isinstance(document.value, Mapping) else ""
