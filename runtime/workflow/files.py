"""A workflow and what it refers to, out of files and folders: `load([run.yaml], with_=[library/])`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runtime.workflow.library import KINDS, Library
from runtime.workflow.manifest import ManifestError
from runtime.workflow.reading import Document, ReadError, read

ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Loaded:
    """One Workflow, where it stands, and the objects beside it."""

    document: Document
    library: Library


def load(
    files: Iterable[Path], with_: Iterable[Path] = (), images: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Loaded:
    """The one Workflow of these files; it may refer to what else is in them or in `with_` (files and folders).

    `images`: what images run whose containers name no command. Raises ManifestError: unreadable, no Workflow or
    several, an object of another kind.
    """
    try:
        documents = [one for path in _files(files) for one in read(path)]
        others = [one for path in _files(with_) for one in read(path)]
    except ReadError as error:
        raise ManifestError(str(error)) from None
    workflows = [one for one in documents if _kind(one) == "Workflow"]
    if len(workflows) != 1:
        names = ", ".join(map(str, files)) or "no file"
        raise ManifestError(f"{names}: {len(workflows)} Workflows; one is run at a time")
    beside = [one for one in [*documents, *others] if one is not workflows[0] and _kind(one) != "Workflow"]
    for one in beside:
        if _kind(one) not in KINDS:
            raise ManifestError(f"{one.file}:1: kind {_kind(one) or 'none'}: use {', '.join(KINDS)}")
    return Loaded(workflows[0], Library.of((one.value for one in beside), images))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.rglob("*") if one.suffix in ENDINGS)
        else:
            yield path


def _kind(document: Document) -> str:
    return str(document.value.get("kind") or "") if isinstance(document.value, Mapping) else ""


def with_arguments(source: Mapping[str, Any], values: Mapping[str, str], entrypoint: str = "") -> dict[str, Any]:
    """The workflow with parameters of the command line, and another entrypoint."""
    spec = dict(source.get("spec") or {})
    if entrypoint:
        spec["entrypoint"] = entrypoint
    if values:
        arguments = dict(spec.get("arguments") or {})
        left = dict(values)
        parameters = []
        for entry in arguments.get("parameters") or []:
            if entry.get("name") in left:
                entry = {key: value for key, value in entry.items() if key != "valueFrom"}
                entry["value"] = left.pop(entry["name"])
            parameters.append(entry)
        parameters += [{"name": name, "value": value} for name, value in left.items()]
        spec["arguments"] = {**arguments, "parameters": parameters}
    return {**source, "spec": spec}
