"""The rules of single fields that Argo's server checks before it takes a workflow: names, duplicates, enums, numbers.

After Argo's validation of 4.1; what refers to something else is in `validate`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep.runtime.workflow.manifest.schema import Problem, Where
from everstep.runtime.workflow.manifest.yaml_source import ReadError, read_text

WORKFLOW_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
FIELD_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,127}")
IO_NAME = re.compile(r"[-A-Za-z0-9_]+")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
METRIC_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
KINDS = ("container", "containerSet", "steps", "script", "resource", "dag", "suspend", "data", "http", "plugin")
"""The kinds of templates, by the field that a template has."""
LEAVES = ("container", "containerSet", "script", "resource", "suspend", "data", "http", "plugin")
PODS = ("container", "containerSet", "script")
PROCESSES = (*PODS, "http", "data")
"""Kinds that run as processes and end by themselves."""
POLICIES = ("Always", "OnFailure", "OnError", "OnTransientError")
POD_GC = ("", "OnPodCompletion", "OnPodSuccess", "OnWorkflowCompletion", "OnWorkflowSuccess")
ADDRESSING = ("path", "virtual-hosted")
ACTIONS = ("get", "create", "apply", "delete", "replace", "patch")
RESERVED = ("wait", "init")
_IO_RULE = "use letters, digits, - and _"
_NAME_RULE = "use letters, digits and -, at most 128, a letter or digit first"


def kind_of(template: Mapping[str, Any]) -> str:
    """Which of KINDS a template is; empty when it is none."""
    return next((kind for kind in KINDS if kind in template and template[kind] is not None), "")


def list_at(holder: Any, *keys: str) -> list[Any]:
    """The list at that path below a mapping; empty where there is none."""
    for key in keys:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, list) else []


def mapping_at(holder: Any, *keys: str) -> Mapping[str, Any]:
    """The mapping at that path below a mapping; empty where there is none."""
    for key in keys:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, Mapping) else {}


def label_of_reference(spec: Any) -> dict[str, str]:
    """The label by which Argo 4.1 marks a workflow that its workflowTemplateRef defines; empty without one."""
    reference = mapping_at(spec, "workflowTemplateRef")
    kind = "cluster-workflow-template" if reference.get("clusterScope") else "workflow-template"
    return {f"workflows.argoproj.io/{kind}": str(reference["name"])} if reference.get("name") else {}


def metadata_problems(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of the workflow's name and labels."""
    name = str(metadata.get("name") or "")
    if name and not WORKFLOW_NAME.fullmatch(name):
        yield Problem(
            ("metadata", "name"), f"{name!r} is not a valid name; use a-z, 0-9, - and ., a letter or digit at both ends"
        )
    if len(name) > 63:
        yield Problem(("metadata", "name"), f"has {len(name)} characters; at most 63 are allowed")
    for key, value in (metadata.get("labels") or {}).items():
        if not LABEL_VALUE.fullmatch(str(value)) or len(str(value)) > 63:
            message = f"{value!r} is not a valid label value; use letters, digits, -, _ and ."
            yield Problem(("metadata", "labels", key), message, only="cluster")


def argument_problems(arguments: Any, where: Where) -> Iterator[Problem]:
    """Problems of the arguments of a workflow or task."""
    for kind in ("parameters", "artifacts"):
        yield from name_problems(list_at(arguments, kind), (*where, kind), IO_NAME, _IO_RULE)
    for index, entry in enumerate(list_at(arguments, "parameters")):
        here = (*where, "parameters", index)
        if entry.get("value") is None and entry.get("valueFrom") is None:
            yield Problem(here, f"{entry.get('name')} needs a value or a valueFrom")
        source = entry.get("valueFrom") or {}
        if wrong := sorted(set(source) - {"default", "configMapKeyRef", "supplied"}):
            yield Problem((*here, "valueFrom", wrong[0]), "an argument takes its value from configMapKeyRef only")
        if "enum" in entry and not entry["enum"]:
            yield Problem((*here, "enum"), "is empty; list the allowed values")
        elif entry.get("enum") and entry.get("value") is not None and entry["value"] not in entry["enum"]:
            yield Problem(
                (*here, "value"), f"{entry['value']!r} is not in its enum: {', '.join(map(str, entry['enum']))}"
            )
    for index, entry in enumerate(list_at(arguments, "artifacts")):
        here = (*where, "artifacts", index)
        if entry.get("from") and entry.get("fromExpression"):
            yield Problem(here, "has both from and fromExpression; keep one")
        elif not entry.get("from") and not entry.get("fromExpression") and not has_location(entry):
            yield Problem(here, f"{entry.get('name')} needs a from, a location (raw, s3, http...) or a key")


