"""Submission: a pipeline's manifest is sent to an Argo elsewhere, and its run is watched from here.

The story begins in `target` (here or on Argo, and why), goes on in `manifest` (what a cluster needs besides), `route`
(the calls to an Argo) with its two implementations, `argo_server` (Hera's WorkflowsService) and `custom_resource` (our
one Kubernetes client, `platform.kubernetes.api`; `kube_config` finds the cluster, `kube_login` logs in), and ends in
`follow` (the run, to its end) and `view` (a tree on a terminal, lines otherwise). Hera and requests are imported when a
route is opened, not before.
"""

from everstep.runtime.submission.manifest import ClusterOptions, NotForAClusterError, for_argo
from everstep.runtime.submission.route import ApiError, Route
from everstep.runtime.submission.submit import Submission, submit
from everstep.runtime.submission.target import Target, TargetError, choose

__all__ = [
    "ApiError", "ClusterOptions", "NotForAClusterError", "Route", "Submission", "Target", "TargetError", "choose",
    "for_argo", "submit",
]  # fmt: skip
