"""Queues of data shards in virtual time: each position is done once in what counts, whoever dies whenever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.job.data_queues import NOTHING, DataQueue, DoneLog, answered_position
from everstep.runtime.job.events import DataShardAsked, NodeFinishedRound
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.snapshot import decode_snapshot, encode_snapshot
from everstep.runtime.job.state import restore_point
from everstep.runtime.protocol.messages import Finished, ShardRequest
from tests.examples import examples
from tests.job.world import World, by_themselves, platform

SIZE = 12


class Workers:
    """One worker on each node of a job, as `everstep.shards` has them; every one of them saves what it has done."""

    def __init__(self, world: World, saves: bool) -> None:
        self.world, self.saves = world, saves
        self.iteration = 0
        self.round = 0
        self.doing: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.counted: list[tuple[int, int]] = []
        """(iteration, position) of all that counts."""
        self.sent: list[ShardRequest] = []

    @property
    def queue(self) -> DataQueue:
        return self.world.state.queues.get("q", DataQueue(SIZE))

    def follow_round(self) -> None:
        """A new round's workers begin with nothing, from the state that was restored."""
        if self.world.number != self.round:
            self.round, self.doing, self.numbers = self.world.number, {}, {}
            self.iteration = restore_point(self.world.state)[1]
            self.counted = [entry for entry in self.counted if entry[0] <= self.iteration]

    def turn(self, node: str, wants: bool = True) -> int | None:
        """The node's worker has done its shard, or with `wants=False` gives it back; it asks for another."""
        self.follow_round()
        position = self.doing.pop(node, NOTHING) if wants else NOTHING
        if not wants:
            self.doing.pop(node, None)
        if position != NOTHING and self.saves:
            self.iteration += 1
            self.world.stage(self.iteration)
        iteration = self.iteration if self.saves else 0
        if position != NOTHING:
            self.counted.append((iteration, position))
        number = self.numbers[node] = self.numbers.get(node, 0) + 1
        return self.ask(ShardRequest(node, 0, self.round, number, "q", SIZE, position, iteration, wants))

    def ask(self, request: ShardRequest) -> int | None:
        self.sent.append(request)
        self.world.send(DataShardAsked(request))
        position = answered_position(self.queue, request)
        if position is not None and position != NOTHING and request.wants:
            self.doing[request.node] = position
        return position


def begin(saves: bool = True) -> Workers:
    world = World(platform())
    world.join_all()
    return Workers(world, saves)


def check(workers: Workers) -> None:
    """What the queue holds is a partition of what was ever handed out, and what counts is in it once."""
    queue = workers.queue
    waiting = [position for start, end in queue.returned for position in range(start, end)]
    doing = [lease.position for lease in queue.leases.values() if lease.position != NOTHING]
    unsettled = [position for _, position in queue.unsettled]
    entries = waiting + doing + unsettled
    assert len(entries) == len(set(entries))
    assert len(entries) + queue.settled == queue.cursor <= SIZE
    counted = [position for _, position in workers.counted]
    assert len(counted) == len(set(counted)), "a shard counts twice"
    assert workers.round != workers.world.number or queue.done == len(counted)


steps = st.lists(
    st.tuples(
        st.sampled_from(["turn", "turn", "turn", "leave", "die", "copy", "takeover", "snapshot"]), st.integers(0, 60)
    ),
    max_size=60,
)


@settings(max_examples=examples(60))
@given(steps, st.booleans())
def test_each_position_is_done_once_in_what_counts(steps: list[tuple[str, int]], saves: bool) -> None:
    workers = begin(saves)
    world = workers.world
    for step, which in steps:
        running = world.names(NodePhase.RUNNING)
        if step in ("turn", "leave") and running:
            workers.turn(running[which % len(running)], wants=step == "turn")
        elif step == "die" and running:
            world.exit(running[which % len(running)], -9, workers.iteration)
            world.join_all()
            world.wait(30)
        elif step == "copy" and workers.sent:
            world.send(DataShardAsked(workers.sent[which % len(workers.sent)]))
        elif step == "takeover":
            world.takeover()
        elif step == "snapshot":
            assert decode_snapshot(encode_snapshot(world.state)) == world.state
        workers.follow_round()
        check(workers)
    finish(workers)