def hook_problems(holder: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    """Problems of the hooks of a workflow or step."""
    for name, hook in (holder.get("hooks") or {}).items():
        if name != "exit" and not hook.get("expression"):
            yield Problem((*where, "hooks", name), "needs an expression; only the hook named exit has none")


def _addressing_problems(holder: Any, where: Where) -> Iterator[Problem]:
    """Problems of how artifacts' S3 stores are addressed."""
    for side in ("inputs", "outputs"):
        for index, entry in enumerate(list_at(holder, side, "artifacts")):
            style = mapping_at(entry, "s3").get("addressingStyle")
            if style and style not in ADDRESSING:
                here = (*where, side, "artifacts", index, "s3", "addressingStyle")
                yield Problem(here, f"{style} is not one of {', '.join(ADDRESSING)}")


def has_location(artifact: Mapping[str, Any]) -> bool:
    """Whether the artifact says where its bytes are, other than by a `from`."""
    places = ("raw", "s3", "http", "git", "gcs", "azure", "oss", "hdfs", "artifactory", "plugin")
    return any(artifact.get(place) for place in places)


def name_problems(entries: Sequence[Any], where: Where, pattern: re.Pattern[str], rule: str) -> Iterator[Problem]:
    """Problems of names: missing, malformed or repeated."""
    names_seen: set[str] = set()
    for index, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        here = (*where, index)
        if not name:
            yield Problem(here, "needs a name")
        elif not pattern.fullmatch(str(name)):
            yield Problem((*here, "name"), f"{name!r} is not a valid name here; {rule}")
        elif name in names_seen:
            yield Problem((*here, "name"), f"{name!r} appears twice")
        names_seen.add(str(name))


def task_name_problems(entries: Sequence[Any], where: Where) -> Iterator[Problem]:
    """Problems of the names of a DAG's tasks, or of a group's steps."""
    yield from name_problems(entries, where, FIELD_NAME, _NAME_RULE)


def template_name_problems(templates: Sequence[Any], where: Where) -> Iterator[Problem]:
    """Problems of the templates' names."""
    yield from name_problems(templates, where, FIELD_NAME, _NAME_RULE)


def template_problems(template: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    """Problems of one template by itself."""
    kind = kind_of(template)
    kinds = [field for field in KINDS if template.get(field) is not None]
    if len(kinds) > 1:
        yield Problem(where, f"has {' and '.join(kinds)}; a template is one of them")
    if not kind:
        yield Problem(where, f"has no type; give it one of {', '.join(KINDS)}")
        return
    yield from _input_problems(template, kind, where)
    yield from _output_problems(template, kind, where)
    yield from _limit_problems(template, kind, where)
    policy = (template.get("retryStrategy") or {}).get("retryPolicy")
    if policy and policy not in POLICIES:
        yield Problem((*where, "retryStrategy", "retryPolicy"), f"{policy} is not one of {', '.join(POLICIES)}")
    yield from _metric_problems(template, where)
    yield from _addressing_problems(template, where)
    if kind in ("container", "script"):
        yield from _container_problems(template[kind], (*where, kind))
    if kind == "resource":
        yield from _resource_problems(template[kind], (*where, kind))
    if kind == "containerSet":
        yield from _container_set_problems(template, where)
    for more in ("initContainers", "sidecars"):
        for index, container in enumerate(list_at(template, more)):
            if not container.get("name") and more == "initContainers":
                yield Problem((*where, more, index), "needs a name")
            if container.get("name") in RESERVED[:1]:
                yield Problem(
                    (*where, more, index, "name"), f"{container['name']} is the name of one of Argo's own containers"
                )


def _input_problems(template: Mapping[str, Any], kind: str, where: Where) -> Iterator[Problem]:
    inputs = template.get("inputs") or {}
    for what in ("parameters", "artifacts"):
        yield from name_problems(list_at(inputs, what), (*where, "inputs", what), IO_NAME, _IO_RULE)
    for index, entry in enumerate(list_at(inputs, "parameters")):
        if "enum" in entry and entry["enum"] is not None and not entry["enum"]:
            yield Problem((*where, "inputs", "parameters", index, "enum"), "is empty; list the allowed values")
    places_taken: dict[str, str] = {}
    for index, entry in enumerate(list_at(inputs, "artifacts")):
        here, path = (*where, "inputs", "artifacts", index), str(entry.get("path") or "")
        yield from _artifact_path_problems(entry, kind, here)
        if kind == "container" and path and path in places_taken:
            yield Problem((*here, "path"), f"{path} is already the path of {places_taken[path]}")
        places_taken[path] = str(entry.get("name"))


def _artifact_path_problems(entry: Mapping[str, Any], kind: str, here: Where) -> Iterator[Problem]:
    path = str(entry.get("path") or "")
    if kind in PODS and not path:
        yield Problem(here, f"{entry.get('name')} needs a path")
    if kind not in PODS and path:
        yield Problem((*here, "path"), "has no effect without a container")
    if ".." in path.split("/"):
        yield Problem((*here, "path"), f"{path} leaves its folder by ..")


def _output_problems(template: Mapping[str, Any], kind: str, where: Where) -> Iterator[Problem]:
    outputs = template.get("outputs") or {}
    for what in ("parameters", "artifacts"):
        yield from name_problems(list_at(outputs, what), (*where, "outputs", what), IO_NAME, _IO_RULE)
        for index, entry in enumerate(list_at(outputs, what)):
            name = str(entry.get("globalName") or "")
            if name and not IO_NAME.fullmatch(name) and "{{" not in name:
                yield Problem(
                    (*where, "outputs", what, index, "globalName"), f"{name!r} is not a valid name; {_IO_RULE}"
                )
    for index, entry in enumerate(list_at(outputs, "parameters")):
        yield from _output_parameter_problems(entry, kind, (*where, "outputs", "parameters", index))
    for index, entry in enumerate(list_at(outputs, "artifacts")):
        if kind in PODS:
            yield from _artifact_path_problems(entry, kind, (*where, "outputs", "artifacts", index))
        elif entry.get("path"):
            yield Problem((*where, "outputs", "artifacts", index, "path"), "has no effect without a container")


def _output_parameter_problems(entry: Mapping[str, Any], kind: str, here: Where) -> Iterator[Problem]:
    source = entry.get("valueFrom")
    if source is not None and entry.get("value") is not None:
        yield Problem(here, "has both value and valueFrom; keep one")
    if source is None:
        if entry.get("value") is None:
            yield Problem(here, "needs a valueFrom")
        return
    kinds = ("path", "jqFilter", "jsonPath", "parameter", "supplied", "expression", "event", "configMapKeyRef")
    ways = [way for way in kinds if source.get(way) is not None]
    if not ways:
        yield Problem((*here, "valueFrom"), "has no source; give it a path, a parameter or an expression")
    elif len(ways) > 1:
        yield Problem((*here, "valueFrom"), f"has {' and '.join(ways)}; keep one")
    elif kind in PODS and "path" not in ways:
        yield Problem((*here, "valueFrom"), "needs a path: the file that the container writes")
    elif kind in ("steps", "dag") and not {"parameter", "expression"} & set(ways):
        yield Problem((*here, "valueFrom"), "needs a parameter or an expression: of one of its own tasks or steps")


def _limit_problems(template: Mapping[str, Any], kind: str, where: Where) -> Iterator[Problem]:
    if template.get("parallelism") is not None and kind not in ("steps", "dag"):
        yield Problem((*where, "parallelism"), "is allowed only in steps and dag templates")
    deadline = template.get("activeDeadlineSeconds")
    if deadline is not None:
        if kind not in LEAVES:
            yield Problem(
                (*where, "activeDeadlineSeconds"),
                "is not allowed in steps and dag templates; set it in the templates they run",
            )
        elif "{{" not in str(deadline) and not re.fullmatch(r"0*[1-9]\d*", str(deadline)):
            yield Problem((*where, "activeDeadlineSeconds"), f"{deadline!r} is not a whole number of seconds above 0")
    yield from _pod_limit_problems(template, kind, where)
    timeout = template.get("timeout")
    if timeout:
        if kind in ("steps", "dag"):
            message = "is not allowed in steps and dag templates; set it in the templates they run"
            yield Problem((*where, "timeout"), message)
        elif str(timeout).isdigit():
            yield Problem((*where, "timeout"), f"{timeout!r} has no unit; write {timeout}s")


def _pod_limit_problems(template: Mapping[str, Any], kind: str, where: Where) -> Iterator[Problem]:
    """Of the fields of 4.1 that mean something only where there is a pod."""
    if template.get("pendingTimeout") and kind in ("steps", "dag", "suspend"):
        yield Problem((*where, "pendingTimeout"), f"is not allowed in {kind} templates, which make no pod")
    if template.get("resourceClaims") and kind in ("steps", "dag", "suspend", "http"):
        yield Problem((*where, "resourceClaims"), f"is not allowed in {kind} templates, which make no pod")


def _resource_problems(resource: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    if resource.get("action") not in ACTIONS:
        yield Problem((*where, "action"), f"{resource.get('action')!r} is not one of {', '.join(ACTIONS)}")
    if not resource.get("manifest") and not resource.get("manifestFrom"):
        if resource.get("action") not in ("get", "delete", "patch"):
            yield Problem(where, "needs a manifest or a manifestFrom")
    elif resource.get("manifest") and "{{" not in resource["manifest"]:
        try:
            read_text(resource["manifest"])
        except ReadError as error:
            yield Problem((*where, "manifest"), str(error))


def _metric_problems(template: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    for index, metric in enumerate(list_at(template, "metrics", "prometheus")):
        here = (*where, "metrics", "prometheus", index)
        if not METRIC_NAME.fullmatch(str(metric.get("name") or "")):
            yield Problem(
                (*here, "name"), f"{metric.get('name')!r} is not a valid metric name; use letters, digits and _"
            )
        if not metric.get("help"):
            yield Problem(here, "needs a help")
        kinds = [kind for kind in ("gauge", "counter", "histogram") if metric.get(kind) is not None]
        if len(kinds) != 1:
            yield Problem(here, "needs one of gauge, counter and histogram")
        elif not isinstance(metric[kinds[0]], Mapping) or not str(metric[kinds[0]].get("value") or ""):
            yield Problem((*here, kinds[0]), "needs a value")


def _container_problems(container: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    if not container.get("image"):
        yield Problem(where, "needs an image")
    places_taken: set[str] = set()
    for index, mount in enumerate(list_at(container, "volumeMounts")):
        path = str(mount.get("mountPath") or "")
        if path in places_taken:
            yield Problem((*where, "volumeMounts", index, "mountPath"), f"{path} appears twice")
        places_taken.add(path)


def _container_set_problems(template: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    containers = list_at(template, "containerSet", "containers")
    here = (*where, "containerSet", "containers")
    if not containers:
        yield Problem(here, "is empty")
        return
    names = [str(container.get("name") or "") for container in containers]
    outputs = template.get("outputs") or {}
    inputs = template.get("inputs") or {}
    if (
        list_at(outputs, "parameters") or list_at(outputs, "artifacts") or list_at(inputs, "artifacts")
    ) and "main" not in names:
        yield Problem(here, "one must be named main, as there are inputs or outputs")
    yield from name_problems(containers, here, FIELD_NAME, _NAME_RULE)
    needs = {name: set(container.get("dependencies") or []) for name, container in zip(names, containers, strict=True)}
    for index, container in enumerate(containers):
        if names[index] in RESERVED:
            yield Problem((*here, index, "name"), f"{names[index]} is the name of one of Argo's own containers")
        for need in container.get("dependencies") or []:
            if need not in names:
                yield Problem((*here, index, "dependencies"), f"there is no container {need}")
    if cycle := cyclic_names(needs):
        yield Problem(here, f"{', '.join(sorted(cycle))} wait for each other")


def cyclic_names(needs: Mapping[str, set[str]]) -> set[str]:
    """Names that can never begin, as they wait for each other. A need that is not a key counts as done."""
    waiting = {name: {need for need in pending_needs if need in needs} for name, pending_needs in needs.items()}
    followers: dict[str, list[str]] = {name: [] for name in needs}
    for name, pending_needs in waiting.items():
        for need in pending_needs:
            followers[need].append(name)
    ready = [name for name, pending_needs in waiting.items() if not pending_needs]
    cycle = set(needs)
    while ready:
        name = ready.pop()
        cycle.discard(name)
        for follower in followers[name]:
            waiting[follower].discard(name)
            if not waiting[follower]:
                ready.append(follower)
    return cycle
