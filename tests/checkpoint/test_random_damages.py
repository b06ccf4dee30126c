"""Random damages of a job's checkpoints, one and several at once: never a blocked job, never a wrong load.

Real files; the master's survey, the brain, and the reading that agents do, digests checked; no processes.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from everstep.runtime.checkpoint.errors import PassedOverError
from everstep.runtime.checkpoint.shard.digests import seal
from everstep.runtime.checkpoint.shard.fetch import read
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.shard.reshard import assemble_state, open_shards, verify_shards
from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.stored.keys import (
    MANIFEST,
    CheckpointId,
    checkpoint_folder,
    checkpoints_prefix,
    manifest_key,
    shard_key,
)
from everstep.runtime.checkpoint.stored.manifest import encode_manifest, make_commit
from everstep.runtime.job.checkpoints import KEPT_CHECKPOINTS
from everstep.runtime.job.events import ManifestWritten, Opened, RestoreFailed, ShardStored
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.records import FaultJudged, PassedOver
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.master.survey import survey_store
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import Flaw, Holding
from everstep.runtime.protocol.messages import Persisted, Unrestored
from everstep.runtime.store import DirectoryStore, NoSuchKey, StoreError
from tests.job.world import World, platform

PLACES: list[CheckpointId] = [(1, 10), (1, 20), (2, 30), (2, 40)]
DAMAGES = int(os.environ.get("EVERSTEP_DAMAGES", "100"))


def value(place: CheckpointId) -> float:
    """What each number of that checkpoint's tensor is."""
    return 1000.0 * place[0] + place[1]


