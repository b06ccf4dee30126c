"""The check of the machines that can train: pods as the training's, one a machine, made through the same platform.

The step's pod coordinates. Each try of the step makes pods of its own; they end with their coordinator, but for those
that are held for the training (see `hold`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.check.config import Config
from everstep.steps.check.hold import PodHold
from everstep.steps.entry import StepError

if TYPE_CHECKING:
    from everstep.runtime.diagnosis.coordinator import Coordinator
    from everstep.runtime.diagnosis.evidence import Round
    from everstep.runtime.diagnosis.report import Place
    from everstep.runtime.diagnosis.verdicts import Verdict
    from everstep.runtime.job.spec import Resources as NodeResources
    from everstep.runtime.platform import NodeEnd
    from everstep.runtime.platform.kubernetes import Access, KubernetesPlatform

MODULE = "everstep.runtime.diagnosis.pod_node"
HOST_TOPOLOGY = "kubernetes.io/hostname"
STEP = "everstep/step"
"""Label of each step's template."""
Resources = Mapping[str, Mapping[str, Any]]
"""`requests` and `limits` of a container."""
START_S = 300.0
"""How long the pods may take to start; those that come later are not checked."""
LAST_PLACED_S = 10.0
"""The check begins once no machine has room for the missing pods and no pod has started for this long."""
SPARE_S = 3.0
"""The same when the nodes are there and only spare ones are missing."""
LOOK_S = 1.0
DISMISS_S = 10.0


class MachineCheck(NamedTuple):
    """What a check of machines found."""

    verdicts: "list[Verdict]"
    rounds: "list[Round]"
    places: "Mapping[str, Place]" = {}  # noqa: RUF012
    """Of the machines."""
    unchecked: Mapping[str, str] = {}
    """Machines that had a pod of the check and got no verdict, and why. They may be fit."""

    def needed_count(self, min_nodes: int) -> int:
        """How many must be usable for `min_nodes` nodes of the training, of which several may share a machine."""
        return min(min_nodes, len(self.verdicts) + len(self.unchecked))


async def check_machines(
    config: Config,
    pod: str,
    access: "Access",
    say: Callable[[str], None],
    on_round: "Callable[[Round], None]",
    look_s: float = LOOK_S,
) -> MachineCheck:
    """Check the machines of the pods that start; a verdict's host is the machine. `say` gets lines for the log.

    Raises StepError if no pod starts, KubeError.
    """
    from everstep.runtime.diagnosis.coordinator import Coordinator
    from everstep.runtime.diagnosis.http_link import serve_coordinator
    from everstep.runtime.net.tls import credentials_of
    from everstep.runtime.net.token_gate import TokenGate, listen
    from everstep.runtime.platform.kubernetes import KubeApi, KubernetesPlatform, owner_of, template_of
    from everstep.runtime.platform.kubernetes.platform import shared_token

    rounds: list[Round] = []

    def record(round_: "Round") -> None:
        rounds.append(round_)
        on_round(round_)

    coordinator = Coordinator(timeout_s=config.timeout, exclude_straggler=config.exclude_straggler, on_round=record)
    async with KubeApi(access) as api:
        own = await api.own_pod(pod)
        owner, address = owner_of(own), own["status"]["podIP"]
        job = f"{owner.uid}-{config.task}-{own['metadata']['uid'][:8]}"
        credentials = credentials_of(await shared_token(api, job, owner), job, tls=True)
        workflow = await api.retry(lambda: api.get("workflows", owner.name))
        pod_hold = PodHold(api, owner, f"{owner.uid}-{config.training}", config.hold_s if config.training else 0.0, say)
        template = pod_hold.template_of(node_template(template_of(own), workflow, job))
        await pod_hold.begin()
        listener = listen(address, 0)
        place = f"[{address}]" if ":" in address else address
        async with (
            serve_coordinator(coordinator, listener, TokenGate(credentials)),
            KubernetesPlatform(api, job, owner, template, say=say) as platform,
        ):
            check = _Check(
                config, platform, coordinator, job, f"{place}:{listener.getsockname()[1]}", look_s, pod_hold, say
            )
            machines = await check.run()
            return machines._replace(rounds=rounds, places=pod_hold.places)


