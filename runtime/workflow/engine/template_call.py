"""A call of a template: inputs are filled from arguments, then tags are replaced, globals first and inputs second."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from everstep.runtime.workflow.engine.scope import Scope
from everstep.runtime.workflow.expressions import ExpressionError, dotted_paths, evaluate
from everstep.runtime.workflow.expressions.tags import FUNCTIONS, names_read, substitute, tags
from everstep.runtime.workflow.expressions.values import go_json, parameter_text
from everstep.runtime.workflow.manifest.fields import LEAVES, kind_of, list_at
from everstep.runtime.workflow.manifest.library import Library, MissingObjectError

FAIL_FAST = "template has failed or errored children and failFast enabled"
ARTIFACT_MARK = "artifact"
UNSHARED = ("path", "mode", "recurseMode", "optional", "globalName", "from", "fromExpression")
"""Fields of an artifact that are not passed on to the template that receives it."""
ABSENT = "inputs.parameters.{}: argument references an absent optional (skipped/omitted node output with no default)"
LOCATIONS = ("raw", "s3", "http", "git", "gcs", "azure", "oss", "hdfs", "artifactory", "plugin")
UNLISTABLE = ("raw", "http", "git")
"""Locations whose paths cannot be listed."""


NOTHING: Mapping[str, Any] = MappingProxyType({})
Artifacts = Mapping[str, Mapping[str, Any]]
"""Artifacts by dotted name."""


class ConfigMapError(ExpressionError):
    """The ConfigMap of a parameter, or its key, does not exist."""


class Call(NamedTuple):
    """A request to run a template."""

    name: str
    """Name of the node."""
    display_name: str
    template: Mapping[str, Any]
    arguments: Mapping[str, Any]
    """`parameters` and `artifacts`, as lists; a parameter without a value is an absent optional one."""
    boundary: str = ""
    owner: str = ""
    hooked: bool = False
    exits: bool = False
    """Whether it belongs to the exit handler, which deadlines and `Stop` do not end."""
    title: str | None = None
    """The template's name as the caller gives it; empty for a templateRef. None: the template's own name."""
    reference: Mapping[str, Any] = NOTHING
    """The caller's templateRef."""
    home: str = ""
    """The WorkflowTemplate in which the template's own calls find templates; empty: the workflow."""
    scope: Mapping[str, Any] = NOTHING
    """More values that its tags may read: retries, lastRetry."""


def prepare_template(call: Call, globals_: Scope, library: Library) -> dict[str, Any]:
    """The template with its inputs filled and its tags replaced. Raises ExpressionError in Argo's words."""
    template = dict(call.template)
    inputs = template.get("inputs") or {}
    parameters = [_fill_parameter(entry, call.arguments, globals_, library) for entry in list_at(inputs, "parameters")]
    artifacts = [_fill_artifact(entry, call.arguments) for entry in list_at(inputs, "artifacts")]
    template["inputs"] = {key: value for key, value in (("parameters", parameters), ("artifacts", artifacts)) if value}
    full_scope = {**globals_, **call.scope}
    template = substitute(template, full_scope)
    template = substitute(template, {**full_scope, **template_scope(template)})
    if kind_of(template) in LEAVES and tags(template):
        # Argo substitutes once more when it makes the pod: tags that an input brought in are replaced, too.
        again = substitute(template, full_scope)
        template = {**substitute(again, {**full_scope, **template_scope(again)}), "inputs": template["inputs"]}
    return template


def template_scope(template: Mapping[str, Any]) -> Scope:
    """`inputs.*`, and the paths of outputs."""
    parameters = list_at(template, "inputs", "parameters")
    scope: Scope = {f"inputs.parameters.{entry['name']}": parameter_text(entry.get("value")) for entry in parameters}
    scope["inputs.parameters"] = parameters_json(parameters)
    for side in ("inputs", "outputs"):
        for entry in list_at(template, side, "artifacts"):
            if entry.get("path"):
                scope[f"{side}.artifacts.{entry['name']}.path"] = entry["path"]
    for entry in list_at(template, "outputs", "parameters"):
        if path := (entry.get("valueFrom") or {}).get("path"):
            scope[f"outputs.parameters.{entry['name']}.path"] = path
    return scope


def parameters_json(entries: Sequence[Mapping[str, Any]]) -> str:
    """The list of parameters as JSON, fields in Argo's order."""
    order = ("name", "default", "value", "valueFrom", "globalName", "enum", "description")
    return go_json([{k: entry[k] for k in order if entry.get(k) is not None} for entry in entries], sort_keys=False)


def _fill_parameter(
    entry: Mapping[str, Any], arguments: Mapping[str, Any], globals_: Scope, library: Library
) -> dict[str, Any]:
    name = str(entry["name"])
    filled_entry = {key: parameter_text(value) if key == "default" else value for key, value in entry.items()}
    value = entry.get("value")
    value = entry.get("default") if value is None else value
    argument = next(
        (parameter for parameter in list_at(arguments, "parameters") if parameter.get("name") == name), None
    )
    source = entry.get("valueFrom")
    if argument is not None:
        if argument.get("value") is not None:
            value, source = argument["value"], None
        elif argument.get("valueFrom"):
            source = argument["valueFrom"]
        elif value is None and source is None:
            raise ExpressionError(ABSENT.format(name))
    reference = (source or {}).get("configMapKeyRef")
    if reference:
        value = config_map_value(f"inputs.parameters.{name}", source or {}, globals_, library)
    if value is None:
        raise ExpressionError(f"inputs.parameters.{name} was not supplied")
    return {**filled_entry, "value": parameter_text(value)}


