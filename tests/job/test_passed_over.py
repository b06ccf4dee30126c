"""What a round cannot begin from is passed over, named, and charged to nobody."""

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.job.checkpoints import KEPT_CHECKPOINTS, Stored
from everstep.runtime.job.events import ManifestWritten, Opened, RestoreFailed, ShardStored, Survey
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import JobResult, Reason
from everstep.runtime.job.records import FaultJudged, PassedOver, RoundBroken, StoreSurveyed
from everstep.runtime.job.snapshot import decode_snapshot, encode_snapshot
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.protocol.holdings import Flaw, Holding, Refusal
from everstep.runtime.protocol.messages import Persisted, Unrestored
from tests.job.world import World, platform


def key(round_: int, iteration: int) -> str:
    return f"jobs/j/checkpoints/{round_:06d}-{iteration:09d}/rank-00000.safetensors"


def stored_checkpoint(round_: int, iteration: int) -> Stored:
    holding = Holding(round_, iteration, size=9, key=key(round_, iteration), digest="d" * 32)
    return Stored(key(round_, iteration).replace("rank-00000.safetensors", "manifest.json"), (holding,))


def refusal(round_: int, iteration: int, flaw: Flaw = Flaw.DAMAGED, why: str = "bytes are damaged") -> Refusal:
    return Refusal(round_, iteration, why, flaw, key=key(round_, iteration))


def world_after(*iterations: int, nodes: int = 1) -> World:
    """A job whose first round has committed these, and whose nodes are then killed with all that they held."""
    world = World(platform({"worker": RoleSpec(nodes, nodes)}))
    world.join_all()
    for iteration in iterations:
        holding = stored_checkpoint(1, iteration).shards[0]
        world.send(ShardStored(Persisted(world.names(NodePhase.RUNNING)[0], holding)))
        world.send(ManifestWritten(1, iteration, stored_checkpoint(1, iteration).key))
    return world


def again(world: World, survey: Survey = Survey()) -> None:  # noqa: B008 - it is frozen
    """Everything was killed; another master takes the job up and its nodes begin anew."""
    world.takeover()
    for name in world.names(NodePhase.RUNNING):
        world.exit(name, -9)
    world.send(Opened(survey))
    world.join_all()


def start_iteration(world: World) -> int | None:
    round_ = world.state.round
    assert round_ is not None
    assert world.names(NodePhase.RUNNING)
    return round_.restore.iteration if round_.restore else None


def fail(world: World, *refusals: Refusal, survey: Survey = Survey()) -> None:  # noqa: B008
    name = world.names(NodePhase.RUNNING)[0]
    world.send(RestoreFailed(Unrestored(name, world.number, refusals), survey))
    world.join_all()


def test_a_damaged_newest_checkpoint_is_passed_over_for_an_older_one_and_nobody_is_charged() -> None:
    world = world_after(50, 100)
    again(world)
    before = len(world.records)
    assert start_iteration(world) == 100
    fail(world, refusal(1, 100))
    assert start_iteration(world) == 50
    broken = [record for record in world.records[before:] if isinstance(record, RoundBroken)]
    assert [record.reason for record in broken] == [Reason.DAMAGED]
    assert broken[0].detail == "iteration 100 of round 1 is skipped: bytes are damaged"
    assert not any(isinstance(record, FaultJudged) for record in world.records[before:])
    assert world.state.stalled == 0
    world.takeover()
    assert (1, 100) not in world.state.checkpoints
    assert decode_snapshot(encode_snapshot(world.state)) == world.state
    world.check_history()


def test_an_error_of_a_worker_in_that_round_is_its_echo() -> None:
    world = world_after(50, 100)
    again(world)
    for _ in range(2):
        number, name, iteration = world.number, world.names(NodePhase.RUNNING)[0], start_iteration(world)
        assert iteration in (100, 50)
        world.exit(name, 1, 0)
        world.send(RestoreFailed(Unrestored(name, number, (refusal(1, iteration),))))
        world.join_all()
    assert start_iteration(world) is None
    assert world.state.ended is None


def test_another_nodes_word_of_the_same_damage_changes_nothing() -> None:
    world = world_after(50, 100, nodes=2)
    again(world)
    number, names = world.number, world.names(NodePhase.RUNNING)
    for name in names:
        world.send(RestoreFailed(Unrestored(name, number, (refusal(1, 100),))))
    world.join_all()
    for name in names:
        world.send(RestoreFailed(Unrestored(name, number, (refusal(1, 50),))))
    assert start_iteration(world) == 50
    assert sum(isinstance(record, PassedOver) for record in world.records) == 1


