"""Fault injection: named points in the code at which a test kills, stops or ends the process.

`point("checkpoint.after_copy", iteration=7)` does nothing unless EVERSTEP_FAULT names it. Imports only the standard
library. Rules are separated by ';':

    EVERSTEP_FAULT="checkpoint.mid_copy,iteration=7,node=worker-1-0=kill;train.iteration,rank=1=exit:3"

Actions: kill and stop (signals to this process), exit:CODE, sleep:SECONDS (a slow machine), raise (an InjectedError).
Conditions are compared with the point's facts, then with EVERSTEP_NODE (node), RANK (rank) and LOCAL_RANK (local_rank).
Each rule fires once in a job, in the first process that reaches it. The process first creates the file
EVERSTEP_FAULT_DIR/<point> (for the second rule of the same point <point>.2, and so on), so that a test can assert that
the fault fired.
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FAULT_DIR_VARIABLE", "FAULT_VARIABLE", "InjectedError", "Rule", "parse_rules", "point"]

FAULT_VARIABLE = "EVERSTEP_FAULT"
FAULT_DIR_VARIABLE = "EVERSTEP_FAULT_DIR"
_ACTION = re.compile(r"kill|stop|raise|exit:\d+|sleep:\d+(\.\d+)?")
_ACTIONS = ": kill, stop, exit:CODE, sleep:SECONDS or raise"
_CONDITION_VARIABLES = {"node": "EVERSTEP_NODE", "rank": "RANK", "local_rank": "LOCAL_RANK"}


@dataclass(frozen=True)
class Rule:
    """Do `action` at `point` if every condition holds. The file `mark` records that it fired."""

    point: str
    conditions: tuple[tuple[str, str], ...]
    action: str
    mark: str


class InjectedError(RuntimeError):
    """An intended fault."""


def point(name: str, **facts: object) -> None:
    """Apply the rules for this point. Costs nothing when EVERSTEP_FAULT is unset."""
    text = os.environ.get(FAULT_VARIABLE)
    if not text:
        return
    folder = Path(os.environ[FAULT_DIR_VARIABLE])
    for rule in parse_rules(text):
        if rule.point == name and _matches(rule, facts, os.environ) and _claim_mark(rule, folder):
            _perform(rule)


def parse_rules(text: str) -> Iterator[Rule]:
    """The rules in the text of EVERSTEP_FAULT. Raises ValueError for an unreadable rule."""
    occurrences: Counter[str] = Counter()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        head, equals, action = part.rpartition("=")
        name, *conditions = head.split(",")
        pairs = tuple((key, value) for key, _, value in (condition.partition("=") for condition in conditions))
        if not equals or not name or not _ACTION.fullmatch(action) or not all(key and value for key, value in pairs):
            raise ValueError(f"{FAULT_VARIABLE}: cannot read {part!r}; write POINT[,FACT=VALUE]...=ACTION{_ACTIONS}")
        occurrences[name] += 1
        yield Rule(name, pairs, action, name if occurrences[name] == 1 else f"{name}.{occurrences[name]}")


def _matches(rule: Rule, facts: Mapping[str, object], environment: Mapping[str, str]) -> bool:
    for key, expected_value in rule.conditions:
        fact = facts[key] if key in facts else environment.get(_CONDITION_VARIABLES.get(key, ""))
        if fact is None or str(fact) != expected_value:
            return False
    return True


def _claim_mark(rule: Rule, folder: Path) -> bool:
    try:
        os.close(os.open(folder / rule.mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _perform(rule: Rule) -> None:
    verb, _, value = rule.action.partition(":")
    match verb:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(int(value))
        case "sleep":
            time.sleep(float(value))
        case "raise":
            raise InjectedError(f"injected at {rule.point}")
