"""Runs one policy through one trace: machines and agents in virtual time around the real brain."""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from everstep.runtime.job.brain import Brain, WriteManifest, WriteRecord
from everstep.runtime.job.events import (
    Event,
    HeartbeatSeen,
    Joined,
    ManifestWritten,
    NodeCreated,
    NodeGone,
    Opened,
    ShardStored,
    Tick,
    WorkerExited,
)
from everstep.runtime.job.fold import fold
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import (
    JobEnded,
    MasterClaimed,
    NodeLost,
    NodeReleased,
    NodeRequested,
    Record,
    RoundBroken,
    RoundFormed,
)
from everstep.runtime.job.spec import Hang, JobSpec, Patience, RoleSpec
from everstep.runtime.job.state import round_number
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Heartbeat, Join, Persisted, WorkerExit
from everstep.runtime.simulation.costs import Costs
from everstep.runtime.simulation.outcome import Outcome
from everstep.runtime.simulation.policy import Policy
from everstep.runtime.simulation.trace import Failure, Trace

ROLE = "worker"
FOUND_SHARE = 0.9
"""Share of bad machines that a node check finds."""
_SURVIVING = (NodePhase.REJOINING, NodePhase.SUSPECTED)
"""Phases of nodes that are told to join again."""
_EVER = 1e9
_BEGIN = 1000.0
"""The brain's time at which the trace begins."""


def simulate(
    nodes: int, trace: Trace, policy: Policy, costs: Costs, on_share: Callable[[float], None] = lambda share: None
) -> Outcome:
    """The outcome. The trace must have a machine for each node and spare. `on_share` gets the share of the trace that
    is simulated, at each event."""
    world = _World(nodes, trace, policy, costs)
    world.run(on_share)
    return world.outcome


def spec_of(nodes: int, policy: Policy) -> JobSpec:
    """The job. What depends on heartbeats never happens, and no limit of retries ends it."""
    patience = Patience(
        join_window_s=policy.join_window, replacement_wait_s=policy.shrink_after, cooldown_s=policy.cooldown,
        restart_cost_s=policy.restart_cost,
        silence_s=_EVER, join_timeout_s=_EVER, max_restarts=10**6, same_error=0, max_relaunches=10**6,
        no_progress=10**6, check_s=0.0,
    )  # fmt: skip
    role = RoleSpec(nodes, max(1, round(policy.min_share * nodes)), slots=8)
    return JobSpec("simulated", {ROLE: role}, patience, hosts="", hang=Hang(timeout_s=_EVER, start_timeout_s=_EVER))


