"""Submits a manifest to an Argo exactly once, whatever happens on the way."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from everstep.runtime.submission.manifest import DIGEST
from everstep.runtime.submission.route import ApiError, Route, Trouble

WAITS_S = (1.0, 3.0, 6.0)
"""Before each further try of a submission whose answer was lost."""
ENDED = ("Succeeded", "Failed", "Error")


class Submission(NamedTuple):
    """The result of a submission."""

    workflow: dict[str, Any]
    existed: bool
    """Whether the same workflow existed already and runs."""


def submit(
    route: Route,
    manifest: dict[str, Any],
    another: Callable[[], str] | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> Submission:
    """Create the Workflow; one with that name and content that has not ended counts as this one.

    A lost answer is asked for again: the name makes sure that nothing is made twice. `another` makes up a name in place
    of one that is taken; None: the name is fixed. Raises ApiError.
    """
    pauses, has_asked = list(WAITS_S), False
    while True:
        try:
            return Submission(route.create(manifest), False)
        except ApiError as error:
            if error.trouble is Trouble.EXISTS:
                if another is None or has_asked:
                    return Submission(_existing(route, manifest), True)
                manifest = {**manifest, "metadata": {**manifest["metadata"], "name": another()}}
                continue
            if not pauses or error.trouble not in (Trouble.LOST, Trouble.BUSY):
                raise
            has_asked = True
            wait(pauses.pop(0))


def _existing(route: Route, manifest: dict[str, Any]) -> dict[str, Any]:
    """The Workflow that has the name. Raises ApiError when it is another, or has ended."""
    metadata = manifest["metadata"]
    name = metadata["name"]
    existing = route.get(name)
    phase = (existing.get("status") or {}).get("phase") or "Pending"
    digest_there = (existing["metadata"].get("annotations") or {}).get(DIGEST)
    if digest_there != metadata["annotations"][DIGEST]:
        raise ApiError(
            Trouble.EXISTS,
            f"--name {name}: namespace {route.namespace} has another workflow of that name ({phase}); "
            "choose another --name",
        )
    if phase in ENDED:
        again = "" if phase == "Succeeded" else f", retry it with `argo -n {route.namespace} retry {name}`"
        raise ApiError(
            Trouble.EXISTS,
            f"--name {name}: that workflow exists and has ended {phase}; choose another --name{again}",
        )
    return existing
