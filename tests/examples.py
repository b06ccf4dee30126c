"""How many examples a property runs: its own number in the profile `ci`, fewer in `dev`, many more in `long`."""

from hypothesis import settings

_CI = 100
"""What Hypothesis runs where a test says no number."""


def examples(count: int) -> int:
    """`count` at the scale of the profile that is loaded."""
    return max(1, count * settings.default.max_examples // _CI) if settings.default else count
