"""How many examples a property runs: its own number in the profile `ci`, fewer in `dev`, many more in `long`."""

from hypothesis import settings

_CI = 100
"""What Hypothesis runs where a test says no number."""


def examples(count: int, dev: int | None = None) -> int:
    """`count` at the scale of the profile that is loaded; in the profile `dev` the number `dev`, if one is given."""
    if dev is not None and settings.get_current_profile_name() == "dev":
        return dev
    return max(1, count * settings.default.max_examples // _CI) if settings.default else count
