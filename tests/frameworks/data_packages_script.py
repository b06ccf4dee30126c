"""`data_packages_script.py KIND`: worlds of 3 and 4 ranks that are killed 200 times; prints how often, and each sample
that was applied, in order."""

import io
import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets  # pyright: ignore[reportMissingImports]
import pytest
import webdataset  # pyright: ignore[reportMissingImports]
from torchdata.stateful_dataloader import StatefulDataLoader  # pyright: ignore[reportMissingImports]

from everstep.dataset_batches import ElasticSampler
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


def shards() -> Any:
    """Shards in a random order, and their samples too: drawn from the generator that everstep.loader seeds by epoch."""
    return webdataset.DataPipeline(
        webdataset.SimpleShardList(write_shards(Path())),
        webdataset.shuffle(4, rng=random),
        webdataset.tarfile_to_samples(),
        webdataset.shuffle(16, rng=random),
        webdataset.decode(),
        webdataset.map(lambda sample: int(sample["txt"])),
    )


def number_of(sample: Any) -> int:
    return int(sample["label"] if isinstance(sample, dict) else sample)


def by_loader(dataset: Callable[[], Any], worlds: list[tuple[int, int]]) -> list[int]:
    """With `everstep.loader`."""
    state: dict[str, int] = {}
    applied: list[int] = []
    for world, iterations in worlds:
        loaders = [
            open_loader(dataset(), rank, world, global_batch=BATCH, collate_fn=list, iterations=None)
            for rank in range(world)
        ]
        for loader in loaders:
            if state:
                loader.load_state_dict(state)
        readers = [iter(loader) for loader in loaders]
        for _ in range(iterations):
            for batch in [next(reader) for reader in readers]:
                applied += [number_of(sample) for part in batch.parts if part.weight for sample in part.data]
            state = loaders[0].state_dict()
    return applied


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
        "datasets": (by_loader, mapped), "datasets_stream": (by_loader, stream), "webdataset": (by_loader, shards),
        "stateful": (by_sampler, mapped),
    }  # fmt: skip
    apply, dataset = ways[kind]
    print(len(worlds), *apply(dataset, worlds))


if __name__ == "__main__":
    main(sys.argv[1])
