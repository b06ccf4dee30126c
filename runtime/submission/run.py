"""Watch a submitted run in the terminal, to its end or until the user leaves it."""

import sys
from typing import Any

from everstep.runtime.display.terminal import as_text
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.submission import tree
from everstep.runtime.submission.follow import Follower, LogFollower, View, step_logs
from everstep.runtime.submission.route import ApiError, Route
from everstep.runtime.submission.view import open_view
from everstep.runtime.workflow.run.own_errors import workflow_message

DETACHED = 130


def watch(route: Route, workflow: dict[str, Any], logs: bool) -> int:
    """Show the run until it ends; returns the exit code of its first failed step, 0 when it succeeded.

    Ctrl-C leaves it running (130). `logs`: every line of its steps on stdout.
    """
    name = workflow["metadata"]["name"]
    log_follower = (
        LogFollower(route, name, lambda title, line: print(as_text(f"{title}: {line}"), flush=True)) if logs else None
    )
    try:
        with open_view(route, name, plain=logs) as show, Follower(route, workflow, tails=not logs) as follower:

            def see(view: View) -> None:
                show(view)
                if log_follower:
                    log_follower.follow(step_logs(view.rows))

            last = follower.follow(see)
            if log_follower:
                log_follower.finish()
    except KeyboardInterrupt:
        _say(f"{name} continues; see {route.link(name)}")
        return DETACHED
    except ApiError as error:
        _say(f"{name}: {error}")
        return ExitCode.TRY_AGAIN  # The run may go on: nobody here knows how it ends.
    _say_end(last)
    return tree.exit_code(last)


def _say_end(workflow: dict[str, Any]) -> None:
    status = workflow["status"]
    if status["phase"] != "Succeeded":
        _say(f"{status['phase']}  {workflow_message(status)}".rstrip())
    for output, value in tree.outputs(workflow).items():
        _say(f"{output}: {value}")


def _say(text: str) -> None:
    print(as_text(text), file=sys.stderr, flush=True)
