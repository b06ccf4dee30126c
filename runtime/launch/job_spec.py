"""--job-spec: the spec in a file, combined with the flags."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.runtime.job.spec import KEEP_LAST, JobSpec, Placement
from everstep.runtime.launch.rendezvous import Rendezvous, parse_conf

if TYPE_CHECKING:
    from everstep.runtime.job.spec_reader import FlagValue

ROLE = "worker"
"""The master's role of all nodes if no spec names roles; ROLE_NAME is the user's."""


def read_spec(flags: argparse.Namespace, nodes: tuple[int, int], slots: int) -> tuple[JobSpec, str]:
    """The spec of --job-spec, and this node's role in it; `nodes` and `slots` as the flags give them.

    A flag with its default value says nothing. Raises ValueError with one line: the file cannot be read, is wrong, or
    contradicts a flag.
    """
    from everstep.runtime.job.spec_reader import SpecError, role_names, spec_of

    name = flags.job_spec
    try:
        text = Path(name).read_text()
        role = _role(flags.role, role_names(text, name), name)
        return spec_of(text, name, _flag_values(flags, role, nodes, slots)), role
    except OSError as error:
        raise ValueError(f"--job-spec {name}: {error.strerror}; give a YAML file that every node can read") from None
    except SpecError as error:
        raise ValueError("; ".join(error.problems)) from None


def _role(role: str, role_names: list[str], name: str) -> str:
    """The node's role: torchrun's --role, which is optional if the job has a single role."""
    if role in role_names or not role_names:
        return role
    if role == "default" and len(role_names) == 1:
        return role_names[0]
    if role == "default":
        raise ValueError(f"--role: {name} has the roles {', '.join(role_names)}; choose this node's role")
    raise ValueError(f"--role {role}: {name} has no such role, only {', '.join(role_names)}")


def _flag_values(flags: argparse.Namespace, role: str, nodes: tuple[int, int], slots: int) -> "Iterator[FlagValue]":
    from everstep.runtime.job.spec_reader import FlagValue

    yield FlagValue("--rdzv-id", ("job",), flags.rdzv_id, firm=flags.rdzv_id != "none")
    yield FlagValue("everstep launch", ("placement",), Placement.JOINED.value)
    if flags.nnodes != "1:1":
        yield FlagValue("--nnodes", ("replicaSpecs", role, "minReplicas"), nodes[0])
        yield FlagValue("--nnodes", ("replicaSpecs", role, "replicas"), nodes[1])
    if flags.node_unit != 1:
        yield FlagValue("--node-unit", ("replicaSpecs", role, "nodeUnit"), flags.node_unit)
    if flags.nproc_per_node != "1":
        yield FlagValue("--nproc-per-node", ("replicaSpecs", role, "slots"), slots)
    if flags.max_restarts:
        yield FlagValue("--max-restarts", ("patience", "maxRestarts"), flags.max_restarts)
    saving = (("keep_last", "keepLast", KEEP_LAST), ("keep_every", "keepEvery", 0), ("peer_copies", "peerCopies", 1))
    for flag, spec_spelling, default in saving:
        if getattr(flags, flag) != default:
            yield FlagValue(f"--{flag.replace('_', '-')}", (spec_spelling,), getattr(flags, flag))
    if flags.cooldown != 30:
        yield FlagValue("--cooldown", ("patience", "coolDown"), flags.cooldown)
    if flags.hang_timeout != 300:
        yield FlagValue("--hang-timeout", ("hang", "timeout"), flags.hang_timeout)
    if flags.on_hang:
        yield FlagValue("--on-hang", ("hang", "policy"), flags.on_hang)
    if flags.straggler_policy != "report":
        yield FlagValue("--straggler-policy", ("stragglers",), flags.straggler_policy)
    conf, usual = parse_conf(flags.rdzv_conf, static=False), Rendezvous()
    waits = {"join_timeout_s": "joinTimeout", "last_call_s": "joinWindow", "silence_s": "silence"}
    for field, spec_spelling in waits.items():
        if getattr(conf, field) != getattr(usual, field):
            yield FlagValue("--rdzv-conf", ("patience", spec_spelling), getattr(conf, field))
