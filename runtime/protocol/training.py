"""What a node without a seat may ask its master: is there a round that trains, and could it warm up for it?"""

import msgspec


class Training(msgspec.Struct, frozen=True):
    """The answer to GET /v1/training/<role>."""

    round: int
    """The round that runs; 0: none does, so a node that joins now keeps nobody from training."""
    nodes: int = 0
    """Of all roles in it, as `workers`."""
    workers: int = 0
    role_workers: int = 0
    trains: bool = False
    """Every member has finished an iteration: what that has compiled is there for others."""
    survives: bool = False
    """Workers of this role can be seated again in a later round, so they can be spares, too."""
