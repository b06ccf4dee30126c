"""A training job as every kind of manifest describes it: roles, each with nodes, a pod and a command."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Pod:
    """What a role's nodes run in."""

    image: str
    """Empty: the job leaves it to what is not in its manifest."""
    command: tuple[str, ...]
    """Command and arguments of its first container."""
    container: dict[str, Any] = field(default_factory=dict)
    """Fields of an Argo template's container."""
    template: dict[str, Any] = field(default_factory=dict)
    """Fields of an Argo template: nodeSelector, tolerations, volumes..."""
    spec: dict[str, Any] = field(default_factory=dict)
    """Fields of a Workflow's spec: imagePullSecrets."""
    has_program: bool = True
    """False: `command` is arguments alone, of a program that the image or a runtime may have."""

    def memory_mounts(self) -> list[dict[str, Any]]:
        """Where it mounts a volume as /dev/shm."""
        return [mount for mount in self.container.get("volumeMounts", []) if mount.get("mountPath") == "/dev/shm"]


@dataclass(frozen=True)
class Role:
    """Nodes of one kind."""

    name: str
    nodes: int
    min_nodes: int
    pod: Pod
    slots: int = 1
    """Workers per node, if the command does not say."""
    policies: dict[str, Any] = field(default_factory=dict)
    """Further fields of the role in a job spec, in its spelling."""


@dataclass(frozen=True)
class SourceJob:
    """What was read."""

    roles: tuple[Role, ...]
    """At least one; the first is that of rank 0."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the train step, by its config's fields."""
    policies: dict[str, Any] = field(default_factory=dict)
    """Fields of a job spec beside its roles, in its spelling."""
    variables: dict[str, str] = field(default_factory=dict)
    """Those that its operator sets to the same in all pods, as far as a launcher's flags may need them."""
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)
    """Its own labels and annotations."""
    run: dict[str, Any] = field(default_factory=dict)
    """Fields of a Workflow's spec for the whole run: activeDeadlineSeconds, ttlStrategy."""
    claims: tuple[dict[str, Any], ...] = ()
    """Templates of the claims that the workflow makes for its volumes."""


def claim_name(name: str) -> str:
    """What Argo calls the workflow's own claim of that name, which it fills in where a pod mounts it."""
    return f"{{{{workflow.name}}}}-{name}"
