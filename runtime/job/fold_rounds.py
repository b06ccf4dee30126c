"""What records say of rounds: formed, standing still, slow, broken, and the test of its nodes before the next one."""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from everstep.runtime.job import data_queues
from everstep.runtime.job.nodes import NodePhase, NodeState, UnlistedTransition, node_after
from everstep.runtime.job.peers import copy_keepers
from everstep.runtime.job.reasons import UNEXPLAINED, Reason
from everstep.runtime.job.records import (
    CheckOver,
    CheckRequested,
    HangExplained,
    HangOver,
    HangSeen,
    NodeTested,
    RoundBroken,
    RoundFormed,
    SlowSeen,
)
from everstep.runtime.job.state import State, member_names, next_round, require_node, restore_point, with_nodes
from everstep.runtime.protocol.messages import Action
from everstep.runtime.protocol.rounds import Round

KEPT_WORLDS = 64
"""Rounds whose world size the state remembers."""
P = NodePhase
_FAULTLESS = (Reason.GROW, Reason.SCALED, Reason.PREEMPTED, Reason.DAMAGED)
"""Reasons to end a round that are not charged as a fault."""


def _require_running(state: State, record: HangSeen | HangOver | SlowSeen | RoundBroken) -> Round:
    if state.round is None or record.round != state.round.number:
        raise UnlistedTransition(f"{type(record).__name__} in round {record.round}, but it is not running")
    return state.round


def _apply_round_formed(state: State, record: RoundFormed) -> State:
    round_ = record.round
    if round_.number != next_round(state):
        raise UnlistedTransition(f"round {round_.number} where {next_round(state)} is the next")
    is_same = member_names(state.round) == member_names(round_)
    nodes: list[NodeState] = []
    first_rank = 0
    for members in round_.members.values():
        slots = [member.slots for member in members]
        keepers = copy_keepers(members, round_.peer_copies)
        kept = Counter(keeper for each in keepers for keeper in each)
        for index, (member, role_first) in enumerate(zip(members, accumulate(slots, initial=0), strict=False)):
            node = node_after(
                require_node(state, member.node), record,
                round=round_.number, group_rank=len(nodes), first_rank=first_rank + role_first,
                role_first_rank=role_first, keeps=kept[index],
                peers=tuple(members[keeper].address for keeper in keepers[index]),
            )  # fmt: skip
            nodes.append(node)
        first_rank += sum(slots)
    for role in round_.members:  # They were waited for, and are not waited for again.
        late_nodes = state.nodes.select(role, (P.REJOINING,))
        nodes += [node_after(node, record, node.action_reason, node.action_round) for node in late_nodes]
    worlds = {**state.worlds, round_.number: first_rank}
    restored_iteration = round_.restore.iteration if round_.restore else 0
    is_step_back = restored_iteration < restore_point(state)[1]  # What was reached before lies ahead again.
    queues = {name: data_queues.in_next_round(queue, restored_iteration) for name, queue in state.queues.items()}
    # A node that has not rejoined may be why the last round broke: errors in that round are not charged.
    unsure = {round_.number - 1} if state.nodes.total((P.REJOINING, P.SUSPECTED)) else set()
    return with_nodes(
        state, *nodes, round=round_, finished={}, reason=round_.reason, hang=None, slow=(), queues=queues,
        began_at=state.began_at or record.time, reached=0 if is_step_back else state.reached,
        changed_at=state.changed_at if is_same else record.time,
        members={role: len(members) for role, members in round_.members.items()},
        workers={role: sum(member.slots for member in members) for role, members in round_.members.items()},
        worlds={number: worlds[number] for number in sorted(worlds)[-KEPT_WORLDS:]},
        blamed={number: fault for number, fault in state.blamed.items() if number not in state.excused | unsure},
        excused=frozenset(), broken=None,
    )  # fmt: skip


def _apply_hang(state: State, record: HangSeen | HangOver) -> State:
    _require_running(state, record)
    hangs = record if isinstance(record, HangSeen) else None
    action, why = (Action.DUMP, "all ranks stand still") if hangs else (Action.CONTINUE, "they move again")
    nodes = [
        node_after(node, record, why, record.round, action=action)
        for leaving in (False, True)
        for role in state.members
        for node in state.nodes.select(role, (P.RUNNING,), leaving)
    ]
    return with_nodes(state, *nodes, hang=hangs, reason=f"round {record.round}: {why}")


def _apply_hang_explained(state: State, record: HangExplained) -> State:
    if state.hang is None or record.round != state.hang.round:
        raise UnlistedTransition(f"HangExplained in round {record.round}, but it is not hanging")
    hang = replace(state.hang, explanation=record.detail)
    times = {**state.hang_times, **dict.fromkeys(record.ranks or (-1,), record.time)}
    return replace(state, hang=hang, hang_times=times, reason=f"round {record.round} hangs: {record.detail}")


def _apply_slow_seen(state: State, record: SlowSeen) -> State:
    _require_running(state, record)
    return replace(state, slow=(*state.slow, record), reason=f"round {record.round}: {record.detail}")


def _apply_round_broken(state: State, record: RoundBroken) -> State:
    restore = _require_running(state, record).restore
    start = restore.iteration if restore else 0
    if record.reason is Reason.DISCONNECTED:  # It counts against nothing else: what was reached before is no progress.
        start = max(start, state.reached)
    stalled = state.stalled + (record.reason not in _FAULTLESS)
    # Members stop their workers one after the other: workers of the others die of the broken connection first.
    echoes = () if record.reason in UNEXPLAINED else (record.round,)
    nodes = [
        node_after(node, record, record.detail, record.round)
        for leaving in (False, True)
        for role in state.members
        for node in state.nodes.select(role, (P.RUNNING, P.FINISHED), leaving)
    ]
    return with_nodes(
        state, *nodes, since=record.time, reason=record.detail, finished={}, hang=None, slow=(), broken=record.reason,
        excused=state.excused.union(echoes), stalled=0 if record.iteration > start else stalled,
        iteration=max(state.iteration, record.iteration), reached=max(state.reached, record.iteration),
    )  # fmt: skip


def _apply_check_requested(state: State, record: CheckRequested) -> State:
    why = f"round {record.round} may have ended because of faulty hardware"
    nodes = [
        node_after(node, record, why, record.round)
        for role in state.members
        for node in state.nodes.select(role, (P.WAITING,))
        if node.round == record.round
    ]
    return with_nodes(state, *nodes, check_round=record.round, checks_since=record.time, reason=why)


def _apply_node_tested(state: State, record: NodeTested) -> State:
    node = node_after(require_node(state, record.node), record)
    excused_rounds = state.excused | {record.round} if record.problem else state.excused
    return with_nodes(state, node, excused=excused_rounds)


def _apply_check_over(state: State, record: CheckOver) -> State:
    late = [
        node_after(node, record)
        for leaving in (False, True)
        for role in state.nodes.roles()
        for node in state.nodes.select(role, (P.CHECKING,), leaving)
    ]
    return with_nodes(state, *late, reason=f"{', '.join(record.nodes)} did not answer a test in time")


ROUND_HANDLERS: Mapping[type, Callable[[State, Any], State]] = {
    RoundFormed: _apply_round_formed,
    HangSeen: _apply_hang,
    HangExplained: _apply_hang_explained,
    HangOver: _apply_hang,
    SlowSeen: _apply_slow_seen,
    RoundBroken: _apply_round_broken,
    CheckRequested: _apply_check_requested,
    NodeTested: _apply_node_tested,
    CheckOver: _apply_check_over,
}
