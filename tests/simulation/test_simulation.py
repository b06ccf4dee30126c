"""Jobs in virtual time: what a week costs, decided by the real brain."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from everstep.cli import simulate as simulate_command
from everstep.cli.main import main
from everstep.runtime.simulation import COSTS, Failure, Policy, Trace, draw_trace, parse_policy, parse_trace, simulate
from everstep.runtime.simulation.draw import column_shares
from everstep.runtime.simulation.outcome import Outcome
from everstep.runtime.simulation.trace import Rates

HOUR = 3600.0
COST = replace(COSTS["16k-gpus"], stage_stall_s=0.0)


def trace(*failures: Failure, hours: float = 10.0, machines: int = 80) -> Trace:
    return Trace(hours * HOUR, machines, failures)


def test_without_failures_only_the_start_is_lost() -> None:
    simulation = simulate(8, trace(), Policy("p"), COST)
    assert (simulation.rounds, simulation.failures, simulation.wasted_s) == (1, 0, 0.0)
    assert simulation.useful_s == pytest.approx(10 * HOUR - COST.init_s)


def test_a_killed_process_costs_one_round_and_at_most_an_iteration() -> None:
    simulation = simulate(8, trace(Failure(HOUR, (3,), process=True)), Policy("p"), COST)
    assert simulation.rounds == 2
    assert 0 <= simulation.wasted_s < COST.iteration_s
    down = COST.detect_s + COST.stop_s + COST.init_s + COST.restore_s
    assert simulation.recoveries == [pytest.approx(down + COST.iteration_s)]
    assert simulation.useful_s == pytest.approx(10 * HOUR - COST.init_s - down - simulation.wasted_s)


def test_copies_at_each_tenth_iteration_cost_up_to_ten() -> None:
    fails = trace(Failure(HOUR, (3,), process=True))
    assert COST.iteration_s <= simulate(8, fails, Policy("p", stage=10), COST).wasted_s < 10 * COST.iteration_s


def test_a_lost_machine_is_done_without_until_it_is_repaired() -> None:
    fails = trace(Failure(HOUR, (3,), repair_s=2 * HOUR))
    simulation = simulate(8, fails, Policy("p", shrink_after=0.0), COST)
    worlds = [nodes for _, nodes in simulation.samples]
    assert [nodes for nodes in worlds if nodes] == [8, 7, 8]


def test_a_spare_takes_the_place_of_a_lost_machine() -> None:
    fails = trace(Failure(HOUR, (3,), repair_s=20 * HOUR))
    simulation = simulate(8, fails, Policy("p", spares=1, shrink_after=300.0), COST)
    assert [nodes for _, nodes in simulation.samples if nodes] == [8, 8]
    assert simulation.machines == 9


def test_who_waits_for_all_does_nothing_while_a_machine_is_repaired() -> None:
    fails = trace(Failure(HOUR, (3,), repair_s=2 * HOUR))
    simulation = simulate(8, fails, Policy("p", shrink_after=9 * HOUR, min_share=1.0), COST)
    assert simulation.down_s > 2 * HOUR


def test_a_machine_that_only_another_policy_has_is_of_no_use_when_it_is_repaired() -> None:
    fails = trace(Failure(360.0, (8,), repair_s=360.0), Failure(HOUR, (3,), repair_s=2 * HOUR))
    simulation = simulate(8, fails, Policy("p", shrink_after=9 * HOUR, min_share=1.0), COST)
    assert simulation.down_s > 2 * HOUR


def first_training(simulation: Outcome, after: float) -> tuple[float, int]:
    """When training begins after that time, and of how many nodes."""
    return next((time, nodes) for time, nodes in simulation.samples if time > after and nodes)


SILENT = replace(COST, silent_s=600.0)


def test_a_round_with_a_dead_member_does_not_train() -> None:
    """The machine fails while the workers of the round start."""
    fails = trace(Failure(HOUR, (3,), process=True), Failure(HOUR + 20, (5,), silent=True, repair_s=HOUR))
    time, _ = first_training(simulate(8, fails, Policy("p"), SILENT), HOUR)
    assert time > HOUR + 20 + SILENT.silent_s


def test_a_dead_node_does_not_join() -> None:
    """The machine fails before its node would join again."""
    fails = trace(Failure(HOUR, (3,), process=True), Failure(HOUR + 2, (5,), silent=True, repair_s=HOUR))
    time, nodes = first_training(simulate(8, fails, Policy("p"), SILENT), HOUR)
    assert nodes == 7
    assert time < HOUR + SILENT.silent_s


def test_machines_of_a_switch_that_is_not_full_fail_too() -> None:
    drawn = draw_trace(5, 1000 * HOUR, Rates(mtbf_h=0.0, burst_h=10.0, burst_machines=4), 0)
    assert {machine for failure in drawn.failures for machine in failure.machines} == set(range(5))


def test_when_a_switch_goes_the_state_comes_from_the_store() -> None:
    fails = trace(Failure(HOUR, (2, 3), silent=True, repair_s=HOUR))
    simulation = simulate(8, fails, Policy("p", persist=600.0), COST)
    assert simulation.store_restores == 1
    assert 0 < simulation.wasted_s <= 600.0 + COST.iteration_s


def test_a_silent_machine_is_missed_later() -> None:
    loud, silent = (
        simulate(8, trace(Failure(HOUR, (3,), silent=is_silent)), Policy("p"), COST) for is_silent in (False, True)
    )
    assert silent.recoveries[0] - loud.recoveries[0] == pytest.approx(COST.silent_s - COST.detect_s)


def test_the_same_seed_gives_the_same_outcome() -> None:
    rates = Rates(mtbf_h=400.0, burst_h=30.0, burst_machines=4, bad_share=0.1)
    first, second = (simulate(12, draw_trace(20, 48 * HOUR, rates, 7), Policy("p", spares=8), COST) for _ in range(2))
    assert first == second
    assert first != simulate(12, draw_trace(20, 48 * HOUR, rates, 8), Policy("p", spares=8), COST)


def test_failures_come_as_often_as_their_rate_says() -> None:
    drawn = draw_trace(2048, 54 * 24 * HOUR, Rates(), 0)  # Llama 3: 419 unexpected interruptions in 54 days.
    assert 350 < len(drawn.failures) < 490
    assert sorted(failure.time for failure in drawn.failures) == [failure.time for failure in drawn.failures]


def test_a_picture_has_the_share_of_nodes_that_trained() -> None:
    simulation = simulate(8, trace(), Policy("p"), COST)
    shares = column_shares(simulation, 10)
    assert shares[0] == pytest.approx(1 - COST.init_s / HOUR)
    assert shares[1:] == pytest.approx([1.0] * 9)


def test_a_trace_is_read_from_a_file() -> None:
    trace = parse_trace(["# ours", "9 2-3 silent 2", "3.1 1 process 0  # first"], 8, 10 * HOUR)
    assert trace.failures == (
        Failure(3.1 * HOUR, (1,), process=True),
        Failure(9 * HOUR, (2, 3), silent=True, repair_s=2 * HOUR),
    )


def test_failures_after_the_simulated_time_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace").write_text("3 1 node 1\n23.9 1 process 0\n24 1 node 1\n1000 2 node 1\n")
    words = ["simulate", "--nodes", "8", "--days", "1", "--policies", "a:", "-o", "json", "--trace"]
    assert main([*words, str(tmp_path / "trace")]) == 0
    output, said = capsys.readouterr()
    assert json.loads(output)[0]["failures"] == 2
    assert "left out 2 of its 4 failures: after the 1 days that are simulated; give more --days" in said


def test_a_simulation_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shares = list[float]()
    simulate(8, trace(hours=1000.0), Policy("p"), COST, shares.append)
    assert len(shares) > 100
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1
    monkeypatch.setattr(simulate_command, "SAY_EVERY_S", 0.0)
    assert main(["simulate", "--nodes", "8", "--days", "30", "--policies", "mine:"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("mine: 0% simulated, ")
    assert said[-1].startswith("mine: simulated in ")


@pytest.mark.parametrize(
    "line",
    [
        "3 9 node 1",
        "3 1 burnt 1",
        "3 1 node",
        "x 1 node 1",
        "-3 1 node 1",
        "3 1 node -4",
        "nan 1 node 1",
        "3 1 node inf",
    ],
)
def test_an_unreadable_line_of_a_trace_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"line 2: .*HOURS MACHINE"):
        parse_trace(["", line], 8, HOUR)


def test_policies_are_read_from_text() -> None:
    assert parse_policy(" mine : spares=3, shrink-after=60") == Policy("mine", spares=3, shrink_after=60.0)
    with pytest.raises(ValueError, match="policy mine: 'x=1'; write FIELD=NUMBER with one of spares"):
        parse_policy("mine: x=1")
    for text in (": spares=3", "spares=3"):
        with pytest.raises(ValueError, match="has no name; write NAME: FIELD=NUMBER"):
            parse_policy(text)
    with pytest.raises(ValueError, match="policy mine: spares is given twice"):
        parse_policy("mine: spares=3, spares=4")


def test_the_command_prints_a_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--nodes", "8", "--days", "1", "--mtbf-hours", "100", "--policies", "a: ; b: stage=9"]
    assert main([*words, "--picture", str(tmp_path / "p.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["POLICY", "a", "b"]
    assert ElementTree.parse(tmp_path / "p.svg").getroot().tag.endswith("svg")
    assert main([*words, "-o", "json"]) == 0
    outcomes = json.loads(capsys.readouterr().out)
    assert [outcome["policy"] for outcome in outcomes] == ["a", "b"]
    assert 0 < outcomes[0]["goodput"] < 1


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["--policies", "a: stage=0"], "--policies: stage must be at least 1"),
        (["--costs", "none"], "--costs none: not known, and no such file"),
        (["--picture", "/proc/1/p.svg"], "--picture /proc/1/p.svg: "),
        (["--trace", "none"], "--trace none: No such file"),
        (["--nodes", "0"], "--nodes must be at least 1"),
        (["--days", "inf"], "--days above 0"),
        (["--mtbf-hours", "-5"], "--mtbf-hours and --burst-hours must be hours, or 0: never"),
        (["--burst-hours", "nan"], "--mtbf-hours and --burst-hours must be hours, or 0: never"),
        (["--repair-hours", "inf"], "--repair-hours above 0"),
    ],
)
def test_bad_input_is_one_line(words: list[str], expected_text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    assert expected_text in capsys.readouterr().err


@pytest.mark.parametrize(("field", "value"), [("iteration_s", 0.0), ("stop_s", -1.0)])
def test_costs_that_no_system_has_are_refused(
    field: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({**asdict(COST), field: value}))
    assert main(["simulate", "--costs", str(costs)]) == 2
    assert f"--costs {costs}: {field}: seconds cannot be negative" in capsys.readouterr().err


def test_a_field_of_the_costs_that_nobody_knows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c").write_text(json.dumps({**asdict(COST), "restart_s": 3}))
    assert main(["simulate", "--nodes", "2", "--policies", "a:", "--costs", str(tmp_path / "c")]) == 2
    assert "restart_s: no such field; there are name, source, iteration_s" in capsys.readouterr().err
