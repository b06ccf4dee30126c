"""One node check as a state machine: nodes report measurements, and it orders what each does next. No IO, no clock.

A round has two halves for each group. ALONE: every member does its products; the group goes on only if all of them
succeed. TOGETHER: the all-reduce. Each half may take half of the timeout, and a wait on the group a quarter, so that
the partners of a hanging node report before it is given up. A node that is still silent then has hung, unless its whole
group is silent. Its own work is ended a little earlier, so that it can report what it was at.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everstep.runtime.diagnosis.evidence import Measurement, Round
from everstep.runtime.diagnosis.messages import Arrive, Order, Over, Stage, StageResult, Stop, Together, Work
from everstep.runtime.diagnosis.rounds import Plan, next_round
from everstep.runtime.diagnosis.verdicts import Health, Verdict, judge, nodes_with, usable_count

_OWN_SHARE = 0.45
"""Of the timeout: for a node's own work."""


@dataclass
class _Group:
    """One group in the running round."""

    members: tuple[str, ...]
    stage: Stage
    deadline: float
    waiting: set[str]
    """Nodes that have not reported this half."""
    measurements: dict[str, Measurement]
    store: str = ""
    done: bool = False


class Session:
    """The check of some nodes, from the first round to the verdicts.

    Args:
        members: the participants, in rank order.
        trusted_names: names of those known to be healthy: they only serve as partners.
        timeout_s: for a node's part in one round.
        exclude_straggler: a straggler is to be avoided.
    """

    def __init__(
        self,
        members: Sequence[Arrive],
        *,
        trusted_names: Iterable[str] = (),
        timeout_s: float = 300.0,
        exclude_straggler: bool = False,
    ) -> None:
        self.members = {member.node: member for member in members}
        self.past: list[Round] = []
        self.verdicts: list[Verdict] | None = None
        """Once the check is over: one for each member, in their order."""
        self.reason = ""
        """The reason for the running round, or for its being the last."""
        self._trusted = frozenset(trusted_names)
        self._timeout_s = timeout_s
        self._exclude_straggler = exclude_straggler
        self._groups: list[_Group] = []
        self._group_of: dict[str, _Group] = {}
        self._plan = Plan((), "")
        self._orders: dict[str, Order] = {}
        self._ordered: set[str] = set()
        self._lost: dict[str, str] = {}

    def begin(self, now: float) -> None:
        """Order the first round."""
        self._advance_rounds(now)

    def order(self, node: str, last_number: int) -> Order | None:
        """The newest order of a node, if it is newer than `last_number`. Older orders need not be carried out."""
        order = self._orders.get(node)
        return order if order is not None and order.number > last_number else None

    def take_ordered_nodes(self) -> set[str]:
        """The nodes with new orders since the last call."""
        nodes_with_orders, self._ordered = self._ordered, set()
        return nodes_with_orders

    def next_deadline(self) -> float | None:
        """When to call `handle_timer` if nothing else happens; None: not at all."""
        return min((group.deadline for group in self._groups if not group.done), default=None)

    def record_result(self, result: StageResult, now: float) -> None:
        """Record a node's result of a half of a round, or its death at any time. A repeated or late result changes
        nothing."""
        group = self._group_of.get(result.node)
        if group is None or group.done or result.round != self._round_number:
            return
        is_due = result.node in group.waiting and result.stage is group.stage
        has_died = result.measurement.died and not group.measurements[result.node].died
        if not is_due and not has_died:
            return
        # Names are the session's own: a node speaks only for itself.
        member = self.members[result.node]
        group.measurements[result.node] = replace(result.measurement, node=member.node, host=member.host)
        group.store = result.store or group.store
        group.waiting.discard(result.node)
        self._advance_group(group, now)
        self._advance_rounds(now)

    def mark_lost(self, node: str, reason: str, now: float) -> None:
        """The node is gone for good."""
        self._lost[node] = reason
        group = self._group_of.get(node)
        if group is not None and node in group.waiting:
            self._give_up_node(group, node, reason)
            self._advance_group(group, now)
        self._advance_rounds(now)

    def handle_timer(self, now: float) -> None:
        """Give up nodes whose deadline has passed: `now` is at least `next_deadline`."""
        for group in self._groups:
            if not group.done and now >= group.deadline:
                self._expire_group(group)
                self._advance_group(group, now)
        self._advance_rounds(now)

    def _advance_rounds(self, now: float) -> None:
        """While all groups are done, close the round and open the next; at the end, make the verdicts."""
        while self.verdicts is None and all(group.done for group in self._groups):
            if self._groups:
                measurements = {
                    node: measurement for group in self._groups for node, measurement in group.measurements.items()
                }
                self.past.append(Round(self._round_number, self._plan.groups, self._plan.reason, measurements))
            self._plan = next_round(list(self.members), self.past, self._trusted)
            self.reason = self._plan.reason
            self._groups, self._group_of = [], {}
            if self._plan.groups:
                self._open_round(now)
            else:
                self._conclude()

    def _open_round(self, now: float) -> None:
        deadline = now + self._timeout_s / 2
        for members in self._plan.groups:
            measurements = {node: Measurement(node, self.members[node].host) for node in members}
            group = _Group(members, Stage.ALONE, deadline, set(members), measurements)
            self._groups.append(group)
            self._group_of.update(dict.fromkeys(members, group))
            for node in members:
                number, limit_s = self._next_number(node), _OWN_SHARE * self._timeout_s
                self._issue(Work(number, self._round_number, node == members[0], limit_s), node)
        for group in self._groups:
            self._give_up_lost_nodes(group)
            self._advance_group(group, now)

    def _give_up_lost_nodes(self, group: _Group) -> None:
        for node in self._lost.keys() & group.waiting:
            self._give_up_node(group, node, self._lost[node])

    def _advance_group(self, group: _Group, now: float) -> None:
        """Advance the group as far as its results allow."""
        if group.done or (group.waiting and not self._is_hopeless(group)):
            return
        able = all(measurement.works_alone for measurement in group.measurements.values())
        if group.stage is Stage.TOGETHER or not able:
            self._close_group(group)
        elif len(group.members) == 1:
            node = group.members[0]
            group.measurements[node] = replace(group.measurements[node], all_reduce_s=0.0)
            self._close_group(group)
        else:
            group.stage, group.waiting = Stage.TOGETHER, set(group.members)
            group.deadline = now + self._timeout_s / 2
            for rank, node in enumerate(group.members):
                number, wait_s = self._next_number(node), self._timeout_s / 4
                self._issue(Together(number, self._round_number, rank, len(group.members), group.store, wait_s), node)
            self._give_up_lost_nodes(group)
            self._advance_group(group, now)

    def _is_hopeless(self, group: _Group) -> bool:
        """Did a member die in the all-reduce? Then the others need not wait for it."""
        return group.stage is Stage.TOGETHER and any(measurement.died for measurement in group.measurements.values())

    def _close_group(self, group: _Group) -> None:
        failed_members = [node for node in group.members if not group.measurements[node].works_alone]
        for node in group.members:
            if failed_members and node not in failed_members:
                why = f"{', '.join(failed_members)} of its group failed"
                self._issue(Stop(self._next_number(node), self._round_number, why), node)
        group.done, group.waiting = True, set()

    def _expire_group(self, group: _Group) -> None:
        half = f"{self._timeout_s / 2:g} s"
        if group.stage is Stage.ALONE:
            for node in list(group.waiting):
                self._give_up_node(group, node, f"its own work did not end within {half}")
            return
        everyone = len(group.waiting) == len(group.members)
        for node in list(group.waiting):
            if everyone:
                group.measurements[node] = replace(
                    group.measurements[node], error=f"its whole group was silent for {half}"
                )
                group.waiting.discard(node)
                self._issue(Stop(self._next_number(node), self._round_number, "its time is up"), node)
            else:
                self._give_up_node(group, node, f"its all-reduce neither ended nor failed within {half}")

    def _give_up_node(self, group: _Group, node: str, reason: str) -> None:
        group.measurements[node] = replace(group.measurements[node], died=True, error=reason)
        group.waiting.discard(node)
        self._issue(Stop(self._next_number(node), self._round_number, reason), node)

    def _conclude(self) -> None:
        hosts = [member.host for member in self.members.values()]
        self.verdicts = judge(
            list(self.members), hosts, self.past, trusted_names=self._trusted, exclude_straggler=self._exclude_straggler
        )
        nodes_by_health = {health: tuple(nodes_with(self.verdicts, health)) for health in Health}
        for verdict in self.verdicts:
            over = Over(
                self._next_number(verdict.node),
                verdict,
                faulty=nodes_by_health[Health.FAULTY],
                stragglers=nodes_by_health[Health.STRAGGLER],
                undecided=nodes_by_health[Health.UNDECIDED],
                usable=usable_count(self.verdicts),
            )
            self._issue(over, verdict.node)

    @property
    def _round_number(self) -> int:
        return len(self.past) + 1

    def _issue(self, order: Order, node: str) -> None:
        self._orders[node] = order
        self._ordered.add(node)

    def _next_number(self, node: str) -> int:
        order = self._orders.get(node)
        return 1 if order is None else order.number + 1
