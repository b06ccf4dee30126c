"""When a failed attempt is made again: Argo's order is backoff, policy, limit, expression ("Retries")."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runtime.workflow.expressions import ExpressionError, evaluate
from runtime.workflow.nodes import Node, Phase

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Decision(NamedTuple):
    """The next attempt at `at`, or the end with `phase` and `message`."""

    at: float | None
    phase: Phase = Phase.RUNNING
    message: str = ""

    @classmethod
    def stop(cls, phase: Phase, message: str = "") -> "Decision":
        """No more attempts."""
        return cls(None, phase, message)


def seconds(text: str) -> float:
    """A duration of Argo: `10` (seconds), `1.5m`, `1h30m`. Raises ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise ValueError(f"{text!r} is no duration")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def decide(strategy: Mapping[str, Any], attempts: Sequence[Node], now: float) -> Decision:
    """What follows the last of these attempts, which has ended."""
    last = attempts[-1]
    if not last.phase.bad:
        return Decision.stop(last.phase, last.message)
    try:
        at, refused = _backoff(strategy.get("backoff") or {}, attempts)
        if refused:
            return Decision.stop(last.phase, refused)
        policy = strategy.get("retryPolicy") or ("Always" if strategy.get("expression") else "OnFailure")
        if policy == "OnTransientError" or (policy, last.phase) in (
            ("OnFailure", Phase.ERROR),
            ("OnError", Phase.FAILED),
        ):
            return Decision.stop(last.phase, last.message)
        limit = strategy.get("limit")
        if limit is not None and len(attempts) > int(limit):
            return Decision.stop(last.phase, "No more retries left")
        if expression := strategy.get("expression"):
            again = evaluate(expression, _scope(attempts))
            if not isinstance(again, bool):
                return Decision.stop(Phase.ERROR, f"retryStrategy.expression gives {again!r}, no boolean")
            if not again:
                return Decision.stop(last.phase, "retryStrategy.expression evaluated to false")
    except (ExpressionError, ValueError) as error:
        return Decision.stop(Phase.ERROR, str(error))
    return Decision(max(at, last.finished))


def _scope(attempts: Sequence[Node]) -> dict[str, str]:
    last = attempts[-1]
    return {
        "retries": str(len(attempts) - 1),
        "lastRetry.exitCode": last.exit_code or "-1",
        "lastRetry.status": last.phase.value,
        "lastRetry.duration": f"{last.finished - last.started:.0f}",
        "lastRetry.message": last.message,
    }


def _backoff(backoff: Mapping[str, Any], attempts: Sequence[Node]) -> tuple[float, str]:
    """(when the next attempt may begin, why there is none)."""
    last = attempts[-1]
    if not backoff:
        return last.finished, ""
    if "duration" not in backoff:
        raise ValueError("no base duration specified for retryStrategy")
    wait = seconds(backoff["duration"]) * float(backoff.get("factor") or 1) ** (len(attempts) - 1)
    if cap := backoff.get("cap"):
        wait = min(wait, seconds(cap))
    at = last.finished + wait
    if longest := backoff.get("maxDuration"):
        end = attempts[0].started + seconds(longest)
        if last.finished > end:
            return at, "Max duration limit exceeded"
        if at > end:
            return at, "Backoff would exceed max duration limit"
    return at, ""
