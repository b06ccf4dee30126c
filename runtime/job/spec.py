"""What a job is asked to be: roles, sizes, patience. Plain data; checked once, where it enters."""

import msgspec


class RoleSpec(msgspec.Struct, frozen=True):
    """A kind of node and how many of it."""

    nodes: int
    """Wanted (the maximum)."""
    min_nodes: int
    slots: int = 1
    """Workers a node."""


class Patience(msgspec.Struct, frozen=True):
    """How long the brain waits for what, in seconds, and how often it tries again."""

    join_window_s: float = 30.0
    """From the last join until a round with at least the minimum begins without the rest."""
    join_timeout_s: float = 600.0
    """Without the minimum for so long: the job ends with exit code 3."""
    replacement_wait_s: float = 10.0
    """After a loss, how long survivors wait for the replacement before they go on smaller."""
    cooldown_s: float = 30.0
    """After a change of membership, how long a running round is not broken up just to grow."""
    silence_s: float = 30.0
    """No heartbeat for so long: the node is lost."""
    max_restarts: int = 3
    """Rounds that a user's error may cost before the job fails."""
    max_relaunches: int = 3
    """Replacements of one node (role and index)."""
    no_progress: int = 10
    """Rounds in a row that end, whatever the cause, without one new iteration: the job fails."""


class JobSpec(msgspec.Struct, frozen=True):
    """One elastic job."""

    job: str
    """Its key in the store is jobs/<job>; `<workflow uid>-<step>`."""
    roles: dict[str, RoleSpec]
    patience: Patience = Patience()
    avoid_hosts: tuple[str, ...] = ()


def problems(spec: JobSpec) -> list[str]:
    """What contradicts itself in the spec, one line each; empty when it can be run."""
    found = []
    for name, role in spec.roles.items():
        if role.nodes < 1:
            found.append(f"{name}: nodes is {role.nodes}; at least 1 is needed")
        if role.min_nodes < 1:
            found.append(f"{name}: min-nodes is {role.min_nodes}; at least 1 is needed")
        if role.min_nodes > role.nodes:
            found.append(f"{name}: min-nodes is {role.min_nodes}, more than nodes, {role.nodes}")
        if role.slots < 1:
            found.append(f"{name}: {role.slots} workers a node; at least 1 is needed")
    if not spec.roles:
        found.append("a job needs at least one role")
    return found
