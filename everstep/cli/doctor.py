"""`everstep doctor [-n NAMESPACE]`: is a namespace of the kube context ready for a pipeline? What is missing?"""

import argparse
import os
from dataclasses import dataclass
from typing import Annotated, Literal

from everstep.errors import BadInput
from everstep.flags import Flag, add_action
from everstep.runtime.exit_codes import ExitCode

MARKS = {"ready": "✔", "wrong": "✗", "doubtful": "?"}
STEPS_WITH_ARTIFACTS = ("check", "evaluate", "preprocess", "report")
EPILOG = """\
✔ it is there, ✗ a run would fail, ? it cannot be seen from here. Exit codes: 0 nothing is wrong, 2 something is.

example: everstep doctor -n ml --service-account everstep"""


@dataclass(frozen=True)
class Doctor:
    """Is a namespace ready for a pipeline? In at most 3 s."""

    namespace: Annotated[str, Flag("-n")] = ""
    """Empty: the kube context's own."""
    service_account: str = "everstep"
    """Service account of the pods, and NAME-train of the train step's."""
    image_pull_secret: tuple[str, ...] = ()
    """Secret with the registry's credentials; may be given several times."""
    store_secret: str = "everstep-store"
    """Secret with the store's keys; empty: the pods get them by other means."""
    gang: Literal["none", "volcano", "koordinator", "coscheduling", "kueue"] = "none"
    """The scheduler that admits a job's nodes together."""
    priority_class: tuple[str, ...] = ()
    """PriorityClass of nodes; may be given several times."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Doctor, run)
    parser.epilog = EPILOG


def run(flags: Doctor) -> int:
    """Print a line for each finding; returns the exit code. Raises BadInput."""
    from everstep.runtime.submission.custom_resource import CustomResource
    from everstep.runtime.submission.manifest import NEEDED_KEYS
    from everstep.runtime.submission.needs import TRAIN, Needs, account_rights
    from everstep.runtime.submission.preflight import Verdict
    from everstep.runtime.submission.route import ApiError

    accounts = (flags.service_account, f"{flags.service_account}{TRAIN}")
    needs = Needs(
        {name: account_rights(name) for name in accounts},
        {flags.store_secret: NEEDED_KEYS} if flags.store_secret else {},
        flags.image_pull_secret,
        flags.priority_class,
        flags.gang,
        artifacts=STEPS_WITH_ARTIFACTS,
        stores=(flags.store_secret,),
    )
    try:
        route = CustomResource(os.environ, flags.namespace)
        if not route.serves_argo():
            raise BadInput(f"{route.where} does not know Workflows (no argoproj.io); install Argo Workflows there")
        findings = route.examine(needs)
    except ApiError as error:
        raise BadInput(str(error)) from None
    for finding in findings:
        print(f" {MARKS[finding.verdict]} {finding.text}")
    return ExitCode.BAD_INPUT if any(finding.verdict is Verdict.WRONG for finding in findings) else 0
