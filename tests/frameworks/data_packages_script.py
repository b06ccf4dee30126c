"""`data_packages_script.py KIND`: worlds of 3 and 4 ranks that are killed 200 times; prints how often, and each sample
that was applied, in order."""

import io
import random
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets  # pyright: ignore[reportMissingImports]
import pytest
import webdataset  # pyright: ignore[reportMissingImports]
from torchdata.stateful_dataloader import StatefulDataLoader  # pyright: ignore[reportMissingImports]

from everstep.dataset_batches import ElasticSampler
from tests.training.ranks import Ranks
from tests.training.test_loader import open_loader

SAMPLES, BATCH, KILLS = 48, 6, 200


def write_shards(folder: Path) -> list[str]:
    """Four tar files of a dozen samples each, as webdataset reads them."""
    shards = []
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as file:
            for sample in range(shard * 12, shard * 12 + 12):
                data = str(sample).encode()
                entry = tarfile.TarInfo(f"{sample:03}.txt")
                entry.size = len(data)
                file.addfile(entry, io.BytesIO(data))
        shards.append(f"{shard}.tar")
    return shards


def mapped() -> Any:
    """A table in memory."""
    return datasets.Dataset.from_dict({"label": list(range(SAMPLES))})  # pyright: ignore[reportAttributeAccessIssue]


def stream() -> Any:
    """An IterableDataset that shuffles by epoch and skips."""
    return mapped().to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=16)


def shards(divided: bool = False) -> Any:
    """Shards in a random order, and their samples too: drawn from the generator that everstep.loader seeds by epoch."""
    return webdataset.DataPipeline(
        webdataset.SimpleShardList(write_shards(Path())),
        *([webdataset.split_by_worker] if divided else []),
        webdataset.shuffle(4, rng=random),
        webdataset.tarfile_to_samples(),
        webdataset.shuffle(16, rng=random),
        webdataset.decode(),
        webdataset.map(lambda sample: int(sample["txt"])),
    )


def number_of(sample: Any) -> int:
    return int(sample["label"] if isinstance(sample, dict) else sample)


def by_loader(dataset: Callable[[], Any], worlds: list[tuple[int, int]], streams: int | None = None) -> list[int]:
    """With `everstep.loader`."""
    state: dict[str, Any] = {}
    applied: list[int] = []
    for world, iterations in worlds:
        together, state = train_world(dataset, state, world, iterations, streams)
        applied += [sample for shares in together for share in shares for sample in share]
    return applied


def train_world(
    dataset: Callable[[], Any], state: dict[str, Any], world: int, iterations: int, streams: int | None
) -> tuple[list[tuple[list[int], ...]], dict[str, Any]]:
    """The shares of the ranks in each batch from a state on, and the state then."""
    ranks = Ranks(world)

    def work(rank: int) -> tuple[list[list[int]], dict[str, Any]]:
        how = {"global_batch": BATCH, "collate_fn": list, "streams": streams, "exchange": ranks.exchange(rank)}
        loader = open_loader(dataset(), rank, world, **how)
        if state:
            loader.load_state_dict(state)
        batches = islice(loader, iterations)
        shares = [
            [number_of(sample) for part in batch.parts if part.weight for sample in part.data] for batch in batches
        ]
        return shares, loader.state_dict()

    results = ranks.run(work)
    return list(zip(*(shares for shares, _ in results), strict=True)), results[0][1]


def by_sampler(dataset: Callable[[], Any], worlds: list[tuple[int, int]]) -> list[int]:
    """With `everstep.ElasticSampler` in torchdata's loader."""
    state: dict[str, int] = {}
    applied: list[int] = []
    for world, iterations in worlds:
        shares: list[list[list[int]]] = []
        for rank in range(world):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RANK", str(rank))
                patch.setenv("WORLD_SIZE", str(world))
                sampler = ElasticSampler(dataset(), global_batch=BATCH)
                if state:
                    sampler.load_state_dict(state)
                loader = StatefulDataLoader(dataset(), batch_sampler=sampler, collate_fn=list)
                mine: list[list[int]] = []
                while len(mine) < iterations:
                    for batch in loader:
                        if len(mine) == iterations:
                            break
                        mine.append([number_of(sample) for sample in batch] if sampler.weight else [])
                        sampler.advance()
                shares.append(mine)
        if iterations:
            state = sampler.state_dict()
        applied += [sample for together in zip(*shares, strict=True) for share in together for sample in share]
    return applied


def main(kind: str) -> None:
    """Print them."""
    chance = random.Random(7)
    worlds = [(3 + kill % 2, chance.randrange(4)) for kill in range(KILLS)]
    ways = {
        "datasets": lambda: by_loader(mapped, worlds),
        "datasets_stream": lambda: by_loader(stream, worlds),
        "datasets_whole": lambda: by_loader(stream, worlds, streams=1),
        "webdataset": lambda: by_loader(partial(shards, divided=True), worlds, streams=4),
        "webdataset_whole": lambda: by_loader(shards, worlds),
        "stateful": lambda: by_sampler(mapped, worlds),
    }
    print(len(worlds), *ways[kind]())


if __name__ == "__main__":
    main(sys.argv[1])
