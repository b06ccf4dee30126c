"""A simulated agent: the life of `runtime.agent.agent` around the same `MasterDialogue`, with imagined workers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.agent.pace_watch import WINDOW_S
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Action, Directive, Disconnected, Join, Persisted, SelfTest, WorkerExit
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.watch.slow_ranks import Pace

if TYPE_CHECKING:
    from tests.job.simulated import Simulation

TIMEOUTS_S = {"join": 40.0}
TIMEOUT_S = 15.0
DEAD_MAN_S = 900.0
ITERATION_S = 2.0
STILL_S = 2.5
"""It stands still, and has asked its neighbours."""


class Agent:
    """One process on one node."""

    def __init__(self, sim: "Simulation", name: str, role: str, host: str, life: int) -> None:
        self.sim, self.name, self.role, self.host = sim, name, role, host
        self.dialogue = MasterDialogue(name, life)
        self.alive = True
        self.exists = True
        """Does the platform show it? A machine without power is shown for a while."""
        self.frozen_until = 0.0
        self.hung = False
        """The workers of this round stand still."""
        self.training = False
        self.iteration = 0
        self.seat: Seat | None = None
        self.slanders_until = 0.0
        """Until then it says of any neighbour that it does not answer."""
        self.slow_until = 0.0
        """Until then the others wait for it."""
        self._window_began = sim.now
        self._last_seat: Seat | None = None
        self.held: dict[tuple[int, int, int], Holding] = {}
        self._known = False
        self._epoch = 0
        self._master: Any = None
        self._heard = sim.now
        self._tries: dict[str, int] = {}
        self._moved_at = self._began = 0.0
        self._moved = False
        self._over = -1
        """Rounds up to this one are known to be over."""
        sim.at(sim.random.random() * 3, self, self._join)
        sim.at(sim.random.random(), self, self._listen)

    # How it asks: again and again, until a master answers.

    def _post(self, way: str, message: Any, on_done: Callable[[int, Any], None]) -> None:
        number = self._tries[way] = self._tries.get(way, 0) + 1
        sim = self.sim

        def on_answer(status: int, reply: Any) -> None:
            if self._tries.get(way) != number:
                return  # Nobody waits for it any more.
            if reply is not None and reply.epoch < self._epoch:
                self._again(way, message, on_done)
                return
            self._tries[way] += 1
            self._epoch = max(self._epoch, getattr(reply, "epoch", 0))
            self._heard = sim.now
            on_done(status, reply)

        def on_failure() -> None:
            if self._tries.get(way) == number:
                self._again(way, message, on_done)

        if self._master is None or not self._master.alive:
            masters = sim.masters
            self._master = masters[-1] if masters else None
            sim.at(sim.random.random() * 1.5, self, on_failure)
            return

        def on_arrival() -> None:
            to = self._master_for(way)
            if to is not None:
                sim.at(0.0, to, to.take, message, lambda *reply: sim.carry(self, on_answer, *reply))

        sim.carry(None, on_arrival)
        sim.at(TIMEOUTS_S.get(way, TIMEOUT_S), self, on_failure)

    def _master_for(self, way: str) -> Any:
        """Whom a message reaches: a copy that comes late, any master that lives."""
        masters = self.sim.masters
        return self.sim.random.choice(masters) if masters else None

    def _again(self, way: str, message: Any, on_done: Callable[[int, Any], None]) -> None:
        sim = self.sim
        if sim.now - self._heard > DEAD_MAN_S:
            self.end(75)
            return
        if sim.masters:
            self._master = sim.masters[-1]
        self._tries[way] += 1
        number = self._tries[way]
        sim.at(
            sim.random.random() * 1.5,
            self,
            lambda: self._post(way, message, on_done) if self._tries[way] == number else None,
        )

    # Rounds.

    def _join(self) -> None:
        holdings = tuple(self.held.values())
        draft = Join(self.name, self.role, self.host, 1, f"{self.name}:1", 29500, holdings)
        requested_at = self.sim.now
        self._post(
            "join", self.dialogue.next_join(draft), lambda status, seat: self._seated(status, seat, requested_at)
        )

    def _seated(self, status: int, seat: Seat | None, requested_at: float) -> None:
        if status == 409:
            self.end(0)
            return
        self._known = True
        if seat is None:
            self.sim.at(0.5 if self.sim.now - requested_at < 0.1 else 0.0, self, self._join)
            return
        self.dialogue.take_seat(seat)
        self.seat, self.iteration, self.hung, self.training = seat, 0, False, False
        self._last_seat = seat
        self._began, self._moved = self.sim.now, False
        if self.dialogue.is_over(self._over):
            self._leave_round()
            return
        self.sim.at(self.sim.random.random() * 3, self, self._restore, seat)

    def _restore(self, seat: Seat) -> None:
        """The workers begin, from what the seat says, if somebody still has it."""
        if self.seat is not seat:
            return
        begin = (seat.restore.round, seat.restore.iteration) if seat.restore else (0, 0)
        self.iteration = begin[1]
        self.held = {place: holding for place, holding in self.held.items() if place[:2] <= begin}
        if seat.restore is not None and not all(map(self._readable, range(seat.restore.sources[0].shards))):
            self.sim.count("not restored")
            self.fault(1, "cannot be restored")
            return
        self.training = True
        members = self.sim.rounds.setdefault(seat.round, set())
        members.add(self)
        if len(members) == seat.group_world_size:
            self.sim.at(ITERATION_S, None, iterate, self.sim, seat)

    def _readable(self, shard: int) -> bool:
        assert self.seat
        assert self.seat.restore
        restore = self.seat.restore
        shards, agents = restore.sources[0].shards, self.sim.agents
        place = restore.round, restore.iteration, shard
        for source in restore.sources:
            if source.shard != shard:
                continue
            if source.key and (*place, shards) in self.sim.store:
                return True
            holder = agents.get(source.node)
            if holder and holder.alive and place in holder.held:
                return True
        return False

    def _leave_round(self) -> None:
        """The round is over: the workers die, and the agent joins again."""
        self._stop()
        self._join()

    def _stop(self) -> None:
        if self.seat is not None:
            self.sim.rounds.get(self.seat.round, set()).discard(self)
        self.seat, self.training = None, False

    def fault(self, code: int, error: str = "ValueError: x") -> None:
        """A worker dies; that is told before the agent joins again."""
        seat = self.seat
        if seat is None or (self.training and self.iteration >= self.sim.plan.iterations):
            return
        exit_report = WorkerExit(
            self.name, seat.round, seat.first_rank, 0, code, self.iteration, error, oom=code == 247
        )
        self._stop()
        self._post("fault", exit_report, lambda status, _: self.end(0) if status == 409 else self._join())

    def progress(self, seat: Seat) -> None:
        """All ranks have finished an iteration."""
        sim = self.sim
        self.iteration += 1
        self._moved, self._moved_at = True, sim.now
        shards = seat.world_size if sim.plan.sharded else 1
        mine = seat.first_rank if sim.plan.sharded else 0
        place = (seat.round, self.iteration, mine)
        self._hold(place, shards)
        for neighbour in _by_name(sim.rounds[seat.round]) if sim.plan.sharded else ():
            if neighbour.seat and (neighbour.seat.first_rank + 1) % seat.world_size == seat.first_rank:
                self._hold((seat.round, self.iteration, neighbour.seat.first_rank), shards)
        if self.iteration % 2 == 0 and (seat.persists or sim.plan.sharded):
            sim.at(sim.latency() * 3, self, self._put, *place, shards)
        if self.iteration >= sim.plan.iterations:
            self.training = False
            self._post(
                "finished",
                self.dialogue.finished_message(seat.round),
                lambda status, _: self.end(0) if status == 409 else None,
            )
        elif "outbox" not in self._tries or self._tries["outbox"] % 2 == 0:
            beat = self._beat(telemetry=({"iteration": self.iteration},))
            self._post("outbox", beat, lambda status, directive: self._act(directive if status == 200 else None))

    def _hold(self, place: tuple[int, int, int], shards: int) -> None:
        self.held[place] = Holding(*place, shards=shards, node=self.name, address="a:1")
        for old in sorted(self.held)[: -4 if self.sim.plan.sharded else -2]:
            del self.held[old]

    def _put(self, round_: int, iteration: int, shard: int, shards: int) -> None:
        self.sim.store.add((round_, iteration, shard, shards))
        persisted = Persisted(self.name, Holding(round_, iteration, shard, shards, key=f"k{iteration}"))
        self._post(f"persisted {round_} {iteration} {shard}", persisted, lambda *_: None)

    # Signs of life.

    def _beat(self, **more: Any) -> Any:
        since = self._moved_at if self._moved else self._began
        still_s = self.sim.now - since if self.training else 0.0
        knows_beacon = self.sim.plan.has_beacon
        return self.dialogue.next_heartbeat(
            iteration=self.iteration, still_s=still_s, moved=self._moved and knows_beacon, has_beacon=knows_beacon,
            silent=self._silent(still_s), silent_s=1.5, paces=self._paces(), **more
        )  # fmt: skip

    def _paces(self) -> tuple[Pace, ...]:
        """Its rank's, once a window."""
        if self.seat is None or not self.training or self.sim.now < self._window_began + WINDOW_S:
            return ()
        self._window_began = self.sim.now
        own_s = 2.0 if self.slow_until > self.sim.now and not self.sim.fair else 1.0
        return (Pace(self.seat.first_rank, 5, 50, 1 - own_s / ITERATION_S, ITERATION_S),)

    def _silent(self, still_s: float) -> tuple[str, ...]:
        """The neighbours that do not answer, while it stands still or waits for a seat; or so it says."""
        peers = self._last_seat.neighbours if self._last_seat else ()
        if self.slanders_until > self.sim.now and not self.sim.fair:
            return tuple(peer.node for peer in peers if self.sim.random.random() < 0.7)
        if not self.dialogue.waits and (not self.training or still_s < STILL_S):
            return ()
        return tuple(peer.node for peer in peers if not self._answers(self.sim.agents.get(peer.node)))

    def _answers(self, other: "Agent | None") -> bool:
        return other is not None and other.alive and (self.sim.fair or other.frozen_until <= self.sim.now)

    def accuse(self) -> None:
        """Say at once who does not answer."""
        self._post(
            "accusation", self._beat(), lambda status, directive: self._act(directive if status == 200 else None)
        )

    def _listen(self) -> None:
        began, is_known, beat = self.sim.now, self._known, self._beat()

        def on_directive(status: int, directive: Directive | None) -> None:
            if status == 409:
                if is_known:
                    self.end(0)
                else:
                    self.sim.at(0.5, self, self._listen)
                return
            self._act(directive)
            quick = (directive is None or directive.number <= beat.seen) and self.sim.now - began < 0.1
            self.sim.at(0.5 if quick else 0.0, self, self._listen)

        self._post("listen", beat, on_directive)

    def _act(self, directive: Directive | None) -> None:
        action = self.dialogue.accept(directive)
        if directive is None:
            return
        if action is Action.LEAVE:
            self.end(0)
        elif action is Action.REJOIN:
            self._over = max(self._over, directive.round)
            if self.seat is not None and self.dialogue.is_over(directive.round):
                self._leave_round()
        elif action is Action.DUMP:
            self._post("dumped", self.dialogue.dumped_message(directive), lambda *_: None)
        elif action is Action.CHECK:
            self._test(directive.round)
        elif action is Action.PERSIST:
            for place, holding in self.held.items():
                self.sim.at(self.sim.latency(), self, self._put, *place, holding.shards)

    def _test(self, round_: int) -> None:
        """It tests itself: mostly in time, mostly with success."""
        chance = self.sim.random.random()
        problem = "cpu: matmul is wrong" if chance < 0.05 and not self.sim.fair else ""
        self.sim.count("test fails" if problem else "test")
        seconds = self.sim.random.random() * (1.0 if chance < 0.8 else 20.0)
        self.sim.at(seconds, self, self._post, "tested", SelfTest(self.name, round_, seconds, problem), lambda *_: None)

    # What befalls it.

    def notice(self, grace_s: float) -> None:
        """SIGTERM: it says so and goes in time."""
        if self._known:
            self._post("leaving", self.dialogue.leaving_message("SIGTERM", grace_s), lambda *_: None)
        self.sim.at(grace_s if self._known else 0.0, self, self.end, 143)

    def hang(self) -> None:
        """The workers stand still until the round is over."""
        self.hung = self.sim.plan.has_beacon

    def disconnect(self) -> None:
        """A worker loses its connection to another rank, and waits for the round's end."""
        if self.seat is not None and self.training:
            self.hung = True
            report = Disconnected(self.name, self.seat.round, self.seat.first_rank, self.iteration, "closed by peer")
            self._post("disconnected", report, lambda status, _: self.end(0) if status == 409 else None)

    def slander(self, how: float) -> None:
        """It accuses neighbours that would answer."""
        self.slanders_until = self.sim.now + how * 40
        self.accuse()

    def slow(self, how: float) -> None:
        """Its machine is slow for a while."""
        self.slow_until = self.sim.now + how * 300

    def vanish(self) -> None:
        """The machine loses its power: nobody tells. The platform finds out later."""
        self.alive = False
        self._stop()
        self.sim.at(60.0, None, self._found_gone)
        for agent in self.sim.agents.values():
            self.sim.at(ITERATION_S + STILL_S, agent, agent.accuse)

    def _found_gone(self) -> None:
        if self.exists:
            self.exists = False
            self.sim.on_process_end(self, 137)

    def end(self, code: int) -> None:
        """The process ends, and its workers with it."""
        if self.alive:
            self.alive = self.exists = False
            self._stop()
            self.sim.on_process_end(self, code)

    def tell(self) -> str:
        """For whoever looks at what went wrong."""
        where = f"waits after round {self.dialogue.round}" if self.dialogue.waits else f"in round {self.dialogue.round}"
        return f"{'alive' if self.alive else 'dead'}, {where}, training {self.training}, seen {self.dialogue.seen}"


def iterate(sim: "Simulation", seat: Seat) -> None:
    """An iteration of that round, if all its members still are in it."""
    members = sim.rounds.get(seat.round, set())
    if len(members) < seat.group_world_size or not all(agent.training for agent in members):
        return
    if not any(agent.hung or (agent.frozen_until > sim.now and not sim.fair) for agent in members):
        sim.trained.add(seat.round)
        for agent in _by_name(members):
            assert agent.seat
            agent.progress(agent.seat)
    sim.at(ITERATION_S, None, iterate, sim, seat)


def _by_name(agents: set[Agent]) -> list[Agent]:
    return sorted(agents, key=lambda agent: agent.name)