def test_a_damaged_copy_in_a_nodes_memory_does_not_spoil_the_others() -> None:
    world = World(platform({"worker": RoleSpec(2, 2)}))
    world.join_all()
    world.stage(7)
    world.exit(first := world.names(NodePhase.RUNNING)[0], -9)
    world.join_all()
    assert start_iteration(world) == 7
    fail(world, Refusal(1, 7, "own memory: damaged", node=first))
    assert start_iteration(world) == 7
    assert first not in {source.node for source in world.state.round.restore.sources}  # type: ignore[union-attr]


def test_without_a_journal_what_the_store_has_is_taken_up_and_rounds_are_numbered_on() -> None:
    world = World(platform({"worker": RoleSpec(1, 1)}))
    survey = Survey((stored_checkpoint(3, 100), stored_checkpoint(2, 50)), (refusal(4, 120),), 4)
    world.send(Opened(survey))
    world.join_all()
    assert (world.number, start_iteration(world)) == (5, 100)
    assert [record.refusals for record in world.records if isinstance(record, PassedOver)] == [(refusal(4, 120),)]
    fail(world, refusal(3, 100))
    assert (world.number, start_iteration(world)) == (6, 50)


def test_older_ones_come_to_light_when_the_newest_are_passed_over() -> None:
    world = world_after(100)
    again(world)
    fail(world, refusal(1, 100), survey=Survey((stored_checkpoint(1, 100), stored_checkpoint(1, 50)), (), 1))
    assert start_iteration(world) == 50


def test_nothing_is_begun_anew_while_a_checkpoint_may_be_whole() -> None:
    for flaw, code in ((Flaw.UNREACHABLE, 75), (Flaw.NEWER, 2)):
        world = world_after(100)
        again(world)
        number = world.number
        fail(world, refusal(1, 100, flaw, "the reason"))
        termination = world.state.ended
        assert termination is not None
        assert (termination.result, termination.exit_code, world.number) == (JobResult.FAILED, code, number)
        assert "iteration 100 of round 1 is skipped: the reason" in termination.reason
        world.takeover()  # Tried again, it may be read.
        world.send(Opened(Survey((stored_checkpoint(1, 100),), (), 1)))
        world.join_all()
        assert start_iteration(world) == 100


def test_a_job_whose_checkpoints_are_all_proven_damaged_begins_from_nothing() -> None:
    world = world_after(50, 100)
    again(world)
    fail(world, refusal(1, 100))
    fail(world, refusal(1, 50))
    assert start_iteration(world) is None


def test_what_was_reached_before_a_step_back_is_progress_once_more() -> None:
    world = world_after(50, 100, nodes=2)
    first = world.names(NodePhase.RUNNING)[0]
    world.disconnect(first, iteration=120)
    world.join_all()
    assert start_iteration(world) == 100
    fail(world, refusal(1, 100))
    assert start_iteration(world) == 50
    for iteration in range(51, 51 + 2 * world.spec.patience.no_progress):
        world.stage(iteration)
        world.disconnect(first, iteration)
        world.join_all()
        assert world.state.ended is None
    for _ in range(world.spec.patience.no_progress):
        assert world.state.ended is None
        world.disconnect(first, iteration)
        world.join_all()
    assert world.state.ended is not None, "this time it goes no further"


places = st.tuples(st.integers(1, 4), st.integers(1, 200))


@settings(max_examples=200)
@given(st.lists(places, unique=True, max_size=30), st.data())
def test_whatever_is_damaged_the_newest_whole_one_is_found_with_no_restart_charged(
    places_held: list[tuple[int, int]], data: st.DataObject
) -> None:
    """The store is what a survey sees of it; each load of a damaged one fails."""
    bad = set(data.draw(st.lists(st.sampled_from(places_held), unique=True))) if places_held else set()
    places_reported = {place for place in bad if data.draw(st.booleans())}
    world = World(platform({"worker": RoleSpec(1, 1)}))

    def survey() -> Survey:
        refused_places = {(refusal.round, refusal.iteration) for refusal in world.state.refused}
        places_left = sorted((place for place in places_held if place not in refused_places), reverse=True)
        stored = tuple(stored_checkpoint(*place) for place in places_left if place not in places_reported)[
            :KEPT_CHECKPOINTS
        ]
        return Survey(
            stored, tuple(refusal(*place) for place in places_left if place in places_reported), 4 if places_held else 0
        )

    world.send(Opened(survey()))
    world.join_all()
    for _ in range(len(bad) + 1):
        round_ = world.state.round
        assert round_ is not None
        place = (round_.restore.round, round_.restore.iteration) if round_.restore else None
        if place is None or place not in bad:
            break
        number = world.number
        world.send(RestoreFailed(Unrestored(world.names(NodePhase.RUNNING)[0], number, (refusal(*place),)), survey()))
        world.join_all()
    assert place == max((place for place in places_held if place not in bad), default=None)
    assert world.state.ended is None
    assert not any(isinstance(record, FaultJudged) for record in world.records)
    assert not places_held or any(isinstance(record, StoreSurveyed) for record in world.records)
