"""What a job says about its whole run, as fields of a Workflow's spec.

Kubeflow's runPolicy (kubeflow/common, RunPolicy) and KubeRay's RayJob have them by the names of Kubernetes' own Job
("Jobs": "Job termination and cleanup", "TTL mechanism for finished Jobs"); so does Volcano's Job the second. Argo's
("Field Reference", WorkflowSpec): `activeDeadlineSeconds` counts from the workflow's start, `ttlStrategy` from its end.
"""

from typing import Any

from everstep.convert.field_reader import Fields
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_DEADLINE, _TTL = "activeDeadlineSeconds", "ttlSecondsAfterFinished"
SCHEDULING = "schedulingPolicy"


def read_run(fields: Fields, *path: str) -> dict[str, Any]:
    """Those at `path` in the spelling of a Workflow's spec. Raises ConvertError."""
    spec: dict[str, Any] = {}
    if fields.has(*path, _DEADLINE):
        spec[_DEADLINE] = fields.count(*path, _DEADLINE, least=1)
    if fields.has(*path, _TTL):
        spec["ttlStrategy"] = {"secondsAfterCompletion": fields.count(*path, _TTL)}
    return spec


def read_scheduling(fields: Fields, path: FieldPath, total: int) -> dict[str, str]:
    """Arguments of the train step for Kubeflow's schedulingPolicy at `path`, of a job of `total` pods. Only Volcano
    takes `queue` and `priorityClass` of it, as its documentation says. Raises ConvertError."""
    arguments: dict[str, str] = {}
    if queue := fields.take(str, *path, SCHEDULING, "queue", default=""):
        arguments |= {"gang": "volcano", "queue": queue}
    if priority := fields.take(str, *path, SCHEDULING, "priorityClass", default=""):
        arguments["priority_class"] = priority
    fields.skip_value(total, *path, SCHEDULING, "minAvailable")
    return arguments
