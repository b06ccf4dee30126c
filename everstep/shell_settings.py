"""What a local run takes from the shell that starts it: variables for its pods, limits of archives."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everstep.errors import BadInput

if TYPE_CHECKING:
    from everstep.runtime.workflow.artifacts.archives import UnpackLimits


def checked_variables(names: Sequence[str]) -> tuple[str, ...]:
    """The variables that --env names. Raises BadInput for a variable that is not set here."""
    from everstep.runtime.workflow.local_pods.inherited_variables import unset_names

    for entry in unset_names(os.environ, names):
        value = "; it is passed on, not set here: write only its NAME" if "=" in entry else ""
        raise BadInput(f"--env {entry.partition('=')[0]}: no such variable is set here{value}")
    return tuple(names)


def warn_missing_variables(run: str, names: Sequence[str]) -> None:
    """For a run that is resumed: warn about variables that it had before and that are not set here."""
    from everstep.runtime.workflow.local_pods.inherited_variables import unset_names

    for name in unset_names(os.environ, names):
        print(
            f"{run}: its pods had the variable {name}, which is not set here; they continue without it", file=sys.stderr
        )


def archive_limits() -> "UnpackLimits":
    """The limits that the environment sets. Raises BadInput."""
    from everstep.runtime.workflow.artifacts.archives import UnpackLimits

    try:
        return UnpackLimits.from_environment(os.environ)
    except ValueError as error:
        raise BadInput(str(error)) from None
