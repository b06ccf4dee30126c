"""Reads a manifest field by field, and knows at the end which fields nobody has read."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from everstep.errors import BadInput
from everstep.runtime.display.terminal import as_text
from everstep.runtime.workflow.manifest.schema import KINDS, type_problems
from everstep.runtime.workflow.manifest.yaml_source import Document, FieldPath

T = TypeVar("T")
_MAX_DIGITS = 18
_NAMES = {dict: "a mapping", list: "a list", str: "a text", int: "a whole number", bool: "true or false"}


class ConvertError(BadInput):
    """`FILE:LINE: FIELD: what, and how to fix it`, in one line whatever the file's texts are."""

    def __init__(self, message: str) -> None:
        super().__init__(as_text(message))


class Fields:
    """A document, and which of its fields were read."""

    def __init__(self, document: Document) -> None:
        """Raises ConvertError."""
        self._document = document
        self._read = set[FieldPath]()
        self.notes = list[str]()
        """Fields that were converted to something else, one line each."""
        for path, line in document.repeated:
            raise ConvertError(f"{document.file}:{line}: {path_text(path)}: appears twice")

    def has(self, *path: str | int) -> bool:
        """Whether the field is there, and not null."""
        return self._find(path) is not None

    def take(self, kind: type[T], *path: str | int, default: T | None = None) -> T:
        """The field's value, with all that is below it; `default` if it is not there. Raises ConvertError if it is of
        another type, or missing without a default."""
        value = self._find(path)
        if value is None:
            if default is None:
                raise self.wrong("missing", *path)
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(f"{value!r} is not {_NAMES[kind]}", *path)
        self._read.add(path)
        return value

    def text_at(self, *path: str | int) -> str:
        """The value as a text, unread; empty if it is not there."""
        value = self._find(path)
        return "" if value is None else str(value)

    def take_like(self, holder: str, name: str, *path: str | int) -> Any:
        """The field's value, in which everything is as Argo's `holder` has it in its field `name`. Raises
        ConvertError."""
        value = self.take(object, *path)
        for problem in type_problems(value, KINDS[holder][name].type):
            if problem.only != "here":
                raise self.wrong(problem.message, *path, *problem.where)
        return value

    def count(self, *path: str | int, default: int | None = None, least: int = 0, most: int | None = None) -> int:
        """A number from `least` to `most`, which may be given as a text. Raises ConvertError."""
        value = self._find(path)
        if isinstance(value, str) and (number := number_in(value)) is not None:
            self._read.add(path)
            value = number
        else:
            value = self.take(int, *path, default=default)
        if value < least:
            raise self.wrong(f"{value} must be at least {least}", *path)
        if most is not None and value > most:
            raise self.wrong(f"{value} is more than the {most} that there are", *path)
        return value

    def skip(self, kind: type, *path: str | int) -> None:
        """The field, if it is there, says what holds anyway: it needs no mention. Raises ConvertError if it is of
        another type."""
        if self.has(*path):
            self.take(kind, *path)
        self._read.add(path)

    def skip_value(self, value: object, *path: str | int) -> None:
        """The field, if it has that value, says what holds anyway: it needs no mention."""
        if self._find(path) == value and self.has(*path):
            self._read.add(path)

    def keys(self, *path: str | int) -> list[str]:
        """The names in a mapping; empty if it is not there. Raises ConvertError."""
        return [str(key) for key in self._mapping(*path)]

    def length(self, *path: str | int) -> int:
        """Of a list; 0 if it is not there. Raises ConvertError."""
        value = self._find(path)
        if value is not None and not isinstance(value, list):
            raise self.wrong(f"{value!r} is not a list", *path)
        return len(value or ())

    def note(self, what: str, *path: str | int) -> None:
        """Add to `notes` what became of that field."""
        self.notes.append(f"{self._document.file}:{self._document.line(path)}: {path_text(path)}: {what}")

    def wrong(self, what: str, *path: str | int) -> ConvertError:
        """The error at that field."""
        return ConvertError(f"{self._document.file}:{self._document.line(path)}: {path_text(path)}: {what}")

    def line(self, path: FieldPath) -> int:
        """Where the field stands."""
        return self._document.line(path)

    @property
    def file(self) -> str:
        """The document's file."""
        return self._document.file

    def wrong_in_spec(self, at: str, what: str) -> ConvertError:
        """The error at the field that a job spec calls `at`: where the document has one of that name, or around it."""
        paths = {path_text(path): path for path in self._document.lines}
        exact = paths.get(f"spec.{at}")
        named = [path for path in paths.values() if path[-1:] == (at.rpartition(".")[2],)]
        if exact or len(named) == 1:
            return self.wrong(what, *(exact or named[0]))
        around = max((path for text, path in paths.items() if f"spec.{at}".startswith(text)), key=len, default=())
        return self.wrong(f"{at}: {what}", *around)

    def unread(self) -> list[FieldPath]:
        """The fields that were not read: the outermost ones of which nothing was read."""
        return list(self._unread((), self._document.value))

    def _unread(self, path: FieldPath, value: Any) -> Iterator[FieldPath]:
        if path in self._read or value is None:
            return
        if path and not any(read_path[: len(path)] == path for read_path in self._read):
            yield path
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                yield from self._unread((*path, str(key)), inner)
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                yield from self._unread((*path, number), inner)

    def _mapping(self, *path: str | int) -> Mapping[str, Any]:
        value = self._find(path)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(f"{value!r} is not a mapping", *path)
        return value or {}

    def _find(self, path: FieldPath) -> Any:
        value = self._document.value
        for depth, part in enumerate(path):
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part] if part < len(value) else None
            elif value is None:
                return None
            else:
                raise self.wrong(f"{value!r} is not a mapping", *path[:depth])
        return value


def number_in(text: str) -> int | None:
    """A whole number without a sign, as people write one; None: it is something else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def path_text(path: FieldPath) -> str:
    """`spec.tasks[0].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "the document"
