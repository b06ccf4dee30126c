"""--job-spec: the spec that a file holds, with what the flags say besides it."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.runtime.job.spec import KEEP_LAST, JobSpec, Placement
from everstep.runtime.launch.rendezvous import Rendezvous, parse_conf

if TYPE_CHECKING:
    from everstep.runtime.job.spec_reader import Said

ROLE = "worker"
"""Of all nodes, to the master, where no spec names roles; ROLE_NAME is the user's."""


def read_spec(told: argparse.Namespace, nodes: tuple[int, int], slots: int) -> tuple[JobSpec, str]:
    """The spec of --job-spec, and the role in it that this node has; `nodes` and `slots` as the flags say them.

    Flags that are as by default say nothing. Raises ValueError in one line: the file cannot be read, is wrong, says
    otherwise than a flag.
    """
    from everstep.runtime.job.spec_reader import SpecError, role_names, spec_of

    name = told.job_spec
    try:
        text = Path(name).read_text()
        role = _role(told.role, role_names(text, name), name)
        return spec_of(text, name, _flag_values(told, role, nodes, slots)), role
    except OSError as error:
        raise ValueError(f"--job-spec {name}: {error.strerror}; give a YAML file that every node can read") from None
    except SpecError as error:
        raise ValueError("; ".join(error.problems)) from None


def _role(asked: str, known: list[str], name: str) -> str:
    """torchrun's --role says it; where the job has a single one it need not."""
    if asked in known or not known:
        return asked
    if asked == "default" and len(known) == 1:
        return known[0]
    if asked == "default":
        raise ValueError(f"--role: {name} has the roles {', '.join(known)}; say which of them this node has")
    raise ValueError(f"--role {asked}: {name} has no such role, only {', '.join(known)}")


def _flag_values(told: argparse.Namespace, role: str, nodes: tuple[int, int], slots: int) -> "Iterator[Said]":
    from everstep.runtime.job.spec_reader import Said

    yield Said("--rdzv-id", ("job",), told.rdzv_id, firm=told.rdzv_id != "none")
    yield Said("everstep launch", ("placement",), Placement.JOINED.value)
    if told.nnodes != "1:1":
        yield Said("--nnodes", ("replicaSpecs", role, "minReplicas"), nodes[0])
        yield Said("--nnodes", ("replicaSpecs", role, "replicas"), nodes[1])
    if told.node_unit != 1:
        yield Said("--node-unit", ("replicaSpecs", role, "nodeUnit"), told.node_unit)
    if told.nproc_per_node != "1":
        yield Said("--nproc-per-node", ("replicaSpecs", role, "slots"), slots)
    if told.max_restarts:
        yield Said("--max-restarts", ("patience", "maxRestarts"), told.max_restarts)
    for flag, spelled, default in (("keep_last", "keepLast", KEEP_LAST), ("keep_every", "keepEvery", 0)):
        if getattr(told, flag) != default:
            yield Said(f"--{flag.replace('_', '-')}", (spelled,), getattr(told, flag))
    if told.cooldown != 30:
        yield Said("--cooldown", ("patience", "coolDown"), told.cooldown)
    if told.hang_timeout != 300:
        yield Said("--hang-timeout", ("hang", "timeout"), told.hang_timeout)
    if told.on_hang:
        yield Said("--on-hang", ("hang", "policy"), told.on_hang)
    conf, usual = parse_conf(told.rdzv_conf, static=False), Rendezvous()
    waits = {"join_timeout_s": "joinTimeout", "last_call_s": "joinWindow", "silence_s": "silence"}
    for field, spelled in waits.items():
        if getattr(conf, field) != getattr(usual, field):
            yield Said("--rdzv-conf", ("patience", spelled), getattr(conf, field))
