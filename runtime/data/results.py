"""What a training script names as its results: values, and files or folders that are copied to the store.

`jobs/<job>/results.json` names them; it is replaced last, so a reader sees a whole set or the one before. A copy has a
new folder each time, and the folder before is removed afterwards.
"""

import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from everstep.runtime.store import NoSuchKey, Store, StoreError

Value = str | int | float | bool
MOST_BYTES = 64 << 10
"""Of all values together: they become an output parameter and a part of the report."""
_WORD = 24
"""Most characters of a value that a summary shows; an address has more."""
_KEY_PART = re.compile(r"[^A-Za-z0-9._-]")


class Scalar(Protocol):
    """A number of numpy or torch."""

    def item(self) -> Any:
        """The number as Python has it."""
        ...


class ResultsError(ValueError):
    """A result that cannot be kept: one line with its name, and how to fix it."""


def results_key(job: str) -> str:
    """The key of the object that names a job's results."""
    return f"jobs/{job}/results.json"


def write_results(store: Store, job: str, values: Mapping[str, Value | Scalar | Path]) -> dict[str, Value]:
    """Copy the paths, add all values to those that the job named before; returns the whole set, a path as its URI.

    Raises ResultsError, StoreError.
    """
    for name, value in values.items():
        if isinstance(value, Path) and not _fits_key(name):
            raise ResultsError(f"result {name}: a Path needs a name of letters, digits and . _ -; rename it")
    before = read_results(store, job)
    results: dict[str, Value] = {**before}
    for name, value in values.items():
        results[name] = (
            f"{store.uri}/{_copy(store, job, name, value)}" if isinstance(value, Path) else _plain_value(name, value)
        )
    text = json.dumps(results).encode()
    if len(text) > MOST_BYTES:
        raise ResultsError(
            f"results of {len(text)} bytes, at most {MOST_BYTES} are kept: write long ones to a file, give its Path"
        )
    store.put(results_key(job), text)
    for name in filter(_fits_key, values):  # No copy has another name.
        _remove(store, job, name, keep=results[name])
    return results


def read_results(store: Store, job: str) -> dict[str, Value]:
    """What the job has named; empty if nothing. Raises StoreError if that is damaged."""
    try:
        read = json.loads(store.get(results_key(job)))
    except NoSuchKey:
        return {}
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise StoreError(f"{store.uri}/{results_key(job)}: not the results of a job; remove it")
    return read


def in_words(values: Mapping[str, Value]) -> str:
    """The numbers and short texts among them, for a line of a summary: `accuracy 0.9325  epochs 3`."""
    short = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return "  ".join(f"{name} {text}" for name, text in short.items() if len(text) <= _WORD)


def _plain_value(name: str, value: object) -> Value:
    if callable(number := getattr(value, "item", None)):  # Of numpy or torch.
        with suppress(ValueError, RuntimeError):
            value = number()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number.
    if isinstance(value, str | bool | int | float):
        return value
    raise ResultsError(
        f"result {name}: a {type(value).__name__}; give a text, a number, or the pathlib.Path of a file or folder"
    )


def _fits_key(name: str) -> bool:
    """Whether it can be one part of a key."""
    return bool(name) and not _KEY_PART.search(name) and name not in (".", "..")


def _copy(store: Store, job: str, name: str, path: Path) -> str:
    """Copy a file or folder to the store; returns its key. Raises ResultsError."""
    if not path.exists():
        raise ResultsError(f"result {name}: {path} does not exist; write it first")
    key = f"jobs/{job}/results/{name}/{secrets.token_hex(4)}"
    if path.is_file():
        key = f"{key}/{_KEY_PART.sub('_', path.name)}"
        store.put(key, path)
        return key
    files = list(_files(path))
    if not files:
        raise ResultsError(f"result {name}: {path} has no files")
    for file in files:
        below = file.relative_to(path).as_posix()
        if _KEY_PART.search(below.replace("/", "")):
            raise ResultsError(f"result {name}: {file}: a name of letters, digits and . _ - is needed; rename it")
        store.put(f"{key}/{below}", file)
    return key


def _files(folder: Path) -> Iterator[Path]:
    """Its files. A link that leads out of it is not followed."""
    root = folder.resolve()
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.resolve().is_relative_to(root))


def _remove(store: Store, job: str, name: str, keep: Value) -> None:
    """Remove copies of that result which are not the one named now."""
    for entry in list(store.list(f"jobs/{job}/results/{name}/")):
        if not f"{store.uri}/{entry.key}".startswith(str(keep)):
            store.delete(entry.key)
