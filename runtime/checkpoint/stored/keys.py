"""The names of a job's checkpoints in a store. Only this module builds and parses them.

A checkpoint is a folder `jobs/<job>/checkpoints/<round>-<iteration>`, zero-padded so that the newest sorts last. It has
one object a shard and, once it is committed, its manifest. If nodes that leave have put their own copies of a
replicated state, these are there, too, until the folder is deleted.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from everstep.runtime.store import Entry

MANIFEST = "manifest.json"
"""The object that lists the others. A checkpoint that has it is committed."""
_REPORT = ".report.json"
CheckpointId = tuple[int, int]
"""(Round, iteration)."""
_FOLDER = re.compile(r"([0-9]{6,18})-([0-9]{9,18})")


class CheckpointFolder(NamedTuple):
    """The objects of one checkpoint in a store."""

    key: str
    """Common prefix of its objects' keys, without the final '/'."""
    objects: dict[str, Entry]
    """By name in the folder."""

    @property
    def committed(self) -> bool:
        """Does it have a manifest, whatever its content?"""
        return MANIFEST in self.objects


def checkpoints_prefix(job: str) -> str:
    """Common prefix of the keys of a job's checkpoints."""
    return f"jobs/{job}/checkpoints/"


def checkpoint_folder(job: str, place: CheckpointId) -> str:
    """Common prefix of the keys of one checkpoint, without the final '/'."""
    return f"{checkpoints_prefix(job)}{folder_name(place)}"


def folder_name(place: CheckpointId) -> str:
    """The name of its folder."""
    return f"{place[0]:06d}-{place[1]:09d}"


def shard_key(job: str, round_: int, iteration: int, shard: int, digest: str = "") -> str:
    """The key of a persisted shard. The object is immutable.

    `digest`: of a shard that several nodes have, put by another node than the one that persists it. Readers take the
    name from the manifest.
    """
    name = f"rank-{shard:05d}-{digest}" if digest else f"rank-{shard:05d}"
    return f"{checkpoint_folder(job, (round_, iteration))}/{name}.safetensors"


def report_key(shard: str) -> str:
    """The key of the report that a shard of that key is complete, which its node leaves if no master hears it."""
    return f"{shard}{_REPORT}"


def is_report(name: str) -> bool:
    """Whether an object of that name is such a report."""
    return name.endswith(_REPORT)


def manifest_key(job: str, place: CheckpointId) -> str:
    """The key of the object that commits the checkpoint."""
    return f"{checkpoint_folder(job, place)}/{MANIFEST}"


def parse_folder(folder: str) -> CheckpointId | None:
    """The checkpoint of a folder with that key or name; None if the name is not exactly as `folder_name` spells it."""
    match = _FOLDER.fullmatch(folder.rpartition("/")[2])
    place = (int(match[1]), int(match[2])) if match else None
    return place if place and folder_name(place) == folder.rpartition("/")[2] else None


def group_by_checkpoint(entries: Iterable[Entry]) -> dict[str, CheckpointFolder]:
    """Folder key -> checkpoint, for these objects, in the order of the entries. Other objects are left out."""
    folders: dict[str, CheckpointFolder] = {}
    for entry in entries:
        folder, _, name = entry.key.rpartition("/")
        if parse_folder(folder):
            folders.setdefault(folder, CheckpointFolder(folder, {})).objects[name] = entry
    return folders
