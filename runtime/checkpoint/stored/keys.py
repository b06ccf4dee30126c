"""The names of a job's checkpoints in a store: how they are built, and the one place that takes them apart.

A checkpoint is a folder `jobs/<job>/checkpoints/<round>-<iteration>`, zero-padded so that the newest sorts last, of one
object a shard and, once it is committed, its manifest.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from everstep.runtime.store import Entry

MANIFEST = "manifest.json"
"""The object of a checkpoint that names the others: with it, it is committed."""
CheckpointId = tuple[int, int]
"""(Round, iteration)."""
_FOLDER = re.compile(r"([0-9]{6,18})-([0-9]{9,18})")


class CheckpointFolder(NamedTuple):
    """What a store has of one checkpoint."""

    key: str
    """What the keys of its objects begin with, without the last '/'."""
    objects: dict[str, Entry]
    """By name in the folder."""

    @property
    def committed(self) -> bool:
        """Has it a manifest, whatever that says?"""
        return MANIFEST in self.objects


def checkpoints_prefix(job: str) -> str:
    """What the keys of a job's checkpoints begin with."""
    return f"jobs/{job}/checkpoints/"


def checkpoint_folder(job: str, place: CheckpointId) -> str:
    """Where the objects of one checkpoint are."""
    return f"{checkpoints_prefix(job)}{folder_name(place)}"


def folder_name(place: CheckpointId) -> str:
    """The name of its folder."""
    return f"{place[0]:06d}-{place[1]:09d}"


def shard_key(job: str, round_: int, iteration: int, shard: int) -> str:
    """The object of a persisted shard: immutable."""
    return f"{checkpoint_folder(job, (round_, iteration))}/rank-{shard:05d}.safetensors"


def manifest_key(job: str, place: CheckpointId) -> str:
    """The object that commits the checkpoint."""
    return f"{checkpoint_folder(job, place)}/{MANIFEST}"


def parse_folder(folder: str) -> CheckpointId | None:
    """What checkpoint a folder of that key, or name, is of; None: of none, or spelled as `name_of` does not."""
    found = _FOLDER.fullmatch(folder.rpartition("/")[2])
    place = (int(found[1]), int(found[2])) if found else None
    return place if place and folder_name(place) == folder.rpartition("/")[2] else None


def group_by_checkpoint(entries: Iterable[Entry]) -> dict[str, CheckpointFolder]:
    """The checkpoints among these objects by the key of their folder, in the order of the entries."""
    found: dict[str, CheckpointFolder] = {}
    for entry in entries:
        folder, _, name = entry.key.rpartition("/")
        if parse_folder(folder):
            found.setdefault(folder, CheckpointFolder(folder, {})).objects[name] = entry
    return found
