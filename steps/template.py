"""From a step's config to its Hera template: every field is a flag, every flag an input parameter.

A template is a plain Hera `Container`; `StepTask` is a plain Hera `Task` on which an output parameter is an attribute.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hera.workflows import (
    Artifact,
    Container,
    EmptyDirVolume,
    NoneArchiveStrategy,
    Parameter,
    Resources,
    RetryStrategy,
    Task,
)
from hera.workflows import models as argo

from everstep.runtime.platform import STEP_LABEL
from everstep.runtime.submission.manifest import ACCOUNT, JOB_TOKEN
from everstep.version import IMAGE

OUTPUTS = "/tmp/outputs"
"""Where a pod's step leaves its outputs."""
COMMON_ARGUMENTS = {"store": "{{workflow.parameters.store}}", "run": "{{workflow.name}}", "outputs": OUTPUTS}
"""The fields that every config has, and their values in any workflow. The workflow has a parameter `store`."""
MACHINE_GONE = (
    "pod deleted",
    "imminent node shutdown",
    "The node was low on resource",
    "The node had condition",
    "ContainerStatusUnknown",
    "Unknown [(]exit code 255[)]",
)
"""What Argo says of a pod that ended with its machine: the kubelet's message if there is one ("Node-pressure Eviction"
and "Node Shutdowns" in Kubernetes' documentation), `pod deleted` if the pod is gone (Argo's documentation, "Retries"),
the last two of a machine that was switched on again."""
RETRIES = 3
RETRY = RetryStrategy(
    limit=1000,
    retry_policy="Always",
    expression=(
        f"asInt(lastRetry.exitCode) == 143 || lastRetry.message matches '{'|'.join(MACHINE_GONE)}' || "
        f"asInt(retries) < {RETRIES} && "
        "(lastRetry.status == 'Error' || !(asInt(lastRetry.exitCode) in [0, 1, 2, 3]))"
    ),
    backoff=argo.Backoff(duration="1", factor=argo.IntOrString(root=2), cap="60"),
)
"""Retry what is not the user's fault. A pod that was lost with its machine or asked to end (143: eviction, drain,
preemption) is always retried; one that failed otherwise only while there were fewer than 3 retries. Codes 1, 2 and 3
would repeat.

The expression counts, not the limit, which must be there: without one Argo does not wait for the backoff."""

POD_SECURITY = argo.PodSecurityContext(
    run_as_non_root=True,
    run_as_user=1000,
    fs_group=1000,
    seccomp_profile=argo.SeccompProfile(type="RuntimeDefault"),
)
SECURITY = argo.SecurityContext(allow_privilege_escalation=False, capabilities=argo.Capabilities(drop=["ALL"]))
"""Together these satisfy Kubernetes' restricted pod security standard."""


class StepTask(Task):
    """A Hera task; `task.uri` is `{{tasks.NAME.outputs.parameters.uri}}` for each output of its template."""

    def __rshift__(self, other: Any) -> Any:
        """`a >> b`: b runs after a."""
        return super().__rshift__(other)

    def __getattr__(self, name: str) -> str:
        template = self.__dict__.get("template")
        outputs = getattr(template, "outputs", None) or []
        if any(isinstance(output, Parameter) and output.name == name.replace("_", "-") for output in outputs):
            return f"{{{{tasks.{self.name}.outputs.parameters.{name.replace('_', '-')}}}}}"
        raise AttributeError(f"step {self.__dict__.get('name')} has no output {name}")


