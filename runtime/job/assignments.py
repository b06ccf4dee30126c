"""An agent's seat in a round and its directive. Pure functions of the state."""

from collections.abc import Sequence

from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.state import State, round_number
from everstep.runtime.protocol.messages import Action, Directive, Join, Member, Round, Seat

NEIGHBOURS = 64
"""How far the search for a member on another host goes in rank order; bounds its cost in a round of 10,000 nodes."""


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
        peer=peer(round_.members[member.role], member.group_rank - _members_before(round_, member.role)),
        certifies=round_.certifies,
    )


def peer(members: Sequence[Member], place: int) -> str:
    """The address of the member that keeps copies of the shards of `members[place]`, on another host; "" if there is
    none.

    It comes after the members on the same host, at the same offset as the member from the first of these: if all hosts
    have equally many nodes, each node keeps the copies of one other.
    """
    count, host = len(members), members[place].host
    first, end = place, place + 1
    while first > max(0, place - NEIGHBOURS) and members[first - 1].host == host:
        first -= 1
    while end < min(count, place + NEIGHBOURS) and members[end].host == host:
        end += 1
    for candidate in (end + place - first, end, first - 1):
        if members[candidate % count].host != host:
            return members[candidate % count].address
    return ""


def _members_before(round_: Round, role: str) -> int:
    """The number of members of the roles before that one."""
    roles = list(round_.members)
    return sum(len(round_.members[earlier]) for earlier in roles[: roles.index(role)])


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
    return (node.life, node.join) > (join.life, join.number) or node.phase in (NodePhase.REJOINING, NodePhase.LOST)


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
    return Directive(
        state.epoch, known_node.directive, known_node.action, known_node.action_reason, known_node.action_round
    )
