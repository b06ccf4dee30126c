"""Kubeflow's restartPolicy of a replica in the words of a job spec.

What its operator does (kubeflow/training-operator 1.9: pkg/controller.v1/common/pod.go, pkg/core/pod.go,
pkg/util/train/train_util.go, the status parts of tensorflow/ and pytorch/):

| policy | the program fails | a pod is gone (deleted, drained, its machine lost) |
|---|---|---|
| Always, OnFailure | the pod's container starts again | made anew |
| ExitCode | made anew from exit code 128 on; below, the job fails | made anew |
| Never | the job fails | made anew |

By default PyTorchJob has OnFailure, TFJob has Never (pkg/apis/kubeflow.org/v1/*_types.go).
"""

from typing import Any

from everstep.convert.field_reader import Fields
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_POLICIES: dict[str, dict[str, Any]] = {
    "Always": {},
    "OnFailure": {},
    "Never": {
        "restartPolicy": "Never",
        "faultTolerantPolicy": [{"exceptionalEvent": ["nodeNotReady"], "restartPolicy": "Always"}],
        "failPolicy": "Any",
    },
    "ExitCode": {
        "restartPolicy": "OnNodeFailWithExitCode",
        "faultTolerantPolicy": [{"exitCodes": "128-255", "restartPolicy": "Always"}],
        "failPolicy": "Any",
    },
}
"""What a role is by itself is left out: Always, whose nodes that are given up fail nothing. nodeNotReady: a lost node,
also one whose pod is gone."""


def read_restarts(fields: Fields, path: FieldPath, default: str) -> dict[str, Any]:
    """A role's policies for the restartPolicy of the replica at `path`. Raises ConvertError."""
    policy = fields.take(str, *path, "restartPolicy", default=default)
    if policy not in _POLICIES:
        raise fields.wrong(f"{policy} is not supported; use one of {', '.join(_POLICIES)}", *path, "restartPolicy")
    return _POLICIES[policy]
