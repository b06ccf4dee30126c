"""Where a training's nodes come from, and whether they outlive the step's process.

On one machine nodes are processes, registered in the run's folder. In a pod that Argo created (EVERSTEP_POD is its
name) they are sibling pods, owned by the Workflow.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from everstep.runtime.net.tls import Credentials, credentials_of
from everstep.runtime.net.token import TOKEN_VARIABLE, shared_token
from everstep.runtime.platform import POD_VARIABLE
from everstep.runtime.platform.gang import Gang
from everstep.runtime.protocol.handover import encode_start, start_key
from everstep.runtime.store import open_store
from everstep.steps.train.memory import shared_memory_bytes

if TYPE_CHECKING:
    from everstep.runtime.job.events import ScaleRequested
    from everstep.runtime.job.spec import JobSpec
    from everstep.runtime.platform import Platform
    from everstep.runtime.platform.kubernetes import Access, Scheduling
    from everstep.runtime.platform.kubernetes.platform import LeaveStart
    from everstep.runtime.protocol.handover import NodeStart
    from everstep.steps.train.config import Config

UNFIT_EXIT_CODE = 201
"""Exit code of a node that fails its check, if the spec lists none for faulty hardware."""
FIRST_CHECK_S = 5.0
"""Once no more nodes have come for this long, those present are checked: the others will find a partner."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Set for the agents before anything imports numpy or torch: nodes share this machine, and sums keep their order."""


class NodeBackend(NamedTuple):
    """What a master needs to know about where its nodes run."""

    platform: "Platform"
    credentials: Credentials
    address: str
    """Where the master listens for them."""
    spec: "JobSpec"
    """The job's spec, adapted to the place: a cluster's scheduler chooses the hosts."""
    environment: Mapping[str, str]
    """Variables for the agents."""
    stopped_for_good: Callable[[], Awaitable[bool]]
    """Called when the step's process is told to end: True if no retry will take the nodes over."""
    sizes: Callable[[], AsyncIterator["ScaleRequested"]] | None = None
    """Yields whenever somebody resizes the job other than by the master's HTTP."""
    release: Callable[[], Awaitable[None]] | None = None
    """Called when the job has ended and its nodes are gone."""
    has_pods: bool = False
    """Each node has a pod of its own; else all are processes of this machine."""


@dataclass(frozen=True)
class OwnPod:
    """The pod in which this process runs, and how it reaches its cluster's API."""

    name: str
    access: "Access"


@dataclass(frozen=True)
class JobSecret:
    """How the nodes of a job and its master prove to each other who they are."""

    token: str = ""
    """Empty: the job has none yet."""
    tls: bool = True


@asynccontextmanager
async def node_backend(
    config: "Config", spec: "JobSpec", folder: Path, environment: Mapping[str, str]
) -> AsyncIterator[NodeBackend]:
    """This machine, or the cluster. Raises KubeError if the cluster refuses a request."""
    if pod := environment.get(POD_VARIABLE):
        from everstep.runtime.platform.kubernetes import Access

        access, scheduling = Access.of_this_pod(environment), scheduling_of(config, spec)
        secret, shared_bytes = JobSecret(environment.get(TOKEN_VARIABLE, ""), config.tls), shared_memory_bytes(config)
        async with sibling_pods(
            OwnPod(pod, access),
            spec,
            scheduling,
            secret,
            shared_bytes=shared_bytes,
            taints=config.taint_hosts,
            store=config.store,
        ) as place:
            yield place
        return
    if flags_ignored := config.scheduler_flags():
        _print_line(f"{', '.join(flags_ignored)}: ignored, as nodes are processes of this machine")
    if own := [name for name, role in spec.roles.items() if role.template]:
        _print_line(f"{', '.join(own)}: of its template only command and env count on this machine")
    from everstep.runtime.platform.devices import machine_devices
    from everstep.runtime.platform.process import ProcessPlatform

    async def is_stopped() -> bool:
        return stopped_for_good(folder)

    credentials = Credentials(shared_token(folder / "jobs" / f"{spec.job}.token"))
    platform = ProcessPlatform(folder, spec.job, devices=machine_devices(environment))
    yield NodeBackend(platform, credentials, "127.0.0.1", spec, ONE_THREAD, is_stopped)


def scheduling_of(config: "Config", spec: "JobSpec") -> "Scheduling":
    """The scheduling that the flags and the spec ask for."""
    from everstep.runtime.platform.kubernetes import Scheduling, minimum_of

    priority_class = config.priority_class or spec.priority_class
    return Scheduling(
        Gang(config.gang), config.queue, priority_class, config.extra_priority_class, minimum_of(spec),
        tuple(name for name, role in spec.roles.items() if role.waits_for),
    )  # fmt: skip


