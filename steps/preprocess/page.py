"""What was tokenized, as a self-contained HTML page: counts, document lengths, some of the texts.

The same input and settings give the same page, so it contains no times. jinja2 escapes all text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everstep.runtime.display.pages import environment
from everstep.steps.preprocess.config import Config
from everstep.steps.preprocess.parts import Sample

UNSPLIT = "document"
"""The only split of plain files, apart from documents held out for validation."""
_SETTINGS = (
    *("input", "jsonl_keys", "tokenizer", "tokenizer_type", "vocab_file", "vocab_size", "append_eod", "ftfy"),
    *("deduplicate", "min_length", "max_length", "validation_share", "on_error", "dataset_impl"),
)


@dataclass(frozen=True)
class Bar:
    """Documents of `first` to `last` tokens."""

    first: int
    last: int
    documents: int
    share: float
    """Relative to the highest bar, 0 to 1."""


@dataclass(frozen=True)
class Length:
    """The distribution of document lengths for one split and key."""

    split: str
    key: str
    bars: tuple[Bar, ...]
    median: int
    mean: float
    longest: int

    @classmethod
    def of(cls, split: str, key: str, lengths: np.ndarray) -> "Length":
        """From the number of tokens of each document; one bar for each doubling."""
        if not len(lengths):
            return cls(split, key, (), 0, 0.0, 0)
        counts = np.bincount(np.log2(lengths).astype(np.int64))
        first = int(np.flatnonzero(counts)[0])
        bars = tuple(
            Bar(1 << power, (2 << power) - 1, int(count), float(count / counts.max()))
            for power, count in enumerate(counts)
            if power >= first
        )
        return cls(split, key, bars, int(np.median(lengths)), float(lengths.mean()), int(lengths.max()))


@dataclass(frozen=True)
class Page:
    """The contents of the page."""

    title: str
    config: Config
    facts: Mapping[str, Any]
    counts: Mapping[tuple[str, str], Mapping[str, int]]
    lengths: Sequence[Length]
    samples: Sequence[Sample]


def render(page: Page) -> str:
    """The page as HTML."""
    filters = {
        "number": lambda value: f"{value:,}".replace(",", " "),
        "short": short,
        "named": lambda split: "train" if split == UNSPLIT else split,
    }
    templates = environment(Path(__file__).parent, filters)
    return templates.get_template("page.html").render(
        page=page,
        keys=page.config.keys,
        tokens=sum(count["tokens"] for count in page.counts.values()),
        read=sum(count["bytes"] for count in page.counts.values()),
        dropped=[(reason, count) for reason, count in page.facts["dropped"].items() if count],
        settings=[(name, json.dumps(getattr(page.config, name), ensure_ascii=False)) for name in _SETTINGS],
    )


def short(value: float) -> str:
    """`950`, `12.3 k`, `3.9 M`, `1.2 G`."""
    unit, size = next((scale for scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if value >= scale[1]), ("", 1))
    return f"{value / size:.1f} {unit}" if unit else f"{value:.0f}"
