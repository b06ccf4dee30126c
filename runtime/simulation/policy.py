"""What a user can choose for a job, as one line of text: `spares: spares=16, shrink-after=0, stage=1`."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """One way to run the job."""

    name: str
    spares: int = 0
    """Machines beyond the job's nodes that wait for a fault."""
    join_window: float = 30.0
    """`patience.joinWindow`: how long a round waits for survivors, in seconds."""
    shrink_after: float = 10.0
    """`patience.replacementWait`: how long survivors wait for a replacement before they go on with fewer nodes; not at
    all if no node has started that fast."""
    cooldown: float = 30.0
    """`patience.coolDown`: how long a round is not broken just to grow, at least."""
    restart_cost: float = 10.0
    """`patience.restartCost`: what a restart to grow costs at least, or as much as the last one took; the fewer nodes
    wait, the longer they do. 0: they wait for the cool-down only."""
    min_share: float = 0.5
    """Smallest share of the nodes that trains; 1: all or none."""
    stage: int = 1
    """Iterations between two copies to memory."""
    persist: float = 600.0
    """Seconds between two checkpoints in the store."""
    check: float = 0.0
    """Seconds that a node check before each round takes; it keeps most bad machines out."""
    costs: str = ""
    """Name of other costs than those of the comparison."""


POLICIES = (
    Policy("default"),
    Policy("grow after 30 s", restart_cost=0.0),
    Policy("wait 60 s for one", shrink_after=60.0),
    Policy("copy each 4th", stage=4),
    Policy("wait for all", shrink_after=4 * 3600.0, join_window=60.0, min_share=1.0),
    Policy("16 spares", spares=16, shrink_after=120.0),
    Policy("16 spares, checked", spares=16, shrink_after=120.0, check=20.0),
    Policy("rare copies", stage=60),
)
"""What `everstep simulate` compares if nobody names others."""


_KINDS: dict[str, Callable[[str], float | str]] = {"spares": int, "stage": int, "costs": str}
"""How to read a field's value; the others are float."""


def parse_policy(text: str) -> Policy:
    """Read `NAME[: field=value, ...]`. Raises ValueError with one line."""
    name, _, rest = (part.strip() for part in text.partition(":"))
    if not name or "=" in name:
        raise ValueError(f"{text.strip()!r} has no name; write NAME: FIELD=NUMBER, ...")
    fields = [field.name.replace("_", "-") for field in dataclasses.fields(Policy) if field.name != "name"]
    values: dict[str, float | str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in fields:
            raise ValueError(f"policy {name}: {part!r}; write FIELD=NUMBER with one of {', '.join(fields)}")
        try:
            number = _KINDS.get(key, float)(value)
        except ValueError:
            raise ValueError(f"policy {name}: {key}={value} is not a number") from None
        if not isinstance(number, str) and not 0 <= number < float("inf"):
            raise ValueError(f"policy {name}: {key}={value} is negative or infinite")
        if key.replace("-", "_") in values:
            raise ValueError(f"policy {name}: {key} is given twice")
        values[key.replace("-", "_")] = number
    return Policy(name, **values)  # type: ignore[arg-type]
