"""Which folders a pod has for itself: a plan of a root made of private folders and of binds to the machine's own.

The pod's root is a folder of the run. In it, /tmp, /mnt, /argo and every folder in which the template declares a file
are the pod's own; whatever else stands in a private folder's place on the machine is bound into it, so that programs,
the working directory and the store are where they are. Two pods that write the same absolute path do not meet, and
what a pod writes is found in its folder afterwards.

A folder of the machine's /tmp that a pod's command mentions (`python /tmp/x/script.py`) is bound into the pod's
own, whole, as a program may have its parts beside it. In one that belongs to another user nothing is written: whoever
makes /tmp/out before a pod does must not have the pod's files.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ALWAYS_PRIVATE = ("/tmp", "/mnt", "/argo/staging", "/argo/inputs/artifacts")
"""Always private, and empty at first."""
PRIVATE_IF_NAMED = {"/var/run/argo": re.compile(r"/var/run/argo|ARGO_PROGRESS_FILE")}
"""Private where the pod names them: each bind costs some tenths of a millisecond, and /run has many entries."""
_WORD = re.compile(r"(?:(?<![\w.~})/-])|(?<=//)|(?<=\s-[a-zA-Z])|(?<=^-[a-zA-Z]))/tmp/[^/\s'\",:;=]+")
"""A folder of /tmp, also in `file:///tmp/x` and `-I/tmp/x`, but not in `/var/tmp/x` or `$HOME/tmp/x`."""


class Plan(NamedTuple):
    """How to make a pod's root below `root`."""

    root: str
    folders: list[str]
    """Private folders by the pod's paths, outer ones first."""
    binds: list[str]
    """Paths of the machine that the pod sees in the same place."""
    links: dict[str, str]
    """Symbolic links of the machine that are copied, by path."""
    mounts: dict[str, tuple[str, bool]]
    """Volumes and input artifacts: (where they come from, read only), by the pod's path."""

    def host_path(self, path: str) -> Path:
        """The machine's path of what the pod calls `path`."""
        path = os.path.normpath(path)
        for _ in range(40):
            mounts_above = [at for at in self.mounts if path == at or path.startswith(f"{at}/")]
            if mounts_above:
                at = max(mounts_above, key=len)
                return Path(self.mounts[at][0] + path[len(at) :])
            if any(path == bind or path.startswith(f"{bind}/") for bind in self.binds):
                return Path(path)
            target = self._follow_link(path)
            if target is None:
                break
            path = target
        return Path(self.root + path)

    def _follow_link(self, path: str) -> str | None:
        """The path with its first link followed; None when there is none."""
        parts = Path(path).parts[1:]
        for length in range(1, len(parts) + 1):
            prefix = "/" + "/".join(parts[:length])
            inside = Path(self.root + prefix)
            if os.path.islink(inside):
                target = os.path.join(os.path.dirname(prefix), os.readlink(inside))
                return os.path.normpath(os.path.join(target, *parts[length:]))
        return None


class PodPaths(NamedTuple):
    """What a pod's template says of paths."""

    files: Iterable[str]
    """Those that it declares: of artifacts, parameters, its working folder."""
    mounts: Mapping[str, tuple[str, bool]]
    """By the path in the pod: the machine's path, and whether it is read-only."""
    words: Iterable[str]
    """Those of its command and scripts: private folders that they name are made for it."""


def plan_root(
    root: Path,
    paths: PodPaths,
    keep: Iterable[str],
    is_isolated: bool = True,
    made_folders: Iterable[str] = (),
    private: Collection[str] = (),
) -> Plan:
    """Plan the root of a pod.

    `keep`: paths of the machine that stay what they are, such as the working directory. Not `is_isolated`: folders of
    files are made, too, so that they can stand in for those of the machine; else the pod makes them, as on Argo.
    `made_folders`: folders that are made for it all the same. `private`: folders of the machine that it has for itself,
    empty; then what it is told of in /tmp stays hidden, too.
    """
    declared_paths = [os.path.normpath(path) for path in paths.files if path.startswith("/")]
    words, mounts = list(paths.words), paths.mounts
    names_mentioned = [path for path, pattern in PRIVATE_IF_NAMED.items() if any(map(pattern.search, words))]
    own = {_real_parent_path(path) for path in [*ALWAYS_PRIVATE, *names_mentioned, *private]}
    folders = [os.path.dirname(path) for path in declared_paths]
    folders = [_nearest_existing(folder, own) for folder in folders] if is_isolated else folders
    changed_folders = own | {
        _real_parent_path(folder)
        for folder in [*folders, *made_folders, *(os.path.dirname(os.path.normpath(at)) for at in mounts)]
    }
    owners = {} if private else _mentioned_owners(words, declared_paths)
    trusted_paths = {path for path, owner in owners.items() if owner in (0, os.geteuid())}
    mounts = {**{path: (path, True) for path in owners.keys() - trusted_paths}, **mounts}
    kept_paths = {os.path.normpath(path) for path in keep} | trusted_paths
    maker = _Planner(own, kept_paths, _private_entries(changed_folders))
    maker.add_folder("/", empty=False)
    return Plan(str(root), maker.folders, maker.binds, maker.links, {os.path.normpath(p): m for p, m in mounts.items()})