def config_map_value(what: str, source: Mapping[str, Any], globals_: Scope, library: Library) -> Any:
    """The value at a configMapKeyRef, or the source's default. Raises ExpressionError."""
    reference = substitute(source["configMapKeyRef"], globals_)
    try:
        return library.parameter(str(reference.get("name")), str(reference.get("key")))
    except MissingObjectError as error:
        if source.get("default") is not None:
            return source["default"]
        raise ConfigMapError(f"unable to retrieve {what} from ConfigMap: {error}") from None


def _fill_artifact(entry: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    name = str(entry["name"])
    argument = next((artifact for artifact in list_at(arguments, "artifacts") if artifact.get("name") == name), None)
    if argument is not None:
        fields_kept = {key: entry[key] for key in ("path", "mode", "recurseMode", "optional") if key in entry}
        if not argument.get("from producer") and "archive" in entry:
            fields_kept["archive"] = entry["archive"]
        return {
            **{key: value for key, value in argument.items() if key != "from producer"},
            **fields_kept,
            "name": name,
        }
    if any(entry.get(place) for place in LOCATIONS) or entry.get("optional"):
        return dict(entry)
    raise ExpressionError(f"inputs.artifacts.{name} was not supplied")


def input_artifacts(template: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A template's own input artifacts, by dotted name."""
    return {f"inputs.artifacts.{entry['name']}": entry for entry in list_at(template, "inputs", "artifacts")}


def resolve_arguments(task: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """A task's arguments with their tags replaced; an argument that is only a tag of an absent output has no value.

    Raises ExpressionError when an expression fails, or when an absent output stands in a longer text.
    """
    arguments = task.get("arguments") or {}
    parameters = []
    for entry in list_at(arguments, "parameters"):
        filled_entry = dict(entry)
        if _is_only_absent(entry.get("value"), scope):
            filled_entry["value"] = None
        else:
            filled_entry = substitute(filled_entry, scope, strict=True)
        parameters.append(filled_entry)
    return {"parameters": parameters, "artifacts": list_at(arguments, "artifacts")}


def resolve_artifacts(task: Mapping[str, Any], scope: Scope, artifacts_at_hand: Artifacts) -> list[dict[str, Any]]:
    """A task's artifact arguments: what `from` and `fromExpression` name, or a location of their own.

    Raises ExpressionError when a required artifact does not exist.
    """
    artifacts = []
    for entry in list_at(task.get("arguments"), "artifacts"):
        if not entry.get("from") and not entry.get("fromExpression"):
            artifacts.append(substitute(entry, scope, strict=True))
            continue
        source = find_artifact(entry, scope, artifacts_at_hand)
        if source is None:
            if entry.get("optional"):
                continue
            raise ExpressionError(f'Unable to resolve: "{_artifact_reference(entry, scope)}"')
        path = substitute(str(entry.get("subPath") or ""), scope, strict=True)
        if path and source.get("s3"):
            source["s3"] = {**source["s3"], "key": f"{source['s3']['key'].rstrip('/')}/{path}"}
        artifacts.append({**source, "name": entry["name"], "from producer": True})
    return artifacts


def artifact_names_read(task: Mapping[str, Any]) -> set[str]:
    """The dotted names that a task's artifact arguments read."""
    entries = list_at(task.get("arguments"), "artifacts")
    names_in_entries = names_read(entries)
    for entry in entries:
        names_in_entries.add(_artifact_reference(entry, {}))
        if entry.get("fromExpression"):
            with suppress(ExpressionError):
                names_in_entries |= dotted_paths(str(entry["fromExpression"]))
    return names_in_entries


def find_artifact(entry: Mapping[str, Any], scope: Scope, artifacts_at_hand: Artifacts) -> dict[str, Any] | None:
    """The artifact that `from` or `fromExpression` names; None when it does not exist. Raises ExpressionError."""
    if entry.get("fromExpression"):
        environment = {**scope, **{name: {ARTIFACT_MARK: name} for name in artifacts_at_hand}}
        chosen_artifact = evaluate(str(entry["fromExpression"]), environment, FUNCTIONS)
        name = chosen_artifact.get(ARTIFACT_MARK, "") if isinstance(chosen_artifact, dict) else ""
    else:
        name = _artifact_reference(entry, scope)
    artifact = artifacts_at_hand.get(name)
    return {key: value for key, value in artifact.items() if key not in UNSHARED} if artifact is not None else None


def _artifact_reference(entry: Mapping[str, Any], scope: Scope) -> str:
    return str(substitute(str(entry.get("from") or ""), scope)).strip().removeprefix("{{").removesuffix("}}").strip()


def _is_only_absent(value: Any, scope: Scope) -> bool:
    if not isinstance(value, str) or not value.startswith("{{") or value.startswith("{{="):
        return False
    tag_names = tags(value)
    name = tag_names[0].strip() if tag_names else ""
    return len(tag_names) == 1 and value == f"{{{{{tag_names[0]}}}}}" and name in scope and scope[name] is None


def first_unset(value: Any, prefix: str) -> str:
    """The first name with that prefix that a tag still reads, artifacts aside; empty when there is none."""
    names = sorted(names_read(value))
    return next((name for name in names if name.startswith(prefix) and ".outputs.artifacts." not in name), "")
