"""What a job is asked to be: roles, sizes, patience. Plain data; checked once, where it enters."""

import re

import msgspec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_ROLE = re.compile(r"[a-z][a-z0-9]{0,30}")


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
    leave_s: float = 10.0
    """A node that was told to leave has so long to end by itself; then the platform ends it."""
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
    hosts: str = "local-"
    """Prefix of the hosts that nodes are placed on by number (`local-0`...); empty: the platform places them."""


def problems(spec: JobSpec) -> list[str]:
    """What contradicts itself in the spec, one line each; empty when it can be run."""
    found = []
    if not _NAME.fullmatch(spec.job):
        found.append(f"{spec.job!r} is no name for a job; use letters, digits and . _ -, a letter or digit first")
    for name, role in spec.roles.items():
        if not _ROLE.fullmatch(name):
            found.append(f"{name!r} is no name for a role; use lower-case letters and digits, a letter first")
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
    for field in msgspec.structs.fields(Patience):
        value = getattr(spec.patience, field.name)
        if value < 0:
            found.append(f"{field.name.replace('_', '-')} is {value}; it cannot be negative")
    if spec.patience.silence_s == 0:
        found.append("silence-s is 0; every node would be lost at once")
    return found