def node_template(step: Mapping[str, Any], workflow: Mapping[str, Any], job: str) -> dict[str, Any]:
    """The pods' spec: the check step's, with the requests and the placement of the workflow's training, one a machine.

    Without a training in the workflow the step's own.
    """
    from everstep.runtime.platform.kubernetes.pods import selector

    spec = {**(workflow.get("status") or {}).get("storedWorkflowTemplateSpec", {}), **workflow["spec"]}
    templates = spec.get("templates") or list(((workflow.get("status") or {}).get("storedTemplates") or {}).values())
    training, own_template = _template_of(templates, "train"), _template_of(templates, "check")
    own, main = step["containers"][0], training.get("container") or {}
    resources = own.get("resources") or {}
    if main.get("resources"):
        declared_resources = (own_template.get("container") or {}).get("resources")
        resources = (
            _with_changes(main["resources"], declared_resources, resources) if declared_resources else main["resources"]
        )
    name, _, digest = selector(job).partition("=")
    apart = [{"labelSelector": {"matchLabels": {name: digest}}, "topologyKey": HOST_TOPOLOGY}]
    affinity = {**step.get("affinity", {}), **training.get("affinity", {})}
    affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": apart}
    placement = {key: training[key] for key in ("nodeSelector", "tolerations") if key in training}
    variables_filled_in = [
        variable for variable in main.get("env") or () if "{{" not in str(variable.get("value"))
    ]  # Argo has filled in no other.
    variables = {variable["name"]: variable for variable in (*(own.get("env") or ()), *variables_filled_in)}
    mounts = [*(own.get("volumeMounts") or ()), *(main.get("volumeMounts") or ())]
    container = {**own, "resources": resources, "command": ["python", "-m", MODULE], "env": list(variables.values())}
    volumes = [*(step.get("volumes") or ()), *(training.get("volumes") or ())]
    spec = {**step, **placement, "affinity": affinity, "volumes": volumes}
    return {**spec, "containers": [{**container, "volumeMounts": mounts}]}


def _template_of(templates: Sequence[Mapping[str, Any]], step: str) -> Mapping[str, Any]:
    """The first template of that step; empty: there is none."""
    labels = (((template.get("metadata") or {}).get("labels") or {}, template) for template in templates)
    return next((template for labels_of_pod, template in labels if labels_of_pod.get(STEP) == step), {})


def _with_changes(
    needed_resources: Resources, declared_resources: Resources, actual: Resources
) -> dict[str, dict[str, Any]]:
    """The wanted resources, changed as the cluster changed the declared ones of this pod into the actual ones: it may
    have a podSpecPatch for all pods."""
    from everstep.runtime.job.spec_values import quantity

    resources = {kind: dict(needed_resources.get(kind) or {}) for kind in ("requests", "limits")}
    for kind, amounts in resources.items():
        before = {
            **(declared_resources.get("limits") or {}),
            **(declared_resources.get(kind) or {}),
        }  # The API adds missing requests.
        for name, amount in (actual.get(kind) or {}).items():
            if quantity(before.get(name, 0)) != quantity(amount):
                amounts[name] = amount
    return resources


def requested_resources(config: Config) -> "NodeResources":
    """What the largest role of the job spec requests for a node; nothing without a job spec. Raises StepError."""
    from everstep.runtime.job.spec import Resources
    from everstep.steps.train.config import Config as Train
    from everstep.steps.train.job import job_of

    if not config.job_spec:
        return Resources()
    roles = job_of(Train(job_spec=config.job_spec)).roles.values()
    return max(roles, key=lambda role: role.nodes).resources


