"""The runs of a cluster's namespace, for the verbs that show and end runs: by ARGO_SERVER, else by the kube context."""

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from everstep.cli.run_views import is_node_selected
from everstep.errors import BadInput
from everstep.runtime.display.terminal import as_text

if TYPE_CHECKING:
    from everstep.runtime.submission import Route
    from everstep.runtime.submission.route import PodLog

LOOK_S = 2.0
"""How often nodes are looked for while their lines are followed."""
ENDED = ("Succeeded", "Failed", "Error")


@contextmanager
def _route(namespace: str) -> "Iterator[Route]":
    """The route to the cluster. Raises BadInput, also for errors in the block."""
    from everstep.runtime.submission import ApiError, TargetError, choose

    try:
        route = choose("argo", os.environ, namespace).route
        assert route is not None, "argo was asked for"
        yield route
    except (ApiError, TargetError) as error:
        raise BadInput(str(error)) from None


def _with_status(workflow: dict[str, Any]) -> dict[str, Any]:
    """One that no controller has seen yet has no status."""
    status = {"phase": "Pending", "nodes": {}, **(workflow.get("status") or {})}
    return {**workflow, "status": status}


def workflows(namespace: str) -> list[dict[str, Any]]:
    """All of the namespace. Raises BadInput."""
    with _route(namespace) as route:
        return [_with_status(workflow) for workflow in route.workflows()]


def get(namespace: str, name: str) -> dict[str, Any]:
    """The run. Raises BadInput."""
    with _route(namespace) as route:
        return _with_status(route.get(name))


def wait(namespace: str, names: Sequence[str]) -> int:
    """Wait until all have ended; print how as `argo wait` does. Returns 0 if all succeeded, else 1. Raises BadInput."""
    codes = [0]
    for name in names:
        *_, last = states(namespace, name)
        print(f"{name} {last['status']['phase']} at {last['status'].get('finishedAt')}", flush=True)
        codes.append(int(last["status"]["phase"] != "Succeeded"))
    return max(codes)


def states(namespace: str, name: str) -> Iterator[dict[str, Any]]:
    """The run each time that it has changed, until it has ended; trouble on the way is reported. Raises BadInput."""
    from everstep.runtime.submission import ApiError
    from everstep.runtime.submission.follow import updates

    with _route(namespace) as route:
        for news in updates(route, name, time.sleep):
            if isinstance(news, ApiError):
                print(f"{name}: cannot be watched now, trying again: {news}", file=sys.stderr)
            else:
                yield _with_status(news)


def end(namespace: str, name: str, verb: Literal["stop", "terminate"]) -> int:
    """Stop the run; returns the exit code. Raises BadInput."""
    with _route(namespace) as route:
        phase = _with_status(route.get(name))["status"]["phase"]
        if phase in ENDED:
            raise BadInput(f"{name}: has already ended: {phase}")
        route.end(name, verb)
    print(f"{name}: asked Argo to {verb}", file=sys.stderr)
    return 0


def retry(namespace: str, name: str) -> int:
    """Let what did not succeed run again; returns the exit code. Raises BadInput."""
    with _route(namespace) as route:
        phase = _with_status(route.get(name))["status"]["phase"]
        if phase not in ("Failed", "Error"):
            raise BadInput(f"{name}: only a run that has failed is retried, and it is {phase}")
        route.retry(name)
    print(f"{name}: asked Argo to retry", file=sys.stderr)
    return 0


def logs(namespace: str, name: str, selector: str, follow: bool) -> int:
    """Print the lines of its steps' pods, `POD: LINE`, and of its nodes', `STEP/NODE: LINE`; returns the exit code.

    `selector` as for `log_lines`. Raises BadInput.
    """
    from everstep.runtime.submission.follow import Follower, LogFollower, View, step_logs
    from everstep.runtime.submission.route import PodLog
    from everstep.runtime.submission.tree import rows

    def is_wanted(log: PodLog) -> bool:
        return any(name.startswith(selector) for name in (log.title, log.pod))

    def is_wanted_node(log: PodLog) -> bool:
        return log.pod.startswith(selector) or is_node_selected(log.title, selector)

    with _route(namespace) as route:
        workflow = _with_status(route.get(name))
        steps = list(filter(is_wanted, step_logs(rows(workflow))))
        every_node, trouble = _node_logs(route, name)
        nodes = list(filter(is_wanted_node, every_node))
        if selector and not steps and not nodes and not follow:
            raise BadInput(f"{name}: no pod of that name, and no step or node begins with {selector!r}")
        if trouble:
            print(f"{name}: without its nodes' lines: {trouble}", file=sys.stderr)
        if not follow:
            for log in (*(step._replace(title=step.pod) for step in steps), *nodes):
                _print_log(route, name, log)
            return 0
        every = LogFollower(route, name, lambda title, line: print(as_text(f"{title}: {line}"), flush=True))
        looked_at = -math.inf

        def follow_started(view: View) -> None:
            nonlocal looked_at
            every.follow(filter(is_wanted, step_logs(view.rows)))
            if not trouble and (now := time.monotonic()) >= looked_at + LOOK_S:
                looked_at = now
                every.follow(filter(is_wanted_node, _node_logs(route, name)[0]))

        with Follower(route, workflow, tails=False) as follower:
            follower.follow(follow_started)
        every.follow(filter(is_wanted_node, _node_logs(route, name)[0]))
        every.end()
        every.finish()
    return 0


def _node_logs(route: "Route", name: str) -> "tuple[list[PodLog], str]":
    """The logs of the run's nodes, and why there are none; while the cluster cannot be asked, none without a reason."""
    from everstep.runtime.submission import ApiError
    from everstep.runtime.submission.route import Trouble

    if not route.sees_nodes:
        return [], f"{route.where} does not show them; without ARGO_SERVER the kube context does"
    try:
        return route.node_logs(name), ""
    except ApiError as error:
        if not error.trouble.is_passing and error.trouble is not Trouble.FORBIDDEN:
            raise
        return [], "" if error.trouble.is_passing else str(error)


def log_of(namespace: str, name: str, pod: str) -> list[str]:
    """The lines of a pod's log; none when the pod is gone. Raises BadInput."""
    from everstep.runtime.submission import ApiError
    from everstep.runtime.submission.route import Trouble

    with _route(namespace) as route:
        try:
            return list(route.log(name, pod))
        except ApiError as error:
            if error.trouble is not Trouble.NOT_FOUND:
                raise
            return []


def _print_log(route: "Route", name: str, log: "PodLog") -> None:
    from everstep.runtime.submission import ApiError
    from everstep.runtime.submission.route import Trouble

    try:
        for line in route.log(name, log.pod, container=log.container):
            print(as_text(f"{log.title}: {line}"), flush=True)
    except ApiError as error:
        if error.trouble is not Trouble.NOT_FOUND:  # Its pod is gone, and its log with it.
            raise