def finish(workers: Workers) -> None:
    """Whoever runs goes on to the end: every position counts once."""
    world = workers.world
    if world.state.ended:
        return
    for _ in range(20 * SIZE):
        running = world.names(NodePhase.RUNNING)
        if not running:
            world.join_all()
            world.wait(30)
        for node in running:
            workers.turn(node)
        if workers.queue.is_over:
            break
    assert workers.queue.is_over
    check(workers)
    assert sorted(position for _, position in workers.counted) == list(range(SIZE))
    world.check_history()


def test_a_dead_workers_shard_goes_to_another() -> None:
    workers = begin(saves=False)
    first, second, _ = workers.world.names(NodePhase.RUNNING)
    assert [workers.turn(first), workers.turn(second)] == [0, 1]
    workers.world.exit(first, -9)
    workers.world.join_all()
    assert workers.turn(second) == 0


def test_a_slow_worker_gets_fewer() -> None:
    workers = begin(saves=False)
    slow, fast, _ = workers.world.names(NodePhase.RUNNING)
    workers.turn(slow)
    assert [workers.turn(fast) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert workers.turn(slow) == 6


def test_who_has_nothing_to_do_waits_for_what_others_are_doing() -> None:
    workers = begin(saves=False)
    first, second, _ = workers.world.names(NodePhase.RUNNING)
    workers.turn(first)
    assert [workers.turn(second) for _ in range(SIZE)] == [*range(1, SIZE), None]
    assert workers.turn(first, wants=False) == NOTHING
    (waiting,) = workers.sent[-2:-1]
    assert workers.ask(waiting) == 0, "what was given back is for who waits"
    assert workers.turn(second) == NOTHING
    assert workers.queue.is_over


def test_a_node_that_has_finished_leaves_its_shard() -> None:
    workers = begin(saves=False)
    first, second, _ = workers.world.names(NodePhase.RUNNING)
    workers.turn(first)
    workers.world.send(NodeFinishedRound(Finished(first, workers.round)))
    assert workers.turn(second) == 0


def test_a_copy_of_an_answered_request_takes_nothing() -> None:
    workers = begin(saves=False)
    first = workers.world.names(NodePhase.RUNNING)[0]
    workers.turn(first)
    workers.turn(first)
    before = workers.queue
    for request in workers.sent:
        workers.world.send(DataShardAsked(request))
    assert workers.queue == before


def test_a_worker_that_says_another_size_gets_nothing() -> None:
    workers = begin(saves=False)
    first, second, _ = workers.world.names(NodePhase.RUNNING)
    workers.turn(first)
    before = workers.queue
    workers.world.send(DataShardAsked(ShardRequest(second, 0, workers.round, 1, "q", SIZE + 1)))
    assert workers.queue == before


def test_a_job_that_begins_from_nothing_begins_its_queue_again() -> None:
    workers = begin()
    node = workers.world.names(NodePhase.RUNNING)[0]
    for _ in range(4):
        workers.turn(node)
    workers.world.held.clear()
    workers.world.exit(node, -9)
    workers.world.join_all()
    workers.follow_round()
    assert workers.iteration == 0
    assert workers.queue.done == 0
    finish(workers)


def test_a_node_that_comes_by_itself_is_served_alike() -> None:
    world = World(by_themselves())
    for name in ("n0", "n1", "n2"):
        world.join(name)
    world.wait(60)
    workers = Workers(world, saves=False)
    assert workers.turn("n0") == 0


def test_a_log_that_is_continued_twice_keeps_both_ends_apart() -> None:
    first = DoneLog([(1, 1)])
    assert list(first.appended(2, 2)) == [(1, 1), (2, 2)]
    assert list(first.appended(3, 3)) == [(1, 1), (3, 3)]
    assert list(first) == [(1, 1)]


@pytest.mark.long
def test_10_to_the_5_shards_go_through_the_brain() -> None:
    """`make accept-frameworks` has ten times as many, and measures them."""
    world = World(platform())
    world.join_all()
    first, second, _ = world.names(NodePhase.RUNNING)
    size, brain, positions = 10**5, world.brain, {first: NOTHING, second: NOTHING}
    for number in range(1, size // 2 + 2):
        for node in positions:
            brain.handle(
                DataShardAsked(ShardRequest(node, 0, 1, number, "q", size, positions[node], number)), world.now
            )
            positions[node] = brain.state.queues["q"].leases[f"{node}/0"].position
    assert brain.state.queues["q"].is_over
