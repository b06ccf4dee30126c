"""How often a step of ours is tried again: a lost machine does not count, whatever else fails does.

The messages are those of Kubernetes' documentation ("Node-pressure Eviction", "Node Shutdowns") and Argo's ("Retries").
"""

from typing import Any

import pytest
from hera.workflows import Workflow

from everstep.runtime.workflow.engine.nodes import Node, NodeType, Outputs, Phase
from everstep.runtime.workflow.engine.retries import EXPRESSION_FALSE, decide
from everstep.steps.train.template import template

MANY = 20
EVICTED = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
SHUT_DOWN = "Pod was terminated in response to imminent node shutdown."
GONE = [
    (Phase.ERROR, "pod deleted", ""),
    (Phase.FAILED, EVICTED, "137"),
    (Phase.FAILED, SHUT_DOWN, ""),
    (Phase.FAILED, "main: Error (exit code 143)", "143"),
    (Phase.FAILED, "main: ContainerStatusUnknown (exit code 137)", "137"),
    (Phase.FAILED, "main: Unknown (exit code 255)", "255"),
]
OTHERS = [
    (Phase.FAILED, "main: Error (exit code 75)", "75"),
    (Phase.FAILED, "main: OOMKilled (exit code 137)", "137"),
    (Phase.ERROR, "wait: Error (exit code 64): failed to save outputs", ""),
]
Ending = tuple[Phase, str, str]


def attempt(number: int, ending: Ending) -> Node:
    """One that ended so, a minute after its begin."""
    phase, message, code = ending
    began = 100.0 * number
    return Node(
        f"w.train({number})", f"train({number})", NodeType.POD, "train", "", phase, began, message=message,
        finished=began + 60, outputs=Outputs(exit_code=code),
    )  # fmt: skip


def strategy() -> dict[str, Any]:
    """Of our steps, as Argo gets it."""
    (rendered,) = Workflow(name="w", entrypoint="train", templates=[template()]).to_dict()["spec"]["templates"]
    return rendered["retryStrategy"]


def is_tried_again(*endings: Ending) -> bool:
    """After these attempts."""
    attempts = [attempt(number, ending) for number, ending in enumerate(endings)]
    decision = decide(strategy(), attempts, attempts[-1].finished)
    assert decision.at is not None or decision.message == EXPRESSION_FALSE
    return decision.at is not None


@pytest.mark.parametrize("ending", GONE)
def test_a_step_whose_machines_are_lost_is_tried_again_however_often(ending: Ending) -> None:
    assert is_tried_again(*[ending] * MANY)


@pytest.mark.parametrize("ending", OTHERS)
def test_what_is_not_a_machines_fault_is_tried_again_three_times(ending: Ending) -> None:
    assert is_tried_again(*[ending] * 3)
    assert not is_tried_again(*[ending] * 4)


@pytest.mark.parametrize("code", ["0", "1", "2", "3"])
def test_a_users_error_is_not_tried_again_even_after_lost_machines(code: str) -> None:
    assert not is_tried_again(GONE[0], (Phase.FAILED, f"main: Error (exit code {code})", code))


def test_a_step_that_is_tried_often_waits_a_minute_at_most() -> None:
    attempts = [attempt(number, GONE[0]) for number in range(MANY)]
    assert decide(strategy(), attempts, attempts[-1].finished).at == attempts[-1].finished + 60
