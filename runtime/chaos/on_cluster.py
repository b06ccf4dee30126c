"""Faults of nodes that are pods, through the API of the cluster. The story begins in `ClusterInjector.inject`."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

from everstep.runtime.chaos import in_pod
from everstep.runtime.chaos.beside_node import BesideNode, Cut
from everstep.runtime.chaos.injector import NOT_IN_PODS, Fault, FiredFault, Kind, NotFiredError, NotPossibleError
from everstep.runtime.chaos.job_pods import SEEN_S, JobPods, Pod
from everstep.runtime.chaos.progress import Progress, mention_of, oom_fired, role_to_resize
from everstep.runtime.job.pod_template import GRACE
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import FaultJudged, NodeLost
from everstep.runtime.platform.kubernetes import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import AGENT_CONTAINER, object_name
from everstep.runtime.platform.kubernetes.sizes import KEY, bounds_of, format_sizes, parse_sizes
from everstep.runtime.store import is_s3_uri

TAINT = {"key": "everstep/chaos", "value": "drill", "effect": "NoExecute"}
ARGO_NODE = "workflows.argoproj.io/node-name"
"""Argo's annotation of a step's pod: WORKFLOW.TASK(TRY), or WORKFLOW(TRY) if the step is the workflow's entrypoint. A
workflow's name may have dots."""
STEPS = "everstep/step=train"
RESIZE_BEGAN = "everstep/resize-fault"
"""Annotation of the ConfigMap with a job's sizes: when a resize began (Unix time) that is not over."""
RESIZE_S = 2 * SEEN_S
"""A resize whose command was killed counts as over after this time."""
CHECK_S = 600.0
"""A check before the training may take this long, with what comes before it."""
END_SEEN_S = 30.0
"""The job knows within this time that a node's container has ended."""
END_FIRST_PROCESS = ("python", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")


def _grace_s(pod: Pod) -> int:
    """The pod's own: whoever preempts it, or deletes it by kubectl, gives it that."""
    return pod["spec"].get(GRACE, 30)


def _wanted(sizes: Mapping[str, int]) -> dict[str, Any]:
    """The change of a ConfigMap that asks for these sizes."""
    return {"data": {KEY: format_sizes(sizes)}}


class ClusterInjector:
    """The pods of one job, in the namespace of this step's own pod."""

    def __init__(self, api: KubeApi, step: str, progress: Progress, chance: random.Random) -> None:
        """`step`: the name of the train step's task; `chance` chooses the node."""
        self._api = api
        self._step = step
        self._progress = progress
        self._pods = JobPods(api, progress, chance)
        self._beside = BesideNode(api, chance)
        self._faults: Mapping[Kind, Callable[[Fault], Awaitable[FiredFault]]] = {
            Kind.NODE: self._delete_node,
            Kind.PREEMPT: self._delete_node,
            Kind.EVICT: self._evict,
            Kind.MASTER: self._delete_step,
            Kind.EVERYTHING: self._delete_everything,
            Kind.RESIZE: self._resize,
            Kind.CORDON: self._mark_machine,
            Kind.TAINT: self._mark_machine,
            Kind.CONTAINER: self._end_container,
            Kind.OOM: self._run_out_of_memory,
            Kind.FAULTY: self._fail_check,
            Kind.NETWORK: self._cut_off,
            Kind.STORE: self._lose_store,
            **dict.fromkeys(in_pod.KINDS, self._do_in_pod),
        }

    def refusal(self, kind: Kind) -> str:
        return f"not on a cluster: {NOT_IN_PODS[kind]}" if kind in NOT_IN_PODS else ""

    async def prepare(self, kind: Kind) -> None:
        """Nothing."""

    async def inject(self, fault: Fault) -> FiredFault:
        if why := self.refusal(fault.kind):
            raise NotPossibleError(why)
        try:
            return await self._faults[fault.kind](fault)
        except KubeError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                raise NotPossibleError(str(error)) from None
            raise NotFiredError(str(error)) from None

    async def _delete(self, pods: list[Pod], grace_s: int) -> float:
        """Delete them; returns when, once the API shows none of them as before. Raises NotFiredError."""
        moment = time.time()
        for pod in pods:
            await self._api.delete("pods", pod["metadata"]["name"], pod["metadata"]["uid"], grace_s)
        for pod in pods:
            await self._pods.wait_until_going(pod)
        return moment

    async def _delete_node(self, fault: Fault) -> FiredFault:
        name, pod = await self._pods.victim(fault)
        grace = _grace_s(pod) if fault.kind is Kind.PREEMPT else 0
        moment = await self._delete([pod], grace)
        return FiredFault(fault.kind, name, moment, f"pod {pod['metadata']['name']} deleted with {grace} s of grace")

    async def _evict(self, fault: Fault) -> FiredFault:
        name, pod = await self._pods.victim(fault)
        moment = time.time()
        await self._api.evict(pod["metadata"]["name"])
        await self._pods.wait_until_going(pod)
        return FiredFault(fault.kind, name, moment, f"pod {pod['metadata']['name']} evicted")

    async def _step_pods(self) -> list[Pod]:
        """The train step's own running pod: of this run, which owns it. Raises NotFiredError."""
        pods, _ = await self._api.list("pods", STEPS)
        uid, step_pods = self._progress.job.removesuffix(f"-{self._step}"), []
        for pod in pods:
            owners = {owner["uid"]: owner["name"] for owner in pod["metadata"].get("ownerReferences", [])}
            name = pod["metadata"].get("annotations", {}).get(ARGO_NODE, "").partition("(")[0]
            is_step = name.endswith(f".{self._step}") or name == owners.get(uid)
            if uid in owners and is_step and pod["status"].get("phase") == "Running":
                step_pods.append(pod)
        if not step_pods:
            raise NotFiredError(f"no pod of the step {self._step} runs")
        return step_pods

    async def _delete_step(self, fault: Fault) -> FiredFault:
        pods = await self._step_pods()
        return FiredFault(fault.kind, "", await self._delete(pods, 0), f"pod {pods[0]['metadata']['name']} deleted")

    async def _delete_everything(self, fault: Fault) -> FiredFault:
        pods = [*await self._step_pods(), *(await self._pods.by_node()).values()]
        return FiredFault(fault.kind, "", await self._delete(pods, 0), f"{len(pods)} pods deleted")

    async def _resize(self, fault: Fault) -> FiredFault:
        """One node more, then the size that the job had, whatever happened meanwhile."""
        name, moment = object_name(self._progress.job), time.time()
        config_map = await self._api.get("configmaps", name)
        sizes = parse_sizes(config_map)
        role = role_to_resize(sizes)
        before, bounds = sizes[role], bounds_of(config_map, role)
        if bounds and before >= bounds[1]:
            raise NotPossibleError(f"the job has its {before} {role} nodes already: raise the role's maxReplicas")
        await self._begin_resize(config_map, moment)
        try:
            await self._api.patch("configmaps", name, _wanted({**sizes, role: before + 1}))
            await self._progress.wait_for_members(role, before + 1, SEEN_S)
        finally:
            back = {**_wanted(sizes), "metadata": {"annotations": {RESIZE_BEGAN: None}}}
            await self._api.retry(lambda: self._api.patch("configmaps", name, back))
        await self._progress.wait_for_members(role, before, SEEN_S)
        return FiredFault(fault.kind, "", moment, f"rounds of {before} -> {before + 1} -> {before} nodes")

    async def _begin_resize(self, config_map: Mapping[str, Any], moment: float) -> None:
        """Mark the ConfigMap: of two resizes at once, the first that ends would take the other's size for the job's.
        Raises NotPossibleError: it is marked, or somebody changes it at this moment. KubeError."""
        metadata = config_map["metadata"]
        began = float((metadata.get("annotations") or {}).get(RESIZE_BEGAN, 0))
        if moment < began + RESIZE_S:
            left = f"try again when that one is over, within {began + RESIZE_S - moment:.0f} s"
            raise NotPossibleError(f"another resize of it is under way; {left}")
        mark = {"resourceVersion": metadata["resourceVersion"], "annotations": {RESIZE_BEGAN: f"{moment:.0f}"}}
        try:
            await self._api.patch("configmaps", metadata["name"], {"metadata": mark})
        except KubeError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            raise NotPossibleError("somebody else changes its size at this moment; try again") from None

    async def _mark_machine(self, fault: Fault) -> FiredFault:
        """The machine takes no new pods; a taint evicts those that are there, otherwise the pod is deleted."""
        name, pod = await self._pods.victim(fault)
        machine = pod["spec"]["nodeName"]
        cordon, moment = fault.kind is Kind.CORDON, time.time()
        if cordon:
            await self._cordon(machine)
        try:
            if cordon:
                await self._delete([pod], _grace_s(pod))
            else:
                await self._set_taint(machine, present=True)
                await self._pods.wait_until_going(pod)
            await asyncio.sleep(fault.seconds)
        finally:
            if cordon:
                await self._uncordon(machine)
            else:
                await self._set_taint(machine, present=False)
        return FiredFault(fault.kind, name, moment, f"machine {machine} for {fault.seconds:g} s; its pod had to go")

    async def _cordon(self, machine: str) -> None:
        """Raises NotPossibleError: it is cordoned, perhaps by a fault that will end first. KubeError."""
        while True:
            node = await self._api.retry(lambda: self._api.get("nodes", machine))
            if node["spec"].get("unschedulable"):
                mend = f"once nobody needs that, `kubectl uncordon {machine}`"
                raise NotPossibleError(f"machine {machine} is cordoned already; {mend}")
            mark = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}}
            try:
                return await self._api.patch("nodes", machine, {**mark, "spec": {"unschedulable": True}})
            except BaseException as error:
                if not isinstance(error, KubeError) or error.status != HTTPStatus.CONFLICT:
                    await self._uncordon(machine)  # It may have been done although nobody heard of it.
                    raise

    async def _uncordon(self, machine: str) -> None:
        back = {"spec": {"unschedulable": None}}
        await self._api.retry(lambda: self._api.patch("nodes", machine, back))

    async def _set_taint(self, machine: str, *, present: bool) -> None:
        """Leave alone the taints of others, also those that come meanwhile. Raises KubeError."""
        while True:
            node = await self._api.retry(lambda: self._api.get("nodes", machine))
            taints = [taint for taint in node["spec"].get("taints") or [] if taint["key"] != TAINT["key"]]
            change = {
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": [*taints, TAINT] if present else taints},
            }
            try:
                return await self._api.retry(partial(self._api.patch, "nodes", machine, change))
            except KubeError as error:
                if error.status != HTTPStatus.CONFLICT:  # Somebody else has changed the machine since.
                    raise

    async def _do_in_pod(self, fault: Fault) -> FiredFault:
        name, pod = await self._pods.victim(fault)
        facts = await self._execute(pod, fault)
        evidence = f"in pod {pod['metadata']['name']}: {facts['evidence']}"
        return FiredFault(fault.kind, name, facts["time"], evidence)

    async def _execute(self, pod: Pod, fault: Fault) -> dict[str, Any]:
        """Run a program in the node's pod that does it there; what it says. Raises KubeError."""
        words = ["python", "-m", in_pod.__name__, fault.kind.value, str(fault.seconds), str(fault.share)]
        limit_s = fault.seconds + SEEN_S
        return json.loads(await self._api.execute(pod["metadata"]["name"], AGENT_CONTAINER, words, limit_s))

    async def _run_out_of_memory(self, fault: Fault) -> FiredFault:
        name, pod = await self._pods.victim(fault)
        moment = time.time()
        return oom_fired(name, moment, await self._judgement(name, pod, fault, SEEN_S))

    async def _fail_check(self, fault: Fault) -> FiredFault:
        """Before the training: the first pod that runs is checked in vain."""
        name, pod = await self._pods.first_running(fault)
        moment = time.time()
        record = await self._judgement(name, pod, replace(fault, seconds=CHECK_S), CHECK_S)
        if record.reason not in (Reason.START_FAILED, Reason.HARDWARE):
            raise NotFiredError(f"no node was found faulty: {mention_of(record)}")
        return FiredFault(fault.kind, name, moment, f"its measurements were killed; {mention_of(record)}")

    async def _judgement(self, name: str, pod: Pod, fault: Fault, seconds: float) -> FaultJudged | NodeLost:
        """What the job thinks of a node in whose pod a program does it, whose connection may end with that. Raises
        NotFiredError, KubeError: the program's own error."""
        executing = asyncio.create_task(self._execute(pod, fault))
        waiting = asyncio.create_task(self._progress.wait_for_record(name, time.time(), seconds, FaultJudged, NodeLost))
        try:
            await asyncio.wait((executing, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and (error := executing.exception()):
                await asyncio.wait((waiting,), timeout=END_SEEN_S)
                if not waiting.done():
                    raise error
            return await waiting
        finally:
            for task in (executing, waiting):
                task.cancel()
            await asyncio.gather(executing, waiting, return_exceptions=True)

    async def _cut_off(self, fault: Fault) -> FiredFault:
        name, pod = await self._pods.victim(fault)
        cut = await self._beside.cut(pod, fault, self._progress.state().address)
        evidence = f"in pod {pod['metadata']['name']}, {cut.evidence} for {cut.ended - cut.began:.0f} s"
        return FiredFault(fault.kind, name, cut.began, evidence)

    async def _lose_store(self, fault: Fault) -> FiredFault:
        """The step and all its nodes lose it, within a few seconds of each other."""
        uri = self._progress.store.uri
        if not is_s3_uri(uri):
            raise NotPossibleError(
                f"{uri} is a folder of the pods: only a store that is reached by network can be lost"
            )
        nodes = [pod for pod in (await self._pods.by_node()).values() if pod["status"].get("phase") == "Running"]
        pods = [*await self._step_pods(), *nodes]
        cuts: list[Cut] = []
        for done in await asyncio.gather(*(self._beside.cut(pod, fault, uri) for pod in pods), return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
            cuts.append(done)
        first, last = min(cut.began for cut in cuts), max(cut.began for cut in cuts)
        if last >= first + fault.seconds:
            raise NotFiredError(f"some pods had the store again before others lost it, {last - first:.0f} s later")
        evidence = f"in {len(cuts)} pods, {cuts[0].evidence} for {fault.seconds:g} s, {last - first:.1f} s apart"
        return FiredFault(fault.kind, "", first, evidence)

    async def _end_container(self, fault: Fault) -> FiredFault:
        name, pod = await self._pods.victim(fault)
        moment = time.time()
        try:
            await self._api.execute(pod["metadata"]["name"], AGENT_CONTAINER, END_FIRST_PROCESS, SEEN_S)
        except KubeError as error:  # The connection may end with the container.
            if error.status not in (0, HTTPStatus.UNPROCESSABLE_ENTITY):
                raise
        await self._pods.wait_until_going(pod)
        return FiredFault(fault.kind, name, moment, f"the container of pod {pod['metadata']['name']} was ended")
