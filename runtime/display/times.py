"""Moments as Kubernetes writes them, and durations as `argo` shows them."""

from datetime import datetime
from typing import Any

UNITS = (("d", "day", 86400), ("h", "hour", 3600), ("m", "minute", 60), ("s", "second", 1))
"""(letter, word, seconds), the largest first."""


def unix_time(stamp: Any) -> float:
    """Unix time of a time as Kubernetes writes it; 0 for none."""
    return datetime.fromisoformat(str(stamp)).timestamp() if stamp else 0.0


def short_duration(seconds: float) -> str:
    """`4s`, `2m`, `3h`: only the largest unit."""
    letter, _, length = next((unit for unit in UNITS if seconds >= unit[2]), UNITS[-1])
    return f"{max(0, int(seconds / length))}{letter}"


def long_duration(seconds: float) -> str:
    """`20 seconds`, `1 minute 3 seconds`: the two largest units."""
    remaining, words = max(0, int(seconds)), list[str]()
    for _, name, length in UNITS:
        count, remaining = divmod(remaining, length)
        if count:
            words.append(f"{count} {name}{'s' * (count != 1)}")
    return " ".join(words[:2]) or "0 seconds"
