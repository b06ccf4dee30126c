"""Find the files that the user names, and tell the kind of a file by its name."""

import enum
import glob
import os
import re
from pathlib import Path

from everstep.runtime.store import StoreError, Unavailable
from everstep.runtime.text import source
from everstep.runtime.text.errors import TextError


class Kind(enum.Enum):
    """The content of a file, by the suffix of its name."""

    LINES = ".jsonl"
    """JSON, one document a line."""
    LINES_ZST = ".jsonl.zst"
    LINES_GZ = ".jsonl.gz"
    JSON_GZ = ".json.gz"
    """Like .jsonl.gz; some collections use this suffix."""
    TEXT = ".txt"
    """One document, UTF-8."""
    PARQUET = ".parquet"
    """One document a row, keys are columns."""
    TAR = ".jsonl.zst.tar"
    """Members are .jsonl.zst."""
    ZIP = ".zip"
    """Members are .jsonl or .txt."""


KINDS = tuple(kind.value for kind in Kind)


def kind_of(name: str) -> Kind:
    """Raises TextError for a name with none of the suffixes in KINDS."""
    for kind in sorted(Kind, key=lambda kind: -len(kind.value)):
        if name.endswith(kind.value):
            return kind
    raise TextError(f"{name}: files of this kind are not read; give {', '.join(KINDS)}")


def find_files(paths: str, flag: str) -> list[str]:
    """The files that `paths` names: a file, a pattern, a folder, or several of them between commas; local or s3://.

    In the order given, without duplicates; files of one pattern or folder in natural order. Local files have absolute
    paths. Raises TextError for a part that matches nothing and for a file of an unknown kind; `flag` is the option's
    name in the error. Raises Unavailable.
    """
    files: list[str] = []
    parts = [paths] if os.path.exists(paths) else [part.strip() for part in paths.split(",")]
    for part in filter(None, parts):
        files += _match_pattern(part, flag)
    if not files:
        raise TextError(f"{flag} {paths!r}: names no file")
    for name in files:
        try:
            kind_of(name)
        except TextError as error:
            raise TextError(f"{flag} {error}") from None
    return list(dict.fromkeys(files))


def _match_pattern(part: str, flag: str) -> list[str]:
    scheme, colon, _ = part.partition("://")
    if colon and scheme == "s3":
        try:
            files = source.list_objects(part, KINDS)
        except Unavailable:
            raise
        except StoreError as error:
            raise TextError(f"{flag} {error}") from None
    elif colon and scheme != "file":
        raise TextError(f"{flag} {part}: only local files and s3:// are read")
    else:
        files = _find_local(part.removeprefix("file://"))
    if not files:
        raise TextError(f"{flag} {part}: matches no file; give a file, a glob or a folder with {', '.join(KINDS)}")
    return sorted(files, key=natural_key)


def _find_local(part: str) -> list[str]:
    paths = [Path(part)] if os.path.exists(part) else [Path(name) for name in glob.glob(part, recursive=True)]
    files = [path for path in paths if path.is_file()]
    for folder in (path for path in paths if path.is_dir()):
        files += [path for path in folder.iterdir() if path.name.endswith(KINDS) and path.is_file()]
    return [str(path.absolute()) for path in files]


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key under which data_2 comes before data_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
