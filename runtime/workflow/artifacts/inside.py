"""Names that a manifest gives are paths inside of a folder, or they are refused: the one check, after substitution.

Keys of artifacts, claims, subPaths, files of ConfigMaps and Secrets, members of archives, objects of a bucket: whatever
becomes a path of this machine goes through `inside`, to be read as to be written.
"""

import os
from pathlib import Path

LONGEST_PART, LONGEST = 255, 4000
"""Bytes of a path and of each of its parts, as Linux has them (PATH_MAX less some for what is put beside it)."""


class BadPathError(ValueError):
    """The name is no path inside of its folder: one line that says why."""


def resolve_inside(folder: Path, name: str) -> Path:
    """Where that name lies in the folder. Every link on the way is followed, also the last, and leads not out of it.

    Raises BadPathError: an absolute name, `..`, a link that leads out, or what no file can be called.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    try:
        lengths = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise BadPathError(f"{name!a} is no path: it is no UTF-8") from None
    if "\0" in name or not parts or max(lengths) > LONGEST_PART:
        raise BadPathError(f"{name[:80]!r} is no path: a part is empty, longer than {LONGEST_PART} bytes or has a NUL")
    if name.startswith("/") or ".." in parts:
        raise BadPathError(f"{name!r} leads out of its folder; use a path without .. that does not begin with /")
    root = os.path.realpath(folder)
    if len(os.fsencode(root)) + sum(lengths) + len(lengths) > LONGEST:
        raise BadPathError(f"{name[:80]!r} is no path: it is longer than {LONGEST} bytes")
    found = os.path.realpath(os.path.join(root, *parts))
    if not found.startswith(root.rstrip("/") + "/"):
        raise BadPathError(f"{name!r} leads out of its folder by a link")
    return Path(found)
