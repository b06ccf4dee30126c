"""What ChaosBlade's operator and the API server do with its resources, in small.

The fields are those of its CustomResourceDefinition (chaosblade-operator, deploy/oss/crd.yaml); others are refused,
as a server does it that validates them strictly.
"""

from typing import Any

import msgspec


class Matcher(msgspec.Struct, forbid_unknown_fields=True):
    """A flag of the experiment."""

    name: str
    value: list[str]


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """What is done, to whom."""

    scope: str
    target: str
    action: str
    desc: str = ""
    matchers: list[Matcher] = []


class Spec(msgspec.Struct, forbid_unknown_fields=True):
    """All experiments of a resource."""

    experiments: list[Experiment]


class ChaosBlade(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The resource as it is sent."""

    api_version: str
    kind: str
    metadata: dict[str, Any]
    spec: Spec


class BladeOperator:
    """Acts on the resources: one look after it was created an experiment runs, two after its deletion it is gone."""

    def __init__(self, error: str = "", *, works: bool = True) -> None:
        """`error`: why it cannot do what is asked; without `works`, only the definition is installed."""
        self.resources: dict[str, dict[str, Any]] = {}
        self.experiments: list[Experiment] = []
        """All that were ever created."""
        self._error = error
        self._works = works

    def answer(self, method: str, name: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """(status, object)."""
        if method == "POST":
            return self._create(body)
        if name not in self.resources:
            return 404, {"message": f'chaosblades.chaosblade.io "{name}" not found'}
        resource = self.resources[name]
        if method == "DELETE":
            assert msgspec.json.decode(body)["preconditions"]["uid"] == resource["metadata"]["uid"]
            resource["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        elif resource["metadata"].get("deletionTimestamp"):
            del self.resources[name]
        else:
            self._act(resource)
        return 200, resource

    def _create(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            resource = msgspec.json.decode(body, type=ChaosBlade)
        except msgspec.ValidationError as error:
            return 422, {"message": str(error)}
        name = resource.metadata["name"]
        self.experiments += resource.spec.experiments
        self.resources[name] = msgspec.to_builtins(resource)
        self.resources[name]["metadata"] |= {"uid": f"u-{name}"}
        return 201, self.resources[name]

    def _act(self, resource: dict[str, Any]) -> None:
        if not self._works:
            return
        if "status" not in resource:
            resource["status"] = {"phase": "Initialized", "expStatuses": []}
            return
        statuses = []
        for experiment in resource["spec"]["experiments"]:
            state = {"state": "Error", "success": False, "error": self._error}
            if not self._error:
                state = {"state": "Success", "success": True}
            resources = [{"kind": experiment["scope"], **state}]
            statuses.append(
                {key: experiment[key] for key in ("scope", "target", "action")} | state | {"resStatuses": resources}
            )
        resource["status"] = {"phase": "Error" if self._error else "Running", "expStatuses": statuses}
