"""Kubeflow's restartPolicy of a replica in the words of a job spec.

Its operator makes a pod anew whose policy is Always or OnFailure, and one that is lost: Always in a job spec, which is
what a role has by itself. Its ExitCode retries the codes from 128 on; those below are the program's own.
"""

from typing import Any

from everstep.convert.field_reader import Fields
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_POLICIES: dict[str, dict[str, Any]] = {
    "Always": {},
    "OnFailure": {},
    "Never": {"restartPolicy": "Never"},
    "ExitCode": {
        "restartPolicy": "OnNodeFailWithExitCode",
        "faultTolerantPolicy": [{"exitCodes": "128-255", "restartPolicy": "Always"}],
    },
}


def read_restarts(fields: Fields, path: FieldPath, default: str) -> dict[str, Any]:
    """A role's policies for the restartPolicy of the replica at `path`. Raises ConvertError."""
    policy = fields.take(str, *path, "restartPolicy", default=default)
    if policy not in _POLICIES:
        raise fields.wrong(f"{policy} is not supported; use one of {', '.join(_POLICIES)}", *path, "restartPolicy")
    return _POLICIES[policy]
