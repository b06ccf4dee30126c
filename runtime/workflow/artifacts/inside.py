"""Keeps names of a manifest inside of their folder: the one check of such paths, made after substitution.

Keys of artifacts, claims, subPaths, files of ConfigMaps and Secrets, members of archives, objects of a bucket: whatever
becomes a path of this machine goes through `resolve_inside`, for reading and for writing.
"""

import os
from pathlib import Path

LONGEST_PART, LONGEST = 255, 4000
"""Bytes of a part of a path (NAME_MAX) and of a path (PATH_MAX less some room for names beside it) on Linux."""


class BadPathError(ValueError):
    """The name is not a path inside of its folder: one line that says why."""


def resolve_inside(folder: Path, name: str) -> Path:
    """The real path of that name in the folder, with every link followed, including the last.

    Raises BadPathError: an absolute name, `..`, a link that leads out, or a name that no file can have.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    try:
        lengths = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise BadPathError(f"{name!a} is not a valid path: it is not UTF-8") from None
    if "\0" in name or not parts or max(lengths) > LONGEST_PART:
        raise BadPathError(
            f"{name[:80]!r} is not a valid path: a part is empty, longer than {LONGEST_PART} bytes or contains NUL"
        )
    if name.startswith("/") or ".." in parts:
        raise BadPathError(f"{name!r} leads out of its folder; use a path without .. that does not begin with /")
    root = os.path.realpath(folder)
    if len(os.fsencode(root)) + sum(lengths) + len(lengths) > LONGEST:
        raise BadPathError(f"{name[:80]!r} is not a valid path: it is longer than {LONGEST} bytes")
    real_path = os.path.realpath(os.path.join(root, *parts))
    if not real_path.startswith(root.rstrip("/") + "/"):
        raise BadPathError(f"{name!r} leads out of its folder by a link")
    return Path(real_path)