class _Check:
    """One check: makes the pods, waits for those that start, and removes them."""

    def __init__(
        self,
        config: Config,
        platform: "KubernetesPlatform",
        coordinator: "Coordinator",
        job: str,
        address: str,
        look_s: float,
        pod_hold: PodHold,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._platform = platform
        self._coordinator = coordinator
        self._job = job
        self._address = address
        self._look_s = look_s
        self._held = pod_hold
        self._say = say
        self._gone: dict[str, NodeEnd] = {}
        """Nodes whose pods have ended."""
        self._hosts: dict[str, str] = {}
        """Node -> its machine, as far as pods are placed."""

    async def run(self) -> MachineCheck:
        """Check the machines; the rounds and places stand elsewhere."""
        await self._platform.observe()
        watching = asyncio.create_task(self._watch_ends())
        try:
            names = [f"check-{index}" for index in range(self._config.nodes + self._config.check_spare)]
            await self._create(names)
            came = await self._gather(names)
            machines = self._with_ends(await self._coordinator.check(came))
            await self._coordinator.wait_until_dismissed([name for name in came if name not in self._gone], DISMISS_S)
            needed = machines.needed_count(self._config.min_nodes)
            await self._held.hold(self._job, machines.verdicts, self._config.nodes, needed)
            return machines
        finally:
            watching.cancel()
            for node in await self._platform.observe():
                if node.name in self._held.nodes:
                    continue
                with suppress(OSError):  # They end without a coordinator, and with the workflow.
                    await self._platform.delete(node.name, node.uid)

    async def _create(self, names: Sequence[str]) -> None:
        from everstep.runtime.diagnosis.pod_node import node_arguments
        from everstep.runtime.diagnosis.switchbox import box_flags
        from everstep.runtime.platform import NodeRequest

        config, resources = self._config, requested_resources(self._config)
        box = box_flags(config.box_pairs, config.min_bandwidth, config.min_channels) if config.switchbox_check else []
        for name in names:
            arguments = node_arguments(self._address, name, box, self._held.training, self._held.hold_s)
            variables = {"EVERSTEP_JOB": self._job, "EVERSTEP_STORE": config.store}
            await self._platform.create(NodeRequest(name, "check", "", variables, arguments, resources))

    async def _watch_ends(self) -> None:
        async for end in self._platform.node_ends():
            self._gone[end.name] = end
            self._coordinator.mark_lost(end.name, end.reason)

    def _with_ends(self, verdicts: "Sequence[Verdict]") -> MachineCheck:
        """These verdicts, and those on machines whose pods ended by themselves before they were checked.

        Nothing is said of a machine whose pod had to go, or has not started in time: it may be fit.
        """
        from everstep.runtime.diagnosis.verdicts import Health, Verdict

        by_node = {verdict.node: verdict for verdict in verdicts}
        late = f"its pod did not start within {START_S:g} s"
        reasons = {name: late for name in self._hosts if name not in by_node}
        for name, end in self._gone.items():
            verdict, host = by_node.get(name), self._hosts.get(name, "")
            if verdict is not None and not (end.gave_way and verdict.reason == end.reason):
                continue
            if end.gave_way or end.exit_code is None or not host:
                by_node.pop(name, None)
                reasons[name] = end.reason
            else:
                by_node[name] = Verdict(name, host, Health.FAULTY, end.reason, True, None)
                reasons.pop(name, None)
        for name, reason in reasons.items():
            where = f"{name} on {self._hosts[name]}" if name in self._hosts else name
            self._say(f"{where} was not checked: {reason}")
        checked = {verdict.host for verdict in by_node.values()}
        by_host = {self._hosts[name]: reason for name, reason in reasons.items() if name in self._hosts}
        unchecked = {host: reason for host, reason in by_host.items() if host not in checked}
        return MachineCheck(list(by_node.values()), [], unchecked=unchecked)

    async def _gather(self, names: Sequence[str]) -> list[str]:
        """The nodes that have started. Raises StepError for none."""
        deadline, most_seen, since = time.monotonic() + START_S, -1, time.monotonic()
        while True:
            nodes_present = [name for name in names if name not in self._gone]
            missing = await self._coordinator.wait_for_arrivals(nodes_present, self._look_s, more_than=most_seen)
            now, came = time.monotonic(), [name for name in nodes_present if name not in missing]
            if len(came) > most_seen:
                most_seen, since = len(came), now
            placed = {node.name: node.host for node in await self._platform.observe() if node.host}
            self._hosts.update(placed)
            patience_s = SPARE_S if most_seen >= self._config.nodes else LAST_PLACED_S
            nobody_comes = most_seen > 0 and not missing & placed.keys() and now >= since + patience_s
            if not missing or nobody_comes or now >= deadline:
                break
        came = [name for name in came if name not in self._gone]
        if not came:
            why = "; ".join(f"{name}: {end.reason}" for name, end in self._gone.items()) or f"none in {START_S:g} s"
            raise StepError(f"no pod of the check started ({why})", ExitCode.TRY_AGAIN)
        return came