class _World:
    """Machines, agents and the work done so far."""

    def __init__(self, nodes: int, trace: Trace, policy: Policy, costs: Costs) -> None:
        self.policy, self.costs, self.trace, self.nodes = policy, costs, trace, nodes
        self.now = _BEGIN - costs.node_s - policy.check
        self.end = _BEGIN + trace.seconds
        machines = min(nodes + policy.spares, trace.machines)
        self.outcome = Outcome(policy.name, trace.seconds, nodes, machines)
        self._free = list(range(machines - 1, -1, -1))
        """Machines that can take a node, the next one last."""
        self._wanted: deque[str] = deque()
        """Requested nodes without a machine."""
        self._machine: dict[str, int] = {}
        self._node: dict[int, str] = {}
        self._dead: set[str] = set()
        """Nodes whose machine has failed, until they are removed: the master learns of it later."""
        self._away: set[int] = set()
        """Machines that are being repaired."""
        self._good: set[int] = set()
        """Bad machines that a check has found, and that came back repaired."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._joins: dict[str, int] = {}
        self._work = 0.0
        """Seconds of work with all nodes that the running state has done."""
        self._rate = 0.0
        """Work per second; 0: nothing trains."""
        self._since = _BEGIN
        """When the work was counted last."""
        self._staged = 0
        """Iteration of the copies in memory; 0: there are none."""
        self._failed_at: float | None = None
        self._alarm = float("inf")
        state = fold([MasterClaimed(time=self.now, epoch=1, address="m:1")])
        self.brain = Brain(spec_of(nodes, policy), state, self.now)

    def run(self, on_share: Callable[[float], None]) -> None:
        """Until the trace is over or the job has ended."""
        for failure in self.trace.failures:
            self._at(_BEGIN + failure.time, self._fail, failure)
        self._feed(Opened())
        self._at(self.now + self.policy.persist, self._persist)
        while self._heap and self._heap[0][0] <= self.end and not self.outcome.result:
            self.now, _, call, arguments = heapq.heappop(self._heap)
            if self.now > _BEGIN:
                on_share((self.now - _BEGIN) / self.trace.seconds)
            call(*arguments)
        self.now = self.end
        self._count_work()
        self.outcome.useful_s = self._work
        self.outcome.samples.append((self.now - _BEGIN, 0))

    def _at(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, call, arguments))

    def _feed(self, *events: Event) -> None:
        """Let the brain decide, and do what it says."""
        self.outcome.events += len(events)
        decisions, _ = self.brain.handle_together(events, self.now)
        for decision in decisions:
            if isinstance(decision, WriteRecord):
                self._act(decision.record)
            else:
                self._at(self.now + 1.0, self._commit, decision)
        deadline = self.brain.next_deadline()
        if deadline is not None and deadline < self._alarm:
            self._alarm = deadline
            self._at(max(deadline, self.now) + 1e-6, self._tick)

    def _tick(self) -> None:
        self._alarm = float("inf")
        self._feed(Tick())

    def _commit(self, decision: WriteManifest) -> None:
        self._feed(ManifestWritten(decision.round, decision.iteration, "manifest"))

    def _act(self, record: Record) -> None:
        match record:
            case NodeRequested():
                self._wanted.append(record.node)
                self._at(self.now, self._place)
            case NodeLost() | NodeReleased():
                self._at(self.now, self._remove, record.node)
            case RoundBroken():
                self._stop()
                if self._failed_at is None and record.reason in (Reason.GROW, Reason.SCALED):
                    self._failed_at = self.now
                self._at(self.now + self.costs.stop_s, self._rejoin, record.round)
            case RoundFormed():
                self._begin(record)
            case JobEnded():
                self.outcome.result = f"{record.result.value}: {record.reason}"

    def _place(self) -> None:
        """Machines for the nodes that have none, as long as there are machines."""
        nodes_placed = []
        while self._wanted and self._free:
            node, machine = self._wanted.popleft(), self._free.pop()
            node_state = self.brain.state.nodes.get(node)
            if node_state is None or node_state.phase is not NodePhase.REQUESTED:
                self._free.append(machine)
                continue
            if self._finds(machine):
                self._wanted.appendleft(node)
                self._repair(machine, self.trace.seconds / 20)
                self._good.add(machine)
                continue
            self._machine[node], self._node[machine] = machine, node
            nodes_placed.append(node)
        if nodes_placed:
            self._feed(*map(NodeCreated, nodes_placed))
            self._at(self.now + self.costs.node_s + self.policy.check, self._join, tuple(nodes_placed))

    def _finds(self, machine: int) -> bool:
        """Does the check find this machine? Which ones it misses follows from their numbers."""
        is_bad = machine in self.trace.bad and machine not in self._good
        return self.policy.check > 0 and is_bad and (machine * 7919 % 1000) / 1000 < FOUND_SHARE

    def _join(self, names: tuple[str, ...]) -> None:
        """These nodes join, those that are still there."""
        state, events = self.brain.state, []
        number = round_number(state)
        for name in names:
            node_state, machine = state.nodes.get(name), self._machine.get(name)
            if machine is None or name in self._dead:
                continue
            if node_state is None or node_state.phase not in (NodePhase.REQUESTED, *_SURVIVING):
                continue
            holdings: tuple[Holding, ...] = ()
            if node_state.phase in _SURVIVING and self._staged:
                holdings = (Holding(number, self._staged, node=name, address=f"10.0.0.1:{machine}"),)
            count = self._joins[name] = self._joins.get(name, 0) + 1
            join = Join(name, ROLE, f"m{machine}", 8, f"10.0.0.1:{machine}", 29500, holdings, number, number=count)
            events.append(Joined(join))
        if events:
            self._feed(*events)

    def _rejoin(self, number: int) -> None:
        """All survivors of that round."""
        if round_number(self.brain.state) == number:
            self._join(tuple(node.name for node in self.brain.state.nodes.select(ROLE, _SURVIVING)))

    def _begin(self, record: RoundFormed) -> None:
        """The round's workers start; they train once all is built and read."""
        restore, costs = record.round.restore, self.costs
        from_store = restore is not None and not any(source.node for source in restore.sources)
        work = (restore.iteration if restore else 0) * costs.iteration_s
        self.outcome.wasted_s += max(self._work - work, 0.0)
        self._work = work
        self.outcome.rounds += 1
        self.outcome.store_restores += from_store
        reading = 0.0 if restore is None else costs.restore_store_s if from_store else costs.restore_s
        check = self.policy.check if record.round.number > 1 else 0.0
        self._at(self.now + check + costs.init_s + reading, self._train, record.round.number)

    def _train(self, number: int) -> None:
        state = self.brain.state
        if round_number(state) != number or not state.nodes.count(ROLE, (NodePhase.RUNNING,)):
            return
        assert state.round is not None, "it is running"
        if not self._dead.isdisjoint(member.node for member in state.round.members[ROLE]):
            return  # The master breaks this round when it learns of it.
        self._count_work()
        members = sum(state.members.values())
        self._rate = members / self.nodes
        self._since = self.now
        self._at(self.now + self.costs.iteration_s / self._rate, self._report_iteration, number)
        self.outcome.samples.append((self.now - _BEGIN, members))
        if self._failed_at is not None:
            first = self.now + self.costs.iteration_s / self._rate
            self.outcome.recoveries.append(first - self._failed_at)
            self._failed_at = None

    def _report_iteration(self, number: int) -> None:
        """The first iteration of a round is done: one node's heartbeat says so. No other heartbeats are simulated."""
        state = self.brain.state
        if round_number(state) == number and self._rate:
            assert state.round is not None, "it trains"
            node = state.nodes[state.round.members[ROLE][0].node]
            done = int(self._work / self.costs.iteration_s) + 1
            beat = Heartbeat(node.name, number, done, moved=True, life=node.life, number=number, join=node.join)
            self._feed(HeartbeatSeen(beat))

    def _count_work(self) -> None:
        """The work since it was counted last."""
        elapsed_s, costs = self.now - self._since, self.costs
        if self._rate:
            between = self.policy.stage * costs.iteration_s / self._rate
            stall = costs.stage_stall_s / (between + costs.stage_stall_s)
            self._work += elapsed_s * self._rate * (1 - stall)
            self.outcome.stall_s += elapsed_s * self._rate * stall
            self.outcome.node_s += elapsed_s * self._rate * self.nodes
        else:
            self.outcome.down_s += elapsed_s
        self._since = self.now

    def _stop(self) -> None:
        """Nothing trains any more; the copies in memory are of the last staged iteration."""
        self._count_work()
        if self._rate:
            self._rate = 0.0
            self._staged = self._staged_iteration() if self.costs.from_memory else 0
            self.outcome.samples.append((self.now - _BEGIN, 0))

    def _staged_iteration(self) -> int:
        """The newest iteration that was copied; 0: none."""
        iterations_done = int(self._work / self.costs.iteration_s)
        return iterations_done - iterations_done % self.policy.stage

    def _fail(self, failure: Failure) -> None:
        """Machines fail: those that train stop the round at once, though the master learns of it later."""
        # The trace may have machines beyond those of this policy, for another one with more spares.
        present = [machine for machine in failure.machines if machine < self.outcome.machines]
        lost_machines = [machine for machine in present if machine not in self._away]
        lost_machines = [
            machine for machine in lost_machines if not (machine in self._good and machine in self.trace.bad)
        ]
        nodes = [self._node[machine] for machine in lost_machines if machine in self._node]
        if not failure.process:
            for machine in lost_machines:
                self._repair(machine, failure.repair_s)
            self._dead.update(nodes)
        training = [name for name in nodes if self.brain.state.nodes[name].phase is NodePhase.RUNNING]
        if not nodes:
            return
        self.outcome.failures += 1
        if training:
            self._failed_at = self.now if self._failed_at is None else self._failed_at
            self._stop()
            if not failure.process and self._copies_lost(lost_machines):
                self._staged = 0
        delay = self.costs.silent_s if failure.silent else self.costs.detect_s
        self._at(self.now + delay, self._report, tuple(nodes), failure.process)

    def _copies_lost(self, lost_machines: list[int]) -> bool:
        """Is a state gone with both its holders? A node's copy is with the next node in rank order."""
        order = self.brain.state.round
        if order is None or len(lost_machines) < 2:
            return False
        names = [member.node for member in order.members[ROLE]]
        lost_nodes = {self._node.get(machine, "") for machine in lost_machines}
        return any(
            name in lost_nodes and holder in lost_nodes
            for name, holder in zip(names, [*names[1:], names[0]], strict=True)
        )

    def _report(self, nodes: tuple[str, ...], process: bool) -> None:
        """The master learns of the failure."""
        placed_nodes = [name for name in nodes if name in self._machine]
        number, iterations_done = round_number(self.brain.state), int(self._work / self.costs.iteration_s)
        if process:
            self._feed(*(WorkerExited(WorkerExit(name, number, 0, 0, -9, iterations_done)) for name in placed_nodes))
        else:
            self._feed(*(NodeGone(name, "its machine failed") for name in placed_nodes))

    def _remove(self, node: str) -> None:
        """A node is gone: its machine is free, unless it is being repaired."""
        machine = self._machine.pop(node, None)
        if machine is None:
            return
        self._dead.discard(node)
        del self._node[machine]
        if machine not in self._away:
            self._free.append(machine)
            self._place()

    def _repair(self, machine: int, seconds: float) -> None:
        self._away.add(machine)
        if machine in self._free:
            self._free.remove(machine)
        self._at(self.now + seconds, self._return, machine)

    def _return(self, machine: int) -> None:
        self._away.discard(machine)
        if machine not in self._node:
            self._free.insert(0, machine)
            self._place()

    def _persist(self) -> None:
        """A checkpoint in the store, if something trains."""
        self._count_work()
        iteration = self._staged_iteration()
        if self._rate and iteration:
            holding = Holding(round_number(self.brain.state), iteration, key=f"i{iteration}", size=1)
            first = self.brain.state.round
            assert first is not None, "something trains"
            self._feed(ShardStored(Persisted(first.members[ROLE][0].node, holding)))
        self._at(self.now + self.policy.persist, self._persist)
