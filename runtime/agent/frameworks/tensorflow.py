"""TF_CONFIG, by TensorFlow's "Parameter server training" and "Multi-worker training" guides.

The cluster has the tasks of chief, worker and ps; an evaluator gets the variable, but is not one of its tasks.
"""

import json

from everstep.runtime.protocol.rounds import Seat

EVALUATOR = "evaluator"


def variables(seat: Seat) -> dict[str, str]:
    """The cluster of the round, and this node's task in it."""
    cluster = {
        role: [member.endpoint() for member in members] for role, members in seat.members.items() if role != EVALUATOR
    }
    task = {"type": seat.role, "index": seat.role_first_rank}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