@asynccontextmanager
async def sibling_pods(
    own_pod: OwnPod,
    spec: "JobSpec",
    scheduling: "Scheduling",
    secret: JobSecret = JobSecret(),
    *,
    shared_bytes: int = 0,
    taints: bool = False,
    store: str = "",
) -> AsyncIterator[NodeBackend]:
    """Pods like the step's own, with at least `shared_bytes` bytes of /dev/shm. Raises KubeError.

    `taints`: mark hosts to avoid for everybody. `store`: where pods that were checked and wait for this training look
    for what to run; empty: none is taken.
    """
    from everstep.runtime.platform.kubernetes import (
        KubeApi,
        KubernetesPlatform,
        PodRules,
        delete_groups,
        ensure_groups,
        ensure_sizes,
        is_over_for_good,
        owner_of,
        read_deadline,
        read_topology,
        template_of,
        watch_sizes,
        with_shared_memory,
    )
    from everstep.runtime.platform.kubernetes.platform import shared_token as token_of

    async with KubeApi(own_pod.access) as api:
        own = await api.own_pod(own_pod.name)
        owner = owner_of(own)
        credentials = credentials_of(await token_of(api, spec.job, owner, secret.token), spec.job, tls=secret.tls)
        spec_there = replace(spec, hosts="", topology=spec.topology or await read_topology(api))

        async def is_stopped() -> bool:
            return await is_over_for_good(api, owner, time.time())

        await ensure_groups(api, scheduling, spec.job, owner)
        bounds = {name: (role.least, role.most) for name, role in spec.roles.items()}
        await ensure_sizes(api, spec.job, owner, {name: role.nodes for name, role in spec.roles.items()}, bounds)
        template = with_shared_memory(template_of(own), shared_bytes)
        template |= {"schedulerName": spec.scheduler_name} if spec.scheduler_name else {}
        own_templates = {name: role.template for name, role in spec.roles.items()}
        leave_start = start_leaver(store, spec.job, credentials.token) if store else None
        rules = PodRules(scheduling, taints, await read_deadline(api, owner), own_templates, leave_start)
        async with KubernetesPlatform(api, spec.job, owner, template, rules=rules, say=_print_line) as platform:
            yield NodeBackend(
                platform, credentials, own["status"]["podIP"], spec_there, {}, is_stopped,
                sizes=partial(watch_sizes, api, spec.job, _print_line),
                release=partial(delete_groups, api, scheduling, spec.job),
                has_pods=True,
            )  # fmt: skip


def start_leaver(store: str, job: str, token: str) -> "LeaveStart":
    """Writes to the store what a checked pod is to run."""

    async def leave(pod: str, start: "NodeStart") -> None:
        key = start_key(job, pod)
        await asyncio.to_thread(open_store(store).put, key, encode_start(start, key, token))

    return leave


@asynccontextmanager
async def serve_node_checks(config: "Config", place: NodeBackend) -> AsyncIterator[tuple[int, list[str]]]:
    """Serve the node check, if there is one; yields its port (0: none) and the agents' flags.

    Raises OSError if the port is taken.
    """
    if not config.checks_nodes(in_pods=place.has_pods):
        yield 0, []
        return
    from everstep.runtime.agent.ports import free_port_pair
    from everstep.runtime.diagnosis.admission import Admission, node_check_port, serve_admission
    from everstep.runtime.diagnosis.switchbox import box_flags

    spec, patience = place.spec, place.spec.patience
    roles = [role for role in spec.roles.values() if not role.waits_for]  # Other roles come after these.
    nodes, least = sum(role.nodes for role in roles), sum(role.min_nodes for role in roles)
    window_s = min(patience.join_window_s, FIRST_CHECK_S)
    admission = Admission(nodes, least, window_s, patience.join_timeout_s, config.exclude_straggler)
    unfit = next(iter(spec.hardware_exit_codes), UNFIT_EXIT_CODE)
    port = free_port_pair(random.Random())
    async with serve_admission(admission, place.address, node_check_port(port), place.credentials, _print_line):
        box = config.switchbox()
        links = box_flags(config.box_pairs, config.min_bandwidth, config.min_channels) if box else []
        yield port, [f"--network-check={unfit}", *links]


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def stop_on_request(stop_requested: asyncio.Event, stop: asyncio.Event, place: NodeBackend) -> bool:
    """Wait until the process is told to end; find out whether for good, then stop the master."""
    await stop_requested.wait()
    for_good = await place.stopped_for_good()
    stop.set()
    return for_good


def stopped_for_good(folder: Path) -> bool:
    """Has somebody stopped or terminated the run of this folder? Always true for a step without a run."""
    try:
        workflow = json.loads((folder / "workflow.json").read_bytes())
    except FileNotFoundError:
        return True
    return bool(workflow.get("spec", {}).get("shutdown"))
