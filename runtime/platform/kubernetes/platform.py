"""The Platform of a job whose nodes are pods.

It learns what exists from one list and a watch from there on (and another list when the version is no longer kept);
`observe` answers from that. So the API may be away for a while: existing nodes are assumed to exist, and creations and
deletions wait. Pod names follow from the job, so a repeated create finds the pod of the first.
"""

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from everstep.runtime.net.token import token_secret
from everstep.runtime.platform import Node, NodeEnd, NodeRequest
from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError, retry_pauses
from everstep.runtime.platform.kubernetes.held_pods import adoption, held_selector, is_suitable, start_of
from everstep.runtime.platform.kubernetes.known_pods import KnownPods
from everstep.runtime.platform.kubernetes.own_template import with_own_metadata, with_own_template
from everstep.runtime.platform.kubernetes.pods import (
    GRACE_S,
    Owner,
    has_ended,
    is_overlooked,
    node_of,
    pod_of,
    secret_of,
    selector,
    waiting_reason,
)
from everstep.runtime.platform.kubernetes.scheduling import (
    PLAIN,
    Scheduling,
    admission_of_extra,
    extras_to_admit,
    with_scheduling,
)
from everstep.runtime.platform.kubernetes.taints import taint
from everstep.runtime.protocol.handover import NodeStart

LeaveStart = Callable[[str, NodeStart], Awaitable[None]]
"""Leaves the pod of that name what to run. Raises OSError."""
FORCE_AFTER_S = 2.0 * GRACE_S
"""A pod that is still there this long after it was told to end is on an unreachable host: it is forgotten."""
OVERLOOKED_S = 60.0
"""A scheduler that runs looks at a pod within seconds."""


async def shared_token(api: KubeApi, job: str, owner: Owner, token_in_flags: str = "") -> str:
    """The job's token: `token_in_flags`, if the job's Secret was there when this pod started; else a new one, in a
    Secret that the Workflow owns.

    It is never read through the API: the step's account may create Secrets, and read none. Raises KubeError.
    """
    if token_in_flags:
        return token_in_flags
    token = secrets.token_urlsafe(32)
    try:
        await api.retry(lambda: api.create("secrets", secret_of(job, owner, token)))
    except KubeError as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
        where = f"Secret {token_secret(job)}: it was made after this pod had started"
        raise KubeError(f"{where}; the next try has its token, if its template names it (everstep templates)") from None
    return token


@dataclass(frozen=True)
class PodRules:
    """What holds for all pods of a job, beside their template."""

    scheduling: Scheduling = PLAIN
    taints: bool = False
    """Mark machines to avoid for everybody (see `taints`)."""
    ends_at: float | None = None
    """Unix time at which every pod must have ended: Argo then kills this process, which cannot remove them."""
    own_templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By role: how its pods differ from the template (see `pod_template`)."""
    leave_start: LeaveStart | None = None
    """Take checked pods that wait for this job (see `held_pods`), and leave each what to run."""


async def ensure_token(api: KubeApi, job: str, owner: Owner) -> None:
    """Make the job's Secret unless it is there, for pods that will name it. Raises KubeError."""
    await api.ensure("secrets", secret_of(job, owner, secrets.token_urlsafe(32)))


