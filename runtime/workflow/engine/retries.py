"""When a failed attempt is made again: Argo's order is backoff, policy, limit, expression ("Retries")."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everstep.runtime.workflow.engine.nodes import Node, Phase
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.engine.scope import Scope
from everstep.runtime.workflow.engine.template_call import Call
from everstep.runtime.workflow.expressions import ExpressionError, holds
from everstep.runtime.workflow.expressions.operations import power
from everstep.runtime.workflow.expressions.tags import FUNCTIONS
from everstep.runtime.workflow.manifest.durations import LONGEST_S, DurationError, parse_int, parse_seconds

EXPRESSION_FALSE, NO_MORE = "retryStrategy.expression evaluated to false", "No more retries left"
TOO_LONG, WOULD_BE_TOO_LONG = "Max duration limit exceeded", "Backoff would exceed max duration limit"
NOT_TRIED_AGAIN = frozenset({EXPRESSION_FALSE, NO_MORE, TOO_LONG, WOULD_BE_TOO_LONG})
"""Argo's messages of a Retry node, which hide what its last attempt failed of."""


class Decision(NamedTuple):
    """The next attempt begins at `at`; where that is None, the node ends with `phase` and `message`."""

    at: float | None
    phase: Phase = Phase.RUNNING
    message: str = ""
    raised: bool = False
    """Whether the strategy itself is wrong."""


class RetryRun:
    """One node of type Retry."""

    def __init__(self, engine: Scheduler, node: Node, call: Call) -> None:
        self._engine = engine
        self._node = node
        self._call = call
        self._attempts: list[Node] = []
        self._is_waiting = False
        """Whether a timer will start the next attempt."""

    def begin(self, now: float) -> None:
        """Start the first attempt."""
        self._start_attempt(now)

    def end_backoff(self, now: float) -> None:
        """Start the next attempt: the backoff is over."""
        if self._is_waiting:
            self._start_attempt(now)

    def end_if_stopped(self, now: float) -> None:
        """End instead of waiting for the next attempt, if a stop or the deadline lets none begin."""
        if self._is_waiting and self._engine.state.is_stopped(self._node):
            self._finish(self._stop_decision(), self._attempts[-1], now)

    def _stop_decision(self) -> Decision:
        """The end of a stopped node, with the phase of its last attempt."""
        last, strategy = self._attempts[-1], self._engine.state.shutdown
        is_stopped = strategy and last.phase.bad
        return Decision(None, last.phase, f"Stopped with strategy '{strategy}'" if is_stopped else last.message)

    def _start_attempt(self, now: float) -> None:
        number = len(self._attempts)
        self._is_waiting = False
        self._node.message = ""
        call = self._call._replace(
            name=f"{self._node.name}({number})", display_name=f"{self._call.display_name}({number})",
            owner=self._node.name, scope=self._scope(number),
        )  # fmt: skip
        self._node.children.append(call.name)
        self._engine.call(call, now)

    def _scope(self, number: int) -> Scope:
        if not self._attempts:
            return {"retries": "0", "lastRetry.exitCode": "0", "lastRetry.status": "", "lastRetry.duration": "0",
                    "lastRetry.message": ""}  # fmt: skip
        # Without an exit code of the last attempt, an attempt reads 0 where the retry expression reads -1.
        code = self._attempts[-1].outputs.exit_code or "0"
        return {**last_retry_scope(self._attempts), "retries": str(number), "lastRetry.exitCode": code}

    def on_child_end(self, child: Node, now: float) -> None:
        """An attempt has ended: decide what follows. A ready daemon makes its Retry node a daemon, too."""
        if child.daemoned and not child.phase.fulfilled:
            if not self._node.daemoned:
                self._node.daemoned = True
                self._engine.notify_owner(self._node.name)
            return
        self._engine.state.raised.pop(child.name, "")
        if child.name != self._node.children[-1] or self._node.phase.fulfilled:
            return
        self._attempts.append(child)
        strategy = self._node.spec["retryStrategy"]
        if self._engine.state.is_stopped(self._node):
            decision = self._stop_decision()
        else:
            decision = decide(strategy, self._attempts, now)
        if decision.at is None:
            self._finish(decision, child, now)
        elif decision.at <= now:
            self._start_attempt(now)
        else:
            self._node.message = f"Backoff for {decision.at - now:.0f} seconds"
            self._is_waiting = True
            self._engine.set_timer(decision.at, "again", self._node.name)

    def _finish(self, decision: Decision, last: Node, now: float) -> None:
        self._is_waiting = False
        if not decision.raised:
            self._node.outputs = last.outputs
        self._engine.set_phase(
            self._node, decision.phase, now, decision.message, error_raised=decision.message if decision.raised else ""
        )


def decide(strategy: Mapping[str, Any], attempts: Sequence[Node], now: float) -> Decision:
    """What follows the last of these attempts, all of which have ended."""
    last = attempts[-1]
    if not last.phase.bad:
        return Decision(None, last.phase, last.message)
    try:
        at, refusal = _next_attempt(strategy.get("backoff") or {}, attempts)
        if refusal:
            return Decision(None, last.phase, refusal)
        policy = strategy.get("retryPolicy") or ("Always" if strategy.get("expression") else "OnFailure")
        # Nothing here is a transient error of Kubernetes.
        if policy == "OnTransientError" or (policy, last.phase) in (
            ("OnFailure", Phase.ERROR),
            ("OnError", Phase.FAILED),
        ):
            return Decision(None, last.phase, last.message)
        limit = strategy.get("limit")
        if limit is not None and len(attempts) > parse_int(limit):
            return Decision(None, last.phase, NO_MORE)
        expression = strategy.get("expression")
        if expression and not holds(str(expression), last_retry_scope(attempts), FUNCTIONS):
            return Decision(None, last.phase, EXPRESSION_FALSE)
    except (ExpressionError, DurationError) as error:
        return Decision(None, Phase.ERROR, str(error), raised=True)
    return Decision(max(at, last.finished))


def last_retry_scope(attempts: Sequence[Node]) -> Scope:
    """`retries` and `lastRetry.*`, as a retry expression reads them after the last of these attempts."""
    last = attempts[-1]
    return {
        "retries": str(len(attempts) - 1),
        "lastRetry.exitCode": last.outputs.exit_code or "-1",
        "lastRetry.status": last.phase.value,
        "lastRetry.duration": f"{last.finished - last.started:.0f}",
        "lastRetry.message": last.message,
    }


def _next_attempt(backoff: Mapping[str, Any], attempts: Sequence[Node]) -> tuple[float, str]:
    """(when the next attempt may begin, why there is none: empty if there is one)."""
    last = attempts[-1]
    if not backoff:
        return last.finished, ""
    if not backoff.get("duration"):
        raise ExpressionError("no base duration specified for retryStrategy")
    wait = parse_seconds(backoff["duration"])
    if backoff.get("factor") is not None:
        wait = min(wait * power(parse_int(backoff["factor"]), len(attempts) - 1), LONGEST_S)
    if cap := backoff.get("cap"):
        wait = min(wait, parse_seconds(cap))
    at = last.finished + wait
    if longest := backoff.get("maxDuration"):
        end = attempts[0].started + parse_seconds(longest)
        if last.finished > end:
            return at, TOO_LONG
        if at > end:
            return at, WOULD_BE_TOO_LONG
    return at, ""
