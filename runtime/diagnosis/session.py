"""One node check as a state machine: nodes tell what they measured, it orders what each does next. No IO, no clock.

A round has two halves for each group. ALONE: every member does its products; a group goes on only when all of them
could. TOGETHER: the all-reduce. Each half may take half of the timeout, and a wait on the group a quarter, so that the
partners of a node that hangs report before it is given up. Whoever is still silent then has hung, unless its whole
group is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everstep.runtime.diagnosis.evidence import Measurement, Round
from everstep.runtime.diagnosis.messages import Arrive, Order, Over, Stage, StageResult, Stop, Together, Work
from everstep.runtime.diagnosis.rounds import Plan, next_round
from everstep.runtime.diagnosis.verdicts import Health, Verdict, judge, nodes_with, usable_count


@dataclass
class _Group:
    """One group in the running round."""

    members: tuple[str, ...]
    stage: Stage
    deadline: float
    waiting: set[str]
    """Who has not told this half."""
    measurements: dict[str, Measurement]
    store: str = ""
    done: bool = False


class Session:
    """The check of some nodes, from the first round to the verdicts.

    Args:
        members: who takes part, in rank order.
        trusted: names of those known to be healthy: they only serve as partners.
        timeout_s: for a node's part in one round.
        exclude_straggler: a straggler is to be avoided.
    """

    def __init__(
        self,
        members: Sequence[Arrive],
        *,
        trusted: Iterable[str] = (),
        timeout_s: float = 300.0,
        exclude_straggler: bool = False,
    ) -> None:
        self.members = {member.node: member for member in members}
        self.past: list[Round] = []
        self.verdicts: list[Verdict] | None = None
        """Once the check is over: one for each member, in their order."""
        self.reason = ""
        """Why the running round is as it is, or why there is no further one."""
        self._trusted = frozenset(trusted)
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

    def order(self, node: str, seen: int) -> Order | None:
        """The newest order of a node, if it is newer than the one it has seen. Older ones need not be carried out."""
        order = self._orders.get(node)
        return order if order is not None and order.number > seen else None

    def take_ordered_nodes(self) -> set[str]:
        """The nodes that got a new order since this was last asked."""
        ordered, self._ordered = self._ordered, set()
        return ordered

    def next_deadline(self) -> float | None:
        """When `wake` is to be called, if nothing else happens."""
        return min((group.deadline for group in self._groups if not group.done), default=None)

    def record_result(self, told: StageResult, now: float) -> None:
        """A node told a half of a round. What comes twice, or too late, changes nothing."""
        group = self._group_of.get(told.node)
        if (
            group is None
            or told.node not in group.waiting
            or (told.round, told.stage) != (self._round_number, group.stage)
        ):
            return
        # Names are the session's own: a node speaks only for itself.
        member = self.members[told.node]
        group.measurements[told.node] = replace(told.measurement, node=member.node, host=member.host)
        group.store = told.store or group.store
        group.waiting.discard(told.node)
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
        """Give up those who had their time. Compares with the very deadline that `next_deadline` gave."""
        for group in self._groups:
            if not group.done and now >= group.deadline:
                self._expire_group(group)
                self._advance_group(group, now)
        self._advance_rounds(now)

    def _advance_rounds(self, now: float) -> None:
        """Close rounds whose groups are all done, open the next; at the end, the verdicts."""
        while self.verdicts is None and all(group.done for group in self._groups):
            if self._groups:
                measured = {node: one for group in self._groups for node, one in group.measurements.items()}
                self.past.append(Round(self._round_number, self._plan.groups, self._plan.reason, measured))
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
            told = {node: Measurement(node, self.members[node].host) for node in members}
            group = _Group(members, Stage.ALONE, deadline, set(members), told)
            self._groups.append(group)
            self._group_of.update(dict.fromkeys(members, group))
            for node in members:
                self._issue(Work(self._next_number(node), self._round_number, opens_store=node == members[0]), node)
        for group in self._groups:
            self._give_up_lost_nodes(group)
            self._advance_group(group, now)

    def _give_up_lost_nodes(self, group: _Group) -> None:
        for node in self._lost.keys() & group.waiting:
            self._give_up_node(group, node, self._lost[node])

    def _advance_group(self, group: _Group, now: float) -> None:
        """Take the group on as far as what was told allows."""
        if group.done or (group.waiting and not self._is_hopeless(group)):
            return
        able = all(one.works_alone for one in group.measurements.values())
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
        """A member died in the all-reduce: the others need not wait for it."""
        return group.stage is Stage.TOGETHER and any(one.died for one in group.measurements.values())

    def _close_group(self, group: _Group) -> None:
        failed = [node for node in group.members if not group.measurements[node].works_alone]
        for node in group.members:
            if failed and node not in failed:
                why = f"{', '.join(failed)} of its group failed"
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
                self._give_up_node(group, node, f"its all-reduce did not end within {half}, nor fail")

    def _give_up_node(self, group: _Group, node: str, reason: str) -> None:
        group.measurements[node] = replace(group.measurements[node], died=True, error=reason)
        group.waiting.discard(node)
        self._issue(Stop(self._next_number(node), self._round_number, reason), node)

    def _conclude(self) -> None:
        hosts = [member.host for member in self.members.values()]
        self.verdicts = judge(
            list(self.members), hosts, self.past, trusted=self._trusted, exclude_straggler=self._exclude_straggler
        )
        found = {health: tuple(nodes_with(self.verdicts, health)) for health in Health}
        for verdict in self.verdicts:
            over = Over(
                self._next_number(verdict.node),
                verdict,
                faulty=found[Health.FAULTY],
                stragglers=found[Health.STRAGGLER],
                undecided=found[Health.UNDECIDED],
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
