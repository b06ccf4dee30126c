"""What an agent says and makes of the answers, without a network."""

from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.protocol.messages import Action, Directive, Join
from everstep.runtime.protocol.rounds import Seat

DRAFT = Join("", "worker", "h", 1, "a:1", 29500)


def seat(round_: int) -> Seat:
    return Seat(1, round_, "worker", 0, 1, 0, 1, 0, 1, "127.0.0.1", 1, round_ - 1, None, True)


def test_joins_and_heartbeats_are_numbered_and_a_heartbeat_says_whether_a_seat_is_waited_for() -> None:
    dialogue = MasterDialogue("n", 7)
    first, again = dialogue.next_join(DRAFT), dialogue.next_join(DRAFT)
    assert [(join.life, join.number, join.after_round) for join in (first, again)] == [(7, 1, 0), (7, 2, 0)]
    waiting = dialogue.next_heartbeat()
    dialogue.take_seat(seat(3))
    seated = dialogue.next_heartbeat(iteration=5)
    assert [(beat.number, beat.join, beat.round, beat.waits) for beat in (waiting, seated)] == [
        (1, 2, 0, True), (2, 2, 3, False),
    ]  # fmt: skip
    assert dialogue.next_join(DRAFT).after_round == 3


def test_a_directive_is_carried_out_once() -> None:
    dialogue = MasterDialogue("n", 7)
    directive = Directive(1, 4, Action.DUMP)
    assert [dialogue.accept(directive), dialogue.accept(directive), dialogue.accept(None)] == [
        Action.DUMP,
        Action.CONTINUE,
        Action.CONTINUE,
    ]
    assert dialogue.accept(Directive(1, 3, Action.LEAVE)) is Action.CONTINUE, "an older answer that came late"
    assert (dialogue.next_heartbeat().seen, dialogue.dumped_message(directive).directive) == (4, 4)


def test_the_end_of_an_earlier_round_does_not_end_this_one() -> None:
    dialogue = MasterDialogue("n", 7)
    dialogue.next_join(DRAFT)
    dialogue.take_seat(seat(3))
    assert [dialogue.is_over(round_) for round_ in (2, 3, 4)] == [False, True, True]


def test_an_agent_whose_place_the_master_gave_to_another_joins_again_as_the_later_one() -> None:
    dialogue = MasterDialogue("n", 7)
    dialogue.next_join(DRAFT)
    dialogue.take_seat(seat(3))
    assert dialogue.accept(Directive(1, 0, Action.REJOIN, round=4, life=9)) is Action.REJOIN
    join = dialogue.next_join(DRAFT)
    assert (join.life, join.after_round) == (10, 3)
    assert dialogue.leaving_message("SIGTERM", 1.0).life == 10
