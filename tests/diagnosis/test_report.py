"""What a person reads of a check, and its JSON."""

import io
import json
from dataclasses import replace

from everstep.runtime.diagnosis import report
from everstep.runtime.diagnosis.evidence import DeviceFinding, Measurement, Round
from everstep.runtime.diagnosis.verdicts import Verdict, judge
from tests.diagnosis.simulated import check, names


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def check_and_judge(count: int, *faulty: str) -> tuple[list[Verdict], list[Round]]:
    rounds = check(names(count), faulty, own={"1": 2.5})
    return judge(names(count), [f"host-{node}" for node in names(count)], rounds), rounds


def test_a_round_is_one_line_of_seconds_with_its_groups_and_its_reason() -> None:
    _, rounds = check_and_judge(5, "4")
    assert [report.round_line(round_) for round_ in rounds] == [
        "Round 1: {0: 0.60, 1: 2.60 | 2: failed, 3: failed, 4: failed} s, adjacent pairs",
        "Round 2: {0: failed, 4: failed | 1: 2.60, 3: 0.60, 2: 0.60} s, the fastest with the slowest",
    ]


def test_the_line_of_a_round_tells_by_what_library_groups_with_devices_reduced() -> None:
    card = DeviceFinding("cuda:0", 0.5, 50_000.0, 52_000.0)
    measured = {node: Measurement(node, node, 0.5, 0.01, 0.1, devices=(card,), nccl_devices=1) for node in names(6)}
    measured["2"] = replace(measured["2"], nccl_devices=0)
    measured["3"] = Measurement("3", "3", 0.5, 0.01, 0.1)
    measured["5"] = replace(measured["5"], all_reduce_s=3600.0)
    groups = (("0", "1"), ("2", "3"), ("4", "5"))
    assert report.round_line(Round(1, groups, "adjacent pairs", measured)) == (
        "Round 1: {0: 0.60, 1: 0.60 (NCCL) | 2: 0.60, 3: 0.60 (gloo) | 4: failed, 5: failed} s, adjacent pairs"
    )


def test_slow_links_within_a_machine_are_named_though_its_node_passes() -> None:
    links = {"0-1": 90.4, "0-2": 200.0, "1-2": 99.9}
    measurements = [Measurement("a", "host-a", 1.0, 1.0, 1.0, links=links), Measurement("b", "host-b", 1.0, 1.0, 1.0)]
    round_ = Round(1, (("a", "b"),), "all together", {measurement.node: measurement for measurement in measurements})
    assert report.link_lines([round_], 100.0) == ["a: links below 100 MB/s: 0-1 90.4 MB/s, 1-2 99.9 MB/s"]


def test_off_a_terminal_the_verdicts_are_plain_lines() -> None:
    out = io.StringIO()
    report.print_verdicts(out, *check_and_judge(5, "4"))
    assert out.getvalue().splitlines() == [
        "1 is a straggler: 2.60 s at best, more than 2 x the median of all nodes, 0.60 s",
        "4 is faulty: works alone but not with 2, 3, 0, proven to work with others",
        "faulty: 4  stragglers: 1  undecided: none",
    ]


def test_on_a_terminal_they_are_a_table_with_a_column_for_each_round() -> None:
    out = Terminal()
    report.print_verdicts(out, *check_and_judge(3, "0"))
    text = out.getvalue()
    assert all(word in text for word in ("round 1", "round 3", "rested", "failed", "faulty", "healthy"))


def test_the_summary_counts_the_healthy_and_names_whom_to_avoid() -> None:
    verdicts, rounds = check_and_judge(5, "4")
    assert report.summary(verdicts, rounds) == (
        "3 of 5 nodes healthy  matmul 0.50 s  all-reduce 0.10 s  slow 1  avoid host-4"
    )
    verdicts, rounds = check_and_judge(1)
    assert report.summary(verdicts, rounds) == "1 node healthy  matmul 0.50 s  all-reduce 0.10 s"


def test_the_facts_hold_every_round_and_every_node() -> None:
    verdicts, rounds = check_and_judge(4, "3")
    report_json = json.loads(json.dumps(report.json_report(verdicts, rounds, 2)))
    assert (report_json["usable"], report_json["min_nodes"], report_json["faulty"], report_json["avoid_hosts"]) == (
        3,
        2,
        ["3"],
        ["host-3"],
    )
    assert report_json["rounds"][0]["groups"] == [["0", "1"], ["2", "3"]]
    assert report_json["rounds"][0]["elapsed_s"]["2"] == 3600
    assert report_json["nodes"][0] == {
        "node": "0",
        "host": "host-0",
        "verdict": "healthy",
        "avoid": False,
        "reason": "works alone and with its group",
        "matmul_s": 0.5,
        "all_reduce_alone_s": 0.01,
        "all_reduce_s": 0.1,
    }
