"""Runs a pipeline's manifest on Argo: fits it to the cluster, submits it, and shows the run until it ends."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from everstep.errors import BadInput
from everstep.exit_now import exit_now
from everstep.options import Submission
from everstep.version import IMAGE, VERSION

if TYPE_CHECKING:
    from everstep.runtime.submission import Route


def manifest_for_cluster(manifest: dict[str, Any], name: str, namespace: str, how: Submission) -> dict[str, Any]:
    """The manifest as the cluster's namespace needs it. Raises BadInput."""
    from everstep.runtime.submission.manifest import ClusterOptions, NotForAClusterError, for_argo
    from everstep.runtime.workflow import ManifestError, check_name

    options = ClusterOptions(
        image=how.image,
        service_account=how.service_account,
        pull_secrets=how.image_pull_secret,
        pull_policy=how.image_pull_policy,
        store_secret=how.store_secret,
        instance=os.environ.get("ARGO_INSTANCEID", ""),
    )
    try:
        check_name(name)
        return for_argo(manifest, name, namespace, options, IMAGE)
    except ManifestError as error:
        raise BadInput(f"--{error}") from None
    except NotForAClusterError as error:
        raise BadInput(str(error)) from None


def refuse_unready(route: "Route", manifest: dict[str, Any]) -> None:
    """Raise BadInput for all that is missing in the namespace, a line each; print what may be.

    An Argo Server answers no questions about a cluster.
    """
    from everstep.runtime.submission.custom_resource import CustomResource
    from everstep.runtime.submission.needs import needs_of
    from everstep.runtime.submission.preflight import Verdict
    from everstep.runtime.submission.route import ApiError

    if not isinstance(route, CustomResource):
        return
    try:
        findings = route.examine(replace(needs_of(manifest), version=VERSION))
    except ApiError as error:
        raise BadInput(str(error)) from None
    for finding in findings:
        if finding.verdict is Verdict.DOUBTFUL and finding.mend:
            print(f"note: {finding.text}", file=sys.stderr)
    if wrong := [finding.text for finding in findings if finding.verdict is Verdict.WRONG]:
        raise BadInput("\n  ".join([f"namespace {route.namespace} is not ready, nothing was submitted:", *wrong]))


def run_on_cluster(
    manifest: dict[str, Any], route: "Route", reason: str, how: Submission, another: Callable[[], str] | None
) -> int:
    """Submit the manifest and print where it runs; unless --detach, watch it. Ends the process.

    `another` makes up a new name if the name is taken; None: the user chose it. Raises BadInput for what Argo refuses.
    """
    from everstep.runtime.submission.route import ApiError
    from everstep.runtime.submission.submit import submit

    try:
        submitted = submit(route, manifest, another)
    except ApiError as error:
        raise BadInput(str(error)) from None
    name = submitted.workflow["metadata"]["name"]
    note = " · it runs already" if submitted.existed else ""
    print(f"{name} · target argo ({reason}) · {route.link(name)}{note}", file=sys.stderr, flush=True)
    if how.detach:
        return 0
    from everstep.runtime.submission.run import watch

    return exit_now(watch(route, submitted.workflow, how.logs))  # Threads may still be reading the run.
