"""`workflow.*`: the variables that every template may read, and the outputs exported by globalName."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from everstep.runtime.workflow.engine.nodes import Node, NodeType, pod_name
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.engine.scope import Scope, argo_time
from everstep.runtime.workflow.engine.template_call import Call, config_map_value, parameters_json
from everstep.runtime.workflow.expressions import ExpressionError, evaluate
from everstep.runtime.workflow.expressions.tags import FUNCTIONS
from everstep.runtime.workflow.expressions.values import go_json, parameter_text
from everstep.runtime.workflow.manifest.fields import label_of_reference, list_at

STRFTIME = "ABHIMSYZabdmpyz"
"""Letters of strftime for which `workflow.creationTimestamp.LETTER` exists ("Workflow Variables")."""
_RESULT = re.compile(r"""(?:steps|tasks)(?:\.([-\w]+)|\[(?:'|\\")?([-\w]+)(?:'|\\")?\])\.outputs\.result""")
_SUFFIX = re.compile(r"\(\d+(?::.*)?\)$", re.DOTALL)


class Variables:
    """The workflow variables of one run."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine
        self.wrong = ""
        """Why the workflow's parameters cannot be resolved; empty if they can."""
        self.outputs: dict[str, dict[str, Any]] = {}
        """Global output parameters by name, as Argo lists them in status.outputs."""
        self.artifacts: dict[str, dict[str, Any]] = {}
        """Global output artifacts by dotted name."""
        self._exported: Scope = {}
        self.labels: dict[str, str] = {}
        """Labels from the expressions of workflowMetadata.labelsFrom."""
        self._fixed = self._fixed_scope()
        self._read: dict[str, set[str]] = {}
        """By DAG or Steps node: the tasks whose result its template reads."""

    def _fixed_scope(self) -> Scope:
        engine = self._engine
        manifest, metadata = engine.state.manifest, engine.state.manifest.raw.get("metadata") or {}
        spec = manifest.spec
        scope: Scope = {
            "workflow.name": engine.state.name, "workflow.uid": engine.state.uid,
            "workflow.namespace": str(metadata.get("namespace") or "default"),
            "workflow.mainEntrypoint": str(spec.get("entrypoint") or ""),
            "workflow.serviceAccountName": str(spec.get("serviceAccountName") or "default"),
            "workflow.status": "", "workflow.creationTimestamp": argo_time(engine.state.created),
            "workflow.creationTimestamp.RFC3339": argo_time(engine.state.created),
            "workflow.creationTimestamp.s": str(int(engine.state.created)), "workflow.creationTimestamp.L": ".000",
        }  # fmt: skip
        created_at = datetime.fromtimestamp(int(engine.state.created), UTC)
        scope |= {f"workflow.creationTimestamp.{letter}": created_at.strftime(f"%{letter}") for letter in STRFTIME}
        if spec.get("priority") is not None:
            scope["workflow.priority"] = str(spec["priority"])
        more = spec.get("workflowMetadata") or {}
        for kind in ("labels", "annotations"):
            own = label_of_reference(manifest.raw.get("spec")) if kind == "labels" else {}
            values = {**own, **(metadata.get(kind) or {}), **(more.get(kind) or {})}
            scope[f"workflow.{kind}"] = scope[f"workflow.{kind}.json"] = go_json(values)
            scope |= {f"workflow.{kind}.{name}": str(value) for name, value in values.items()}
        scope |= self._parameter_scope(list_at(spec, "arguments", "parameters"), scope)
        return scope | self._evaluate_labels(more.get("labelsFrom") or {}, scope)

    def _evaluate_labels(self, label_sources: Mapping[str, Any], scope: Scope) -> Scope:
        """Evaluate the labels of the workflow that expressions give."""
        labels: Scope = {}
        for name, source in label_sources.items():
            text = str(source.get("expression"))
            try:
                value = evaluate(text, scope, FUNCTIONS)
            except ExpressionError as error:
                self.wrong = f'failed to evaluate label "{name}" expression "{text}": {error}'
                continue
            if not isinstance(value, str):
                self.wrong = f'failed to evaluate label "{name}" expression "{text}": must be a string'
            else:
                self.labels[name] = labels[f"workflow.labels.{name}"] = value
        return labels

    def _parameter_scope(self, entries: list[Mapping[str, Any]], source_scope: Scope) -> Scope:
        filled_entries, scope = [], Scope()
        for entry in entries:
            value, source = entry.get("value"), entry.get("valueFrom") or {}
            if value is None and source.get("configMapKeyRef"):
                try:
                    value = config_map_value("", source, source_scope, self._engine.state.manifest.library)
                except ExpressionError as error:
                    reference, why = source["configMapKeyRef"], str(error).partition("from ConfigMap: ")[2]
                    self.wrong = (
                        f"failed to set global parameters: failed to set global parameter {entry['name']} from "
                        f"configmap with name {reference.get('name')} and key {reference.get('key')}: {why}"
                    )
            filled_entries.append({**entry, "value": parameter_text(value)})
            scope[f"workflow.parameters.{entry['name']}"] = parameter_text(value)
        scope["workflow.parameters"] = scope["workflow.parameters.json"] = parameters_json(filled_entries)
        return scope

    @property
    def namespace(self) -> str:
        """The workflow's namespace."""
        return str(self._fixed["workflow.namespace"])

    def global_scope(self, now: float) -> Scope:
        """The scope of every template at `now`."""
        return {**self._fixed, **self._exported, **self._engine.root.status_scope(now)}

    def arguments(self) -> dict[str, Any]:
        """The workflow's arguments, as the entrypoint gets them."""
        arguments_of_entry = self._engine.state.manifest.spec.get("arguments") or {}
        parameters = [
            {"name": entry["name"], "value": self._fixed.get(f"workflow.parameters.{entry['name']}", "")}
            for entry in list_at(arguments_of_entry, "parameters")
        ]
        return {"parameters": parameters, "artifacts": list_at(arguments_of_entry, "artifacts")}

    def pod_name(self, call: Call) -> str:
        """Name of the pod that a call would make."""
        return pod_name(self._engine.state.name, call.name, str(call.template.get("name") or ""))

    def export(self, node: Node) -> None:
        """Make outputs with a globalName outputs of the workflow."""
        for entry in node.outputs.parameters:
            name = entry.get("globalName")
            if name and entry.get("value") is not None:
                self.outputs[name] = {"name": name, "value": entry["value"]}
                self._exported[f"workflow.outputs.parameters.{name}"] = entry["value"]
        for entry in node.outputs.artifacts:
            if entry.get("globalName"):
                self.artifacts[f"workflow.outputs.artifacts.{entry['globalName']}"] = entry

    def failures(self) -> str:
        """`workflow.failures`: the failed nodes as JSON, quoted."""
        engine = self._engine
        failed_nodes = [
            {
                "displayName": node.display_name,
                "message": node.message,
                "templateName": node.template,
                "phase": node.phase.value,
                "podName": pod_name(engine.state.name, node.name, node.pod_template)
                if node.type is NodeType.POD
                else node.name,
                "finishedAt": argo_time(node.finished),
            }
            for node in engine.state.nodes.values()
            if node.phase.bad and not engine.state.in_exit_handler(node)
        ]
        return json.dumps(go_json(failed_nodes or None, sort_keys=False), ensure_ascii=False)

    def is_result_read(self, node: Node) -> bool:
        """Whether another node reads its standard output; as Argo does it, by the text of the template around it."""
        boundary = self._engine.state.nodes.get(node.boundary)
        if boundary is None:
            return False
        read = self._read.get(boundary.name)
        if read is None:
            text = go_json(boundary.spec)
            read = self._read[boundary.name] = {dotted or indexed for dotted, indexed in _RESULT.findall(text)}
        name = re.sub(r"^(?:\[\d+\])?\.", "", node.name.removeprefix(boundary.name))
        return _SUFFIX.sub("", _SUFFIX.sub("", name)) in read
