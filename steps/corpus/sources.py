"""Where text comes from: the files that `--source` names, or what every Python carries."""

import hashlib
import importlib.util
import os
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from everstep.runtime import text
from everstep.steps.entry import StepError, disk_error_code

_NOT_TEXT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "pydoc_data"}


@dataclass(frozen=True)
class Source:
    """One file, or one text without a file."""

    name: str
    """Stored with each document; the same on every machine for the standard library."""
    size: int
    """Bytes."""
    digest: Callable[[], str]
    """sha256 of the content, hexadecimal."""
    texts: Callable[[], Iterator[str]]
    """Its documents."""


def find(source: str) -> list[str]:
    """The files that `--source` names, in that order; files of one pattern or folder in natural order.

    Raises StepError for a part that matches nothing, and for an unsupported kind of file.
    """
    try:
        return text.find_files(source, "--source")
    except text.TextError as error:
        raise StepError(str(error)) from None


def require_text(names: list[str], text_key: str) -> None:
    """Raise StepError if a file of this machine cannot be opened, if all are empty, or if the first line of the first
    .jsonl file has no text under that key."""
    sizes = []
    for name in names:
        if "://" in name:
            return  # Known when it is read.
        try:
            with open(name, "rb") as file:
                sizes.append(os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise StepError(f"--source {name}: cannot be read ({error.strerror or error})") from None
    if not any(sizes):
        every = f" ({len(names)} files, all empty)" if len(names) > 1 else ""
        raise StepError(f"--source {names[0]}: it has no text{every}; give files that are not empty")
    if lines := [name for name, size in zip(names, sizes, strict=True) if name.endswith(".jsonl") and size]:
        next(_read(lines[0], text_key), None)


def from_files(names: list[str], text_key: str) -> list[Source]:
    """The user's files as sources. Raises StepError for one that cannot be read."""
    sources = []
    for name in names:
        try:
            with text.open_bytes(name):
                size = text.file_version(name).size
        except OSError as error:
            raise StepError(f"{name}: cannot be read ({error.strerror or error})", disk_error_code(error)) from None
        last = name.rpartition("/")[2]
        sources.append(Source(last, size, lambda n=name: _file_digest(n), lambda n=name: _read(n, text_key)))
    return sources


def standard_library() -> list[Source]:
    """The sources of the running interpreter's standard library, then its documentation topics, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in root.rglob("*.py") if not _NOT_TEXT & set(path.relative_to(root).parts)]
    sources = [
        Source(
            path.relative_to(root).as_posix(),
            path.stat().st_size,
            lambda p=path: _file_digest(str(p)),
            lambda p=path: _read_python(p),
        )
        for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix())
    ]
    for name, topic in sorted(_topics().items()):
        data = topic.encode()
        sources.append(
            Source(
                f"topics/{name}",
                len(data),
                lambda d=data: hashlib.sha256(d).hexdigest(),
                lambda t=topic: iter([t]),
            )
        )
    return sources


def _topics() -> dict[str, str]:
    if importlib.util.find_spec("pydoc_data") is None:  # missing from some minimal installations
        return {}
    from pydoc_data import topics

    return topics.topics


def _file_digest(name: str) -> str:
    with text.open_bytes(name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _read_python(path: Path) -> Iterator[str]:
    """A Python file in its own encoding; files that are broken on purpose (2to3's data) are skipped."""
    try:
        with tokenize.open(path) as file:
            yield file.read()
    except (SyntaxError, UnicodeDecodeError):
        return


def _read(name: str, text_key: str) -> Iterator[str]:
    """The documents of one file. Raises StepError with file, line and the reason."""
    reader = text.DocumentReader((text_key,), flag="--text-key")
    try:
        for extent in text.extents(name):
            for (document,) in reader.read(text.piece_of(extent, 0, extent.size)):
                yield document or ""
    except text.TextError as error:
        raise StepError(str(error)) from None