class KubernetesPlatform:
    """The nodes of one job, in one namespace. `async with`; used from one event loop."""

    def __init__(
        self,
        api: KubeApi,
        job: str,
        owner: Owner,
        template: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        rules: PodRules = PodRules(),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`template`: a pod's spec, whose first container becomes the agent; see `template_of`.

        `say` gets one line for each reason why a pod does not start.
        """
        self._api = api
        self._job = job
        self._owner = owner
        self._template = template
        self._rules = rules
        self._say = say
        self._held: list[dict[str, Any]] | None = None
        """Checked pods that wait for this job; None: not asked yet."""
        self._taking = asyncio.Lock()
        self._tainted: set[str] = set()
        self._reasons: dict[str, str] = {}
        """By UID: the last reason given why the pod does not start."""
        self._clock = clock
        self._known = KnownPods()
        self._listed = asyncio.Event()
        self._news: asyncio.Queue[NodeEnd] = asyncio.Queue()
        self._ending: dict[str, float] = {}
        """By UID: when the pod was told to end."""
        self._overlooked: dict[str, float] = {}
        """By UID: since when no scheduler is known to have looked at the pod."""
        self._admitted: set[str] = set()
        """UIDs of the extras whose gate this master has opened."""
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "KubernetesPlatform":
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, KubeError):
                await self._watching

    async def observe(self) -> list[Node]:
        """The job's pods that have not ended, by the API's last word; waits for its first answer.

        Raises KubeError if the API refuses.
        """
        first = asyncio.create_task(self._listed.wait())
        assert self._watching, "used outside of `async with`"
        await asyncio.wait({first, self._watching}, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        if self._watching.done():
            self._watching.result()
        self._tell_overlooked()
        return self._known.nodes()

    async def create(self, request: NodeRequest) -> Node:
        """Create the pod, or find the one that an earlier try created; waits while the API is away.

        Raises OSError if the API refuses, and for a pod of that name that has ended: names are not reused.
        """
        try:
            own = self._rules.own_templates.get(request.role, {})
            wanted_pod = pod_of(request, self._job, self._owner, with_own_template(self._template, own))
            wanted_pod = with_own_metadata(wanted_pod, own)
            manifest = with_scheduling(
                self._with_deadline(wanted_pod), self._rules.scheduling, self._job, request.extra
            )
        except ValueError as error:
            raise OSError(str(error)) from None
        await self._taint_hosts(request.avoid_hosts)
        if not own and (pod := await self._take_held(request, manifest)):
            return self._known.on_created(pod)
        try:
            pod = await self._api.retry(lambda: self._api.create("pods", manifest))
        except KubeError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            name = manifest["metadata"]["name"]
            pod = await self._api.retry(lambda: self._api.get("pods", name))
            if has_ended(pod) or node_of(pod).name != request.name:
                raise OSError(
                    f"pod {name} already exists and {'has ended' if has_ended(pod) else 'is not ours'}"
                ) from None
        return self._known.on_created(pod)

    async def _take_held(self, request: NodeRequest, pod_wish: dict[str, Any]) -> dict[str, Any] | None:
        """Make a checked pod that waits for this job the node, if one is as the wanted pod. Raises OSError."""
        leave_start = self._rules.leave_start
        if leave_start is None or self._rules.ends_at is not None:  # A pod's deadline is given when it is created.
            return None
        async with self._taking:
            if self._held is None:
                self._held, _ = await self._api.retry(lambda: self._api.list("pods", held_selector(self._job)))
            for pod in [
                candidate for candidate in self._held if is_suitable(candidate, pod_wish, request, time.time())
            ]:
                self._held.remove(pod)
                name = pod["metadata"]["name"]
                try:
                    await self._api.retry(
                        lambda name=name, pod=pod: self._api.patch("pods", name, adoption(pod, pod_wish))
                    )
                except KubeError as error:
                    if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                        self._say(f"{name}, which was checked, is not taken: {error}")
                    continue
                await leave_start(name, start_of(pod, pod_wish, request))
                self._say(f"{request.name} is the pod that was checked on {pod['spec']['nodeName']}")
                return await self._api.retry(lambda name=name: self._api.get("pods", name))
        return None

    def _with_deadline(self, pod: dict[str, Any]) -> dict[str, Any]:
        if self._rules.ends_at is None:
            return pod
        left_s = max(1, math.ceil(self._rules.ends_at - time.time()))
        return {**pod, "spec": {**pod["spec"], "activeDeadlineSeconds": left_s}}

    async def _taint_hosts(self, hosts: Sequence[str]) -> None:
        fresh = [host for host in hosts if self._rules.taints and host not in self._tainted]
        self._tainted.update(fresh)
        for host in fresh:
            await taint(self._api, host, self._say)

    async def delete(self, name: str, uid: str) -> None:
        """Tell that pod to end. Forget it if it was told long enough ago that its host must be lost. Idempotent."""
        pod = self._known.pod(uid)
        if pod is None or has_ended(pod):
            return
        ending_since = self._ending.setdefault(uid, now := self._clock())
        force = now >= ending_since + FORCE_AFTER_S
        if pod["metadata"].get("deletionTimestamp") and not force:
            return
        grace_s = 0 if force else GRACE_S
        where = pod["metadata"]["name"]  # Not `pod_name`: a pod that was checked keeps its own.
        try:
            await self._api.retry(lambda: self._api.delete("pods", where, uid, grace_s))
        except KubeError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise
            self._publish(self._known.on_deleted(pod))

    async def node_ends(self) -> AsyncIterator[NodeEnd]:
        """Each node's end, with its exit code if the pod tells it; also ends from before this master started."""
        while True:
            yield await self._news.get()

    def _publish(self, news: list[NodeEnd]) -> None:
        for end in news:
            self._ending.pop(end.uid, None)
            self._reasons.pop(end.uid, None)
            self._admitted.discard(end.uid)
            self._news.put_nowait(end)

    def _explain(self, pod: dict[str, Any]) -> None:
        """Say why the pod does not start, once for each reason."""
        why, uid = waiting_reason(pod), pod["metadata"]["uid"]
        if why and why != self._reasons.get(uid):
            self._reasons[uid] = why
            self._say(f"{node_of(pod).name}: {why}")

    def _tell_overlooked(self) -> None:
        """Say, once for each pod, that no scheduler looks at it: no event ever would."""
        now, pods = self._clock(), {pod["metadata"]["uid"]: pod for pod in self._known.pods() if is_overlooked(pod)}
        self._overlooked = {uid: self._overlooked.get(uid, now) for uid in pods}
        for uid, pod in pods.items():
            if uid not in self._reasons and now >= self._overlooked[uid] + OVERLOOKED_S:
                scheduler = pod["spec"].get("schedulerName", "default-scheduler")
                why = f"the scheduler {scheduler} has not looked at its pod for {OVERLOOKED_S:.0f} s; does it run here?"
                self._reasons[uid] = why
                self._say(f"{node_of(pod).name}: {why}")

    async def _watch(self) -> None:
        """List, watch, list again. Ends only with a refusal that waiting cannot cure (KubeError)."""
        pauses, version = retry_pauses(), ""
        while True:
            try:
                version = version or await self._list()
                await self._admit_extras()
                async for event in self._api.watch("pods", selector(self._job), version):
                    pauses, version = retry_pauses(), self._handle_event(event)
                    await self._admit_extras()
                await self._api.pause(pauses)  # The server ends each stream after a while.
            except KubeError as error:
                if error.status == HTTPStatus.GONE:
                    version = ""
                elif not error.passing:
                    raise
                await self._api.pause(pauses, error.after_s)

    async def _admit_extras(self) -> None:
        """Remove the scheduling gates of extras when it is time, once for each: what is known of them is older.

        When the answer to a patch was lost, Kueue may have removed its own gate since, which cannot be put back (422).
        """
        for pod in extras_to_admit(self._known.pods(), self._rules.scheduling):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            if uid in self._admitted:
                continue
            try:
                await self._api.patch("pods", name, admission_of_extra(self._rules.scheduling))
            except KubeError as error:
                if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY):
                    raise
            self._admitted.add(uid)

    async def _list(self) -> str:
        ticket = self._known.begin_list()
        pods, version = await self._api.list("pods", selector(self._job))
        self._publish(self._known.on_list(ticket, pods))
        self._listed.set()
        return version

    def _handle_event(self, event: dict[str, Any]) -> str:
        """Handle one event; returns its version."""
        pod = event["object"]
        if event["type"] == "DELETED":
            self._publish(self._known.on_deleted(pod))
        elif event["type"] != "BOOKMARK":
            self._publish(self._known.on_seen(pod))
            self._explain(pod)
        return pod["metadata"]["resourceVersion"]