def commit(store: DirectoryStore, place: CheckpointId, shards: int) -> list[Holding]:
    holdings_held = []
    for shard in range(shards):
        live = flatten({"weight": torch.full((50,), value(place)), "shard": shard})
        text = json_bytes({"iteration": place[1], "state": live.json})
        layout = plan_layout(live.tensors, state_capacity(text))
        data = bytearray(layout.size)
        layout.write_state(memoryview(data), text)
        layout.tensors["weight"].view(memoryview(data)).copy_(live.tensors["weight"])
        digest = seal(memoryview(data))
        store.put(key := shard_key("j", *place, shard), bytes(data))
        holdings_held.append(Holding(*place, shard, shards, len(data), key=key, digest=digest))
    store.create(manifest_key("j", place), encode_manifest(make_commit("j", shards, holdings_held)))
    return holdings_held


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Holding]]:
    """A store with four checkpoints, the newer two of two shards, and what lies in it."""
    folder = tmp_path_factory.mktemp("whole")
    store = DirectoryStore(folder)
    return folder, [holding for number, place in enumerate(PLACES) for holding in commit(store, place, 1 + number // 2)]


class Sick(DirectoryStore):
    """Some objects cannot be read, for good."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gone: set[str] = set()
        self.failing: set[str] = set()

    def _sick(self, key: str) -> None:
        if key in self.gone:
            raise NoSuchKey(key)
        if key in self.failing:
            raise StoreError(f"GET {key}: answers 500 (InternalError)")

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._sick(key)
        return super().get(key, start, length)

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        self._sick(key)
        super().read_into(key, start, buffer)


def flip(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    path = Path(store.uri) / chance.choice(objects(store, place))
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    path = Path(store.uri) / chance.choice(objects(store, place))
    os.truncate(path, chance.randrange(path.stat().st_size))


def delete(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    store.delete(chance.choice(objects(store, place)))


def delete_all(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    shutil.rmtree(folder(store, place))


def rename(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    to = folder(store, (place[0] + chance.randrange(2), place[1] + chance.randrange(1, 50)))
    if not to.exists():
        folder(store, place).rename(to)


def rename_object(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    path = Path(store.uri) / chance.choice(objects(store, place))
    path.rename(path.with_name("rank-00007.safetensors"))


def swap(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    other = chance.choice([candidate for candidate in PLACES if candidate != place])
    if chance.random() < 0.5:
        paths = [folder(store, place), folder(store, other)]
    else:
        paths = [folder(store, damaged) / MANIFEST for damaged in (place, other)]
    aside = Path(store.uri) / "aside"
    if all(path.exists() for path in paths):
        for source, target in ((paths[0], aside), (paths[1], paths[0]), (aside, paths[1])):
            source.rename(target)


def of_the_future(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    path = folder(store, place) / MANIFEST
    if path.exists():
        path.write_text(path.read_text().replace('"version": 1', '"version": 9'))


def answer_404(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    store.gone.add(chance.choice(objects(store, place)))


def answer_500(store: Sick, place: CheckpointId, chance: random.Random) -> None:
    store.failing.add(chance.choice(objects(store, place)))


KINDS: list[Callable[[Sick, CheckpointId, random.Random], None]] = [
    flip, truncate, delete, delete_all, rename, rename_object, swap, of_the_future, answer_404, answer_500,
]  # fmt: skip


def folder(store: Sick, place: CheckpointId) -> Path:
    return Path(store.uri) / checkpoint_folder("j", place)


def objects(store: Sick, place: CheckpointId) -> list[str]:
    return [entry.key for entry in store.list(f"{checkpoint_folder('j', place)}/")] or [manifest_key("j", place)]


def damage_some(store: Sick, chance: random.Random) -> Iterator[str]:
    """Damage some checkpoints, the newer ones more often; what was done."""
    for _ in range(chance.choice([1, 1, 2, 3, 6])):
        kind, place = chance.choice(KINDS), PLACES[-1 - int(4 * chance.random() ** 2)]
        if folder(store, place).exists():
            kind(store, place, chance)
            yield f"{kind.__name__} {place}"


def intact(store: Sick, original: Path) -> list[CheckpointId]:
    """Of what not a byte is other than it was, and all can be read."""
    return [
        place
        for place in PLACES
        if all(
            (Path(store.uri) / path.relative_to(original)).exists()
            and (Path(store.uri) / path.relative_to(original)).read_bytes() == path.read_bytes()
            and str(path.relative_to(original)) not in store.gone | store.failing
            for path in (original / checkpoint_folder("j", place)).iterdir()
        )
    ]


def begins(world: World, store: Sick) -> tuple[CheckpointId | None, float]:
    """What the next round that can begin has loaded: (round, iteration) and the value of its tensor."""
    for _ in range(3 * len(PLACES)):
        world.join_all()
        round_ = world.state.round
        if world.state.ended is not None or round_ is None or round_.restore is None:
            return None, 0.0
        restore = round_.restore
        try:
            shards = verify_shards(
                open_shards(restore.sources, partial(read, store=store, credentials=Credentials("")))
            )
            state, iteration = assemble_state(shards)
            assert iteration == restore.iteration
            return (restore.round, restore.iteration), float(state["weight"].unique().item())
        except PassedOverError as error:
            unrestored = Unrestored(world.names(NodePhase.RUNNING)[0], world.number, error.refusals)
            world.send(RestoreFailed(unrestored, survey_store(store, "j", world.state)))
    raise AssertionError("blocked: no round begins")


def job(shards: list[Holding]) -> World:
    """A job that was killed whole, with all that its nodes held; without `shards` its journal is gone, too."""
    world = World(platform({"worker": RoleSpec(1, 1)}))
    if shards:
        for number in (1, 2):
            world.join_all()
            name = world.names(NodePhase.RUNNING)[0]
            for shard_holding in (shard_holding for shard_holding in shards if shard_holding.round == number):
                world.send(ShardStored(Persisted(name, shard_holding)))
                if shard_holding.shard == shard_holding.shards - 1:
                    place = shard_holding.round, shard_holding.iteration
                    world.send(ManifestWritten(*place, manifest_key("j", place)))
            world.exit(name, -9)
        world.takeover()
    return world


@pytest.mark.parametrize("block", range(4))
def test_random_damages_block_no_job_load_nothing_wrong_and_are_charged_to_nobody(
    block: int, whole: tuple[Path, list[Holding]], tmp_path: Path
) -> None:
    original, shards = whole
    for seed in range(block, DAMAGES, 4):
        chance = random.Random(seed)
        store = Sick(tmp_path / str(seed))
        shutil.copytree(original, store.uri, dirs_exist_ok=True)
        what = ", ".join(damage_some(store, chance))
        keys_left = {entry.key for entry in store.list(checkpoints_prefix("j"))}
        world = job([] if chance.random() < 0.3 else shards)
        judged = sum(isinstance(record, FaultJudged) for record in world.records)
        world.send(Opened(survey_store(store, "j", world.state)))
        place, state_value = begins(world, store)
        circumstances = f"seed {seed}: {what}; began from {place}"
        expected_place = max(intact(store, original), default=None)
        if place is not None:
            assert state_value == value(place), circumstances
        if expected_place is not None:
            assert place is not None, circumstances
            assert place >= expected_place, circumstances
        elif place is None and world.state.ended is not None:
            flaws = {refusal.flaw for refusal in world.state.refused}
            assert flaws & {Flaw.NEWER, Flaw.UNREACHABLE}, circumstances
        assert sum(isinstance(record, FaultJudged) for record in world.records) == judged, circumstances
        assert {entry.key for entry in store.list(checkpoints_prefix("j"))} == keys_left, "what is damaged stays"
        shutil.rmtree(store.uri)


def test_what_is_passed_over_is_told_in_one_line(whole: tuple[Path, list[Holding]], tmp_path: Path) -> None:
    original, shards = whole
    store = Sick(tmp_path / "store")
    shutil.copytree(original, store.uri, dirs_exist_ok=True)
    os.truncate(folder(store, (2, 40)) / "rank-00001.safetensors", 5000)
    world = job(shards)
    world.send(Opened(survey_store(store, "j", world.state)))
    (record,) = [record for record in world.records if isinstance(record, PassedOver)]
    assert world.state.reason.startswith("iteration 40 of round 2 is skipped: rank-00001.safetensors has 5000 bytes")
    assert begins(world, store) == ((2, 30), value((2, 30)))
    assert record.refusals[0].key == f"{checkpoint_folder('j', (2, 40))}/"


def test_older_checkpoints_than_the_journal_remembers_are_found(tmp_path: Path) -> None:
    store = Sick(tmp_path / "store")
    for iteration in range(1, KEPT_CHECKPOINTS + 6):
        commit(store, (1, iteration), 1)
    for iteration in range(3, KEPT_CHECKPOINTS + 6):
        (folder(store, (1, iteration)) / MANIFEST).write_bytes(b"{}")
    world = job([])
    world.send(Opened(survey_store(store, "j", world.state)))
    assert begins(world, store)[0] == (1, 2)
    assert world.number == 2
