"""Pauses between the attempts at something that fails for a while."""

import math
import random
from collections.abc import Callable, Iterator


def backoff(
    first_s: float, longest_s: float = math.inf, uniform: Callable[[float, float], float] = random.uniform
) -> Iterator[float]:
    """Seconds to wait after each failure, without end: twice as long each time, up to `longest_s`.

    Each pause is shortened at random by up to half, so that many clients do not retry together.
    """
    pause_s = first_s
    while True:
        yield pause_s * uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, longest_s)
