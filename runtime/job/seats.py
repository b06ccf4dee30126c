"""What an agent is told: its seat in a round, and its directive. Functions of the state alone."""

from runtime.job.messages import Directive, Round, Seat
from runtime.job.state import JobPhase, NodePhase, State, member_names, world_size


def seat(round_: Round, node: str, epoch: int) -> Seat | None:
    """The node's place in the round: ranks follow the order of roles and members. None: it is no member."""
    first_rank = group_rank = 0
    group_world_size = sum(len(members) for members in round_.members.values())
    for role, members in round_.members.items():
        role_first = 0
        for member in members:
            if member.node == node:
                return Seat(
                    epoch=epoch,
                    round=round_.number,
                    role=role,
                    group_rank=group_rank,
                    group_world_size=group_world_size,
                    first_rank=first_rank,
                    world_size=world_size(round_),
                    role_first_rank=role_first,
                    role_world_size=sum(m.slots for m in members),
                    master_addr=round_.master_addr,
                    master_port=round_.master_port,
                    restart_count=round_.number - 1,
                    restore=round_.restore,
                    persists=group_rank == 0,
                )
            first_rank += member.slots
            role_first += member.slots
            group_rank += 1
    return None


def seat_for(state: State, node: str, after_round: int) -> Seat | None:
    """The seat to answer a join with: in the running round, if it is a later one than the agent was in."""
    running = state.round if state.phase is JobPhase.RUNNING else None
    if running is None or running.number <= after_round or node not in member_names(running):
        return None
    return seat(running, node, state.epoch) if state.nodes[node].phase is NodePhase.RUNNING else None


def directive(state: State, node: str) -> Directive | None:
    """What this node shall do now; None: it is no node of this job."""
    known = state.nodes.get(node)
    if known is None:
        return None
    return Directive(state.epoch, known.directive, known.action, known.action_reason, known.action_round)
