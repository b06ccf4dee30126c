"""Where text comes from: which files `--source` names, and the documents in each.

lm-dataformat's own reader yields raw lines for `.jsonl.gz` and reads the eleventh file of an archive before the third;
so these few lines read its archives.
"""

import glob
import gzip
import hashlib
import importlib.util
import io
import json
import re
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from steps.entry import StepError

KINDS = (".jsonl", ".jsonl.zst", ".jsonl.gz", ".txt")
_NOT_TEXT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "pydoc_data"}
_ZST_CHUNK = 1 << 20


class Document(NamedTuple):
    """One text, and where it stands."""

    place: str
    """`file:line`, or the file: for messages."""
    text: str


@dataclass(frozen=True)
class Source:
    """One file, or one text that is no file."""

    name: str
    """Kept with each document; the same on every machine for the standard library."""
    size: int
    """Bytes."""
    digest: Callable[[], str]
    """sha256 of the content, hexadecimal."""
    documents: Callable[[], Iterator[Document]]


def find(source: str) -> list[Path]:
    """The files that `--source` names, in the order given; files of one pattern or folder in natural order.

    Raises StepError for a part that matches nothing and for a file of a kind that is not read.
    """
    found: list[Path] = []
    for part in (part.strip() for part in source.split(",")):
        if part:
            found += _match(part)
    if not found:
        raise StepError(f"--source {source!r}: names no file")
    for path in found:
        if not path.name.endswith(KINDS):
            raise StepError(f"{path}: files of this kind are not read; give {', '.join(KINDS)}")
    return list(dict.fromkeys(found))


def _match(part: str) -> list[Path]:
    if "://" in part and not part.startswith("file://"):
        raise StepError(f"--source {part}: only local files are read yet")
    plain = Path(part.removeprefix("file://"))
    paths = [plain] if plain.exists() else [Path(name) for name in glob.glob(str(plain), recursive=True)]
    files = [path for path in paths if path.is_file()]
    for folder in (path for path in paths if path.is_dir()):
        files += [path for path in folder.iterdir() if path.name.endswith(KINDS) and path.is_file()]
    if not files:
        raise StepError(f"--source {part}: matches no file; give a file, a glob or a folder with {', '.join(KINDS)}")
    return sorted(files, key=natural)


def natural(path: Path) -> list[tuple[int, str]]:
    """Sort key under which data_2 comes before data_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path)) if part]


def from_files(paths: list[Path], text_key: str) -> list[Source]:
    """The user's files as sources. Raises StepError for one that cannot be read."""
    sources = []
    for path in paths:
        try:
            with path.open("rb"):
                size = path.stat().st_size
        except OSError as error:
            raise StepError(f"{path}: cannot be read ({error.strerror})") from None
        sources.append(Source(path.name, size, lambda p=path: _file_digest(p), lambda p=path: _read(p, text_key)))
    return sources


def standard_library() -> list[Source]:
    """The sources of the running interpreter's standard library, then its documentation topics, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in root.rglob("*.py") if not _NOT_TEXT & set(path.relative_to(root).parts)]
    sources = [
        Source(
            path.relative_to(root).as_posix(),
            path.stat().st_size,
            lambda p=path: _file_digest(p),
            lambda p=path: _read_python(p),
        )
        for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix())
    ]
    for name, text in sorted(_topics().items()):
        data = text.encode()
        sources.append(
            Source(
                f"topics/{name}",
                len(data),
                lambda d=data: hashlib.sha256(d).hexdigest(),
                lambda n=name, t=text: iter([Document(f"topics/{n}", t)]),
            )
        )
    return sources


def _topics() -> dict[str, str]:
    if importlib.util.find_spec("pydoc_data") is None:  # left out of some minimal installations
        return {}
    from pydoc_data import topics

    return topics.topics


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_python(path: Path) -> Iterator[Document]:
    """A Python file in its own encoding; one that is broken on purpose (2to3's data) is left out."""
    try:
        with tokenize.open(path) as file:
            yield Document(str(path), file.read())
    except (SyntaxError, UnicodeDecodeError):
        return


def _read(path: Path, text_key: str) -> Iterator[Document]:
    """The documents of one file. Raises StepError with file, line and what is wrong with it."""
    if path.name.endswith(".txt"):
        yield Document(str(path), _text(path, path.read_bytes()))
        return
    number = 0
    try:
        with _lines(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Document(f"{path}:{number}", _json_text(path, number, line, text_key))
    except (gzip.BadGzipFile, EOFError, _zstd_error()) as error:
        raise StepError(f"{path}:{number + 1}: the compressed data is damaged ({error}); fetch it again") from None


def _lines(path: Path) -> BinaryIO | io.BufferedReader | gzip.GzipFile:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rb")
    if path.name.endswith(".zst"):
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True, closefd=True)
        return io.BufferedReader(reader, _ZST_CHUNK)  # pyright: ignore[reportArgumentType]
    return path.open("rb")


def _zstd_error() -> type[Exception]:
    import zstandard

    return zstandard.ZstdError


def _json_text(path: Path, number: int, line: bytes, key: str) -> str:
    place = f"{path}:{number}"
    try:
        value = json.loads(line)
    except ValueError as error:
        raise StepError(f"{place}: not JSON ({error}); mend or remove the line") from None
    if isinstance(value, dict):
        if key not in value:
            raise StepError(f"{place}: no key {key!r} (there are: {', '.join(value)}); choose one with --text-key")
        value = value[key]
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "\n\n".join(value)  # paragraphs, as lm-dataformat joins them
    if not isinstance(value, str):
        raise StepError(f"{place}: {key!r} is {type(value).__name__} where text is wanted; choose with --text-key")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise StepError(f"{place}: half a surrogate pair is no text; mend or remove the line") from None
    return value


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StepError(f"{path}:{line}: not UTF-8 ({error.reason}); convert the file") from None
