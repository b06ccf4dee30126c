"""A job's status as plain data, for `everstep status` and other programs."""

from datetime import UTC, datetime
from typing import Any

from everstep.runtime.job.nodes import NodePhase, NodeState
from everstep.runtime.job.rounds import rank_order
from everstep.runtime.job.slow_checks import stragglers
from everstep.runtime.job.state import State


def job_status(state: State) -> dict[str, Any]:
    """Conditions and restart counts as AITrainingJob spells them, the round, the newest checkpoint, the nodes."""
    round_ = state.round
    committed_places = max((key for key, checkpoint in state.checkpoints.items() if checkpoint.manifest), default=None)
    live = [node for node in state.nodes.values() if node.phase is not NodePhase.LOST]
    slow = {node.name for node in stragglers(live)} | {slow_node.node for slow_node in state.slow}
    return {
        "conditions": [
            {
                "type": condition.type.value,
                "status": str(condition.holds),
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": rfc3339(condition.since),
                "lastProbeTime": rfc3339(condition.seen),
            }
            for condition in state.conditions
        ],
        "RestartCount": {role: state.restarts.get(role, 0) for role in state.nodes.roles()},
        "master": state.address,
        "reason": state.reason,
        "iteration": state.iteration,
        "round": None
        if round_ is None
        else {
            "number": round_.number,
            "running": state.phase == "running",
            "nodes": sum(state.members.values()),
            "workers": sum(state.workers.values()),
            "hosts": rank_order(round_),
            "restored": None
            if round_.restore is None
            else {"round": round_.restore.round, "iteration": round_.restore.iteration},
        },
        "checkpoint": None
        if committed_places is None
        else {
            "round": committed_places[0],
            "iteration": committed_places[1],
            "manifest": state.checkpoints[committed_places].manifest,
        },
        "nodes": [_node_status(node, slow, state) for node in live],
        "givenUp": {f"{role}-{index}": judgement.detail for (role, index), judgement in state.given_up.items()},
        "slow": [slow_node.detail for slow_node in state.slow],
        "avoidedHosts": sorted(state.avoided),
        "error": state.ended.error if state.ended else "",
    }


def rfc3339(time: float) -> str:
    """Unix seconds formatted as `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _node_status(node: NodeState, slow: set[str], state: State) -> dict[str, Any]:
    member = state.round is not None and node.round == state.round.number and node.phase in _TRAINING_PHASES
    return {
        "name": node.name,
        "role": node.role,
        "host": node.host,
        "ip": node.ip,
        "phase": node.phase.value,
        "leaving": node.leaving_because.value if node.is_leaving and node.leaving_because else "",
        "ranks": [node.first_rank, node.first_rank + node.slots - 1] if member else None,
        "memoryBytes": node.memory_bytes,
        "checkSeconds": node.checked,
        "straggler": node.name in slow,
    }


_TRAINING_PHASES = (NodePhase.RUNNING, NodePhase.FINISHED)