def step_template(
    step: str,
    config: type[Any],
    *,
    title: str,
    description: str,
    outputs: Sequence[str] = (),
    artifacts: Sequence[str] = (),
    fixed_values: Mapping[str, str] = {},
    cpu: float = 1,
    memory: str = "2Gi",
    shared_memory: str = "",
    deadline_s: int | None = None,
    account: str = "",
    has_token: bool = False,
    gauges: Mapping[str, str] = {},
    module: str = "",
    image: str = IMAGE,
) -> Container:
    """The template that runs `python -m everstep.steps.<step>`, or another `module`, with a flag for each field of
    `config`.

    `fixed_values` gives fields a value (or an Argo variable) instead of an input; `shared_memory` is the size of a
    /dev/shm. `account`: suffix of its service account's name, if the step needs rights that others must not have.
    `has_token`: on a cluster it gets the token of its job, once there is one. `gauges`: outputs that Argo exports as
    metrics where they are not empty, and what each is.
    """
    annotations = {"workflows.argoproj.io/title": title, "workflows.argoproj.io/description": description}
    annotations |= {ACCOUNT: account} if account else {}
    annotations |= {JOB_TOKEN: fixed_values["job"]} if has_token else {}
    defaults = {**COMMON_ARGUMENTS, **fixed_values}
    inputs = [
        Parameter(name=_flag(entry.name), default=str(entry.default), description=_one_line(config, entry.name))
        for entry in dataclasses.fields(config)
        if entry.name not in defaults
    ]
    arguments = [
        f"--{_flag(entry.name)}={defaults.get(entry.name, f'{{{{inputs.parameters.{_flag(entry.name)}}}}}')}"
        for entry in dataclasses.fields(config)
    ]
    files = [Parameter(name=_flag(name), value_from=argo.ValueFrom(path=f"{OUTPUTS}/{name}")) for name in outputs]
    files += [Artifact(name=_flag(_stem(n)), path=f"{OUTPUTS}/{n}", archive=NoneArchiveStrategy()) for n in artifacts]
    return Container(
        name=step,
        image=image,
        command=["python", "-m", module or f"everstep.steps.{step}"],
        args=arguments,
        inputs=inputs,
        outputs=files,
        annotations=annotations,
        labels={STEP_LABEL: step},
        resources=Resources(cpu_request=cpu, memory_request=memory, memory_limit=memory),
        retry_strategy=RETRY,
        active_deadline_seconds=deadline_s,
        metrics=[_gauge(step, output, what) for output, what in gauges.items()] or None,
        volumes=_shared_memory(shared_memory) if shared_memory else None,
        pod_security_context=POD_SECURITY,
        security_context=SECURITY,
    )


def _gauge(step: str, output: str, what: str) -> argo.Prometheus:
    value = f"{{{{outputs.parameters.{_flag(output)}}}}}"
    return argo.Prometheus(
        name=f"everstep_{step}_{output}",
        help=what,
        labels=[argo.MetricLabel(key="workflow", value="{{workflow.name}}")],
        when=f"'{value}' != ''",
        gauge=argo.Gauge(value=value, realtime=False),
    )


def _shared_memory(size: str) -> list[EmptyDirVolume]:
    return [
        EmptyDirVolume(
            name="shared-memory", mount_path="/dev/shm", medium="Memory", size_limit=argo.Quantity(root=size)
        )
    ]


def step_task(template: Container, name: str, arguments: Mapping[str, Any]) -> StepTask:
    """A task of that template; argument names are the config's fields."""
    inputs: Any = template.inputs or []
    input_names = {str(parameter.name) for parameter in inputs if isinstance(parameter, Parameter)}
    values = {"task": name} if name != template.name else {}
    values |= {_flag(key): str(value) for key, value in arguments.items()}
    if unknown := sorted(set(values) - input_names):
        raise TypeError(
            f"step {template.name} has no input {', '.join(unknown)}; it has {', '.join(sorted(input_names))}"
        )
    return StepTask(name=name, template=template, arguments=values)


def _flag(field: str) -> str:
    return field.replace("_", "-")


def _stem(name: str) -> str:
    return name.rsplit(".", 1)[0]


def _one_line(config: type[Any], field: str) -> str | None:
    """The first line of the string below the field in the dataclass's source, which is also its help."""
    from everstep.flags import field_help

    return field_help(config, field) or None
