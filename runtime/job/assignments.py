"""An agent's seat in a round and its directive. Pure functions of the state."""

from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import CALM
from everstep.runtime.job.state import State, round_number
from everstep.runtime.protocol.messages import Action, Directive, Join
from everstep.runtime.protocol.rounds import Framework, Neighbour, Round, Seat

MOST_NEIGHBOURS = 8
_TOLD_TO_JOIN = (NodePhase.REJOINING, NodePhase.SUSPECTED, NodePhase.LOST)


def seat(state: State, node: str) -> Seat | None:
    """The node's seat in the running or last round, None if it is no member. Ranks follow the order of roles and
    members."""
    member, round_ = state.nodes.get(node), state.round
    if member is None or round_ is None or member.round != round_.number:
        return None
    return Seat(
        epoch=state.epoch,
        round=round_.number,
        role=member.role,
        group_rank=member.group_rank,
        group_world_size=sum(state.members.values()),
        first_rank=member.first_rank,
        world_size=sum(state.workers.values()),
        role_first_rank=member.role_first_rank,
        role_world_size=state.workers[member.role],
        master_addr=round_.master_addr,
        master_port=round_.master_port,
        restart_count=round_.number - 1,
        restore=round_.restore,
        persists=member.group_rank == 0,
        peers=member.peers,
        keeps=member.keeps,
        peer_copies=round_.peer_copies,
        neighbours=neighbours(round_, member.group_rank),
        certifies=round_.certifies,
        loss_spike=round_.loss_spike,
        skips=round_.skips,
        replays=round_.replays,
        framework=round_.framework,
        members={} if round_.framework is Framework.PYTORCH else round_.members,
    )


def neighbours(round_: Round, group_rank: int) -> tuple[Neighbour, ...]:
    """The members that this one asks for a sign of life: all others of few, else those 1, 2, 4, ... places after it.

    So each member is asked by others near and far, and a rack that fails as a whole is noticed.
    """
    size = sum(map(len, round_.members.values()))
    few = size <= MOST_NEIGHBOURS + 1
    steps = range(1, size) if few else [1 << power for power in range(MOST_NEIGHBOURS) if 1 << power < size]
    return tuple(_neighbour(round_, (group_rank + step) % size) for step in steps)


def _neighbour(round_: Round, group_rank: int) -> Neighbour:
    for members in round_.members.values():
        if group_rank < len(members):
            return Neighbour(members[group_rank].node, members[group_rank].address)
        group_rank -= len(members)
    raise IndexError("the rank is beyond the round's members")


def seat_for(state: State, join: Join) -> Seat | None:
    """The seat to answer a join with: in the running round, if that is later than the round the agent was in."""
    if state.phase is not JobPhase.RUNNING or state.round is None or state.round.number <= join.after_round:
        return None
    node = state.nodes.get(join.node)
    asks = node and node.phase is NodePhase.RUNNING and node.life == join.life
    return seat(state, join.node) if asks else None


def is_spent(state: State, join: Join) -> bool:
    """Whether this join will never get a seat: its node was told to join again since, or a later agent has joined."""
    node = state.nodes.get(join.node)
    if node is None or (node.life, node.join) < (join.life, join.number):
        return False
    return (node.life, node.join) > (join.life, join.number) or node.phase in _TOLD_TO_JOIN


def directive(state: State, node: str, life: int = 0) -> Directive | None:
    """The directive for the agent `life` of the node; None if there is none yet or the node is not in this job.

    An agent that a later one has replaced is told to join again. An agent that has not joined yet does not get the
    directive of an earlier one.
    """
    known_node = state.nodes.get(node)
    if known_node is None or (life > known_node.life):
        return None
    if life < known_node.life:
        why = "an agent of this node that began later has joined"
        return Directive(
            state.epoch, known_node.directive, Action.REJOIN, why, round_number(state), life=known_node.life
        )
    action = known_node.action
    return Directive(
        state.epoch, known_node.directive, action, known_node.action_reason, known_node.action_round,
        ends_iteration=action is Action.REJOIN and state.broken in CALM,
    )  # fmt: skip