class _Planner:
    """Collects the private folders of a plan, outer ones first."""

    def __init__(self, own: set[str], private_kept: set[str], below: Mapping[str, set[str]]) -> None:
        self.folders: list[str] = []
        self.binds: list[str] = []
        self.links: dict[str, str] = {}
        self._own = own
        self._kept = private_kept
        self._below = below

    def add_folder(self, folder: str, empty: bool) -> None:
        """Add a private folder. `empty`: nothing of the machine is shown in it but kept paths."""
        self.folders.append(folder)
        entries = {} if empty else _folder_entries(folder)
        names = self._below.get(folder, set()) | (_kept_entries(folder, self._kept) if empty else set())
        for name in sorted(names):
            path = os.path.join(folder, name)
            kind = entries.pop(name, "")
            if path in self._kept:
                self.binds += [path] if os.path.exists(path) else []
            elif kind in ("link", "file"):
                entries[name] = kind
            else:
                self.add_folder(path, empty or path in self._own or not kind)
        for name, kind in sorted(entries.items()):
            path = os.path.join(folder, name)
            if kind == "link":
                self.links[path] = os.readlink(path)
            else:
                self.binds.append(path)


def _real_parent_path(path: str) -> str:
    """The path with the links around its last part followed."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) if path != "/" else path


def _nearest_existing(folder: str, own: set[str]) -> str:
    """The nearest folder at or above `folder` that exists for the pod already."""
    above = [existing for existing in own if folder == existing or folder.startswith(f"{existing}/")]
    if above:
        return max(above, key=len)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _private_entries(private: Iterable[str]) -> dict[str, set[str]]:
    """By folder on the way to private ones: its entries that are private or lead there."""
    entries: dict[str, set[str]] = {}
    for path in private:
        parts = Path(path).parts[1:]
        for depth, part in enumerate(parts):
            entries.setdefault("/" + "/".join(parts[:depth]), set()).add(part)
    return entries


def _kept_entries(folder: str, kept_paths: set[str]) -> set[str]:
    """Entries of a private folder that are kept or lead to something kept."""
    prefix = folder.rstrip("/") + "/"
    return {
        path.removeprefix(prefix).split("/")[0] for path in kept_paths if path.startswith(prefix) and path != prefix
    }


def _folder_entries(folder: str) -> dict[str, str]:
    """The kind of each entry in a folder of the machine: link, folder or file."""
    try:
        with os.scandir(folder) as entries:
            return {e.name: "link" if e.is_symlink() else "folder" if e.is_dir() else "file" for e in entries}
    except OSError:
        return {}


def _mentioned_owners(words: Iterable[str], declared_paths: Iterable[str]) -> dict[str, int]:
    """Folders of this machine's /tmp that the words mention and the pod does not declare, with their owners' uids."""
    owners = dict[str, int]()
    for path in (path for word in words for path in _WORD.findall(word)):
        mine = any(declared == path or declared.startswith(f"{path}/") for declared in declared_paths)
        with suppress(OSError):  # It is not there.
            status = os.stat(path)
            if not mine and stat.S_ISDIR(status.st_mode):
                owners[path] = status.st_uid
    return owners


def rewrite_paths(text: str, moved_folders: Mapping[str, str]) -> str:
    """The text with those folders' paths replaced, the longest first, for a kernel without namespaces."""
    names = "|".join(re.escape(folder) for folder in sorted(moved_folders, key=len, reverse=True))
    return re.sub(rf"(?:{names})(?=/|$|[\s'\"\\;)])", lambda match: moved_folders[match[0]], text) if names else text
