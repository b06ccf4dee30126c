"""Outputs of DAG and steps templates: `valueFrom.parameter` and `valueFrom.expression` over their tasks."""

from collections.abc import Mapping
from typing import Any

from everstep.runtime.workflow.engine.nodes import Outputs
from everstep.runtime.workflow.engine.scope import Scope
from everstep.runtime.workflow.engine.template_call import Artifacts, find_artifact
from everstep.runtime.workflow.expressions import ExpressionError, evaluate
from everstep.runtime.workflow.expressions.tags import FUNCTIONS, tags
from everstep.runtime.workflow.expressions.values import go_text, parameter_text
from everstep.runtime.workflow.manifest.fields import list_at


def template_outputs(template: Mapping[str, Any], scope: Scope, artifacts: Artifacts) -> Outputs:
    """The outputs of a template whose tasks have succeeded. Raises ExpressionError in Argo's words."""
    outputs = Outputs([], [])
    for entry in list_at(template, "outputs", "parameters"):
        value = _parameter_value(entry.get("valueFrom") or {}, scope) if entry.get("value") is None else entry["value"]
        outputs.parameters.append({**entry, "value": parameter_text(value)} if value is not None else dict(entry))
    for entry in list_at(template, "outputs", "artifacts"):
        source = find_artifact(entry, scope, artifacts)
        if source is not None:
            outputs.artifacts.append({**source, "name": entry["name"], **_own_fields(entry)})
        elif not entry.get("optional"):
            raise ExpressionError(f"unable to resolve outputs.artifacts.{entry['name']}: {entry.get('from')}")
    return outputs


def _own_fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in ("globalName",) if key in entry}


def _parameter_value(source: Mapping[str, Any], scope: Scope) -> Any:
    try:
        if source.get("expression") is not None:
            result = evaluate(str(source["expression"]), scope, FUNCTIONS)
            return result if isinstance(result, str) else go_text(result)
        value = _resolve_reference(str(source.get("parameter") or ""), scope)
    except ExpressionError:
        if source.get("default") is None:
            raise
        return source["default"]
    return source.get("default") if value is None else value


def _resolve_reference(text: str, scope: Scope) -> Any:
    """The value of a reference: one tag and nothing else."""
    tag_names = tags(text)
    if len(tag_names) == 1 and text.strip() == f"{{{{{tag_names[0]}}}}}":
        if tag_names[0].startswith("="):
            raise ExpressionError(f'Unable to compile: "{tag_names[0][1:].strip()}"')
        name = tag_names[0].strip()
        if name in scope:
            return scope[name]
        raise ExpressionError(f'Unable to resolve: "{text}"')
    raise ExpressionError(f'Unable to resolve: "{text}"')
