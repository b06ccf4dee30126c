"""What faults cost on a cluster: counted from reports; docs/fault-costs.md has a line for each fault that is tried."""

from pathlib import Path

from tests.cluster.costs import Cost, cost, page, read_costs
from tests.cluster.faults import FAULTS
from tests.harness import ROOT

JUNIT = """<testsuites><testsuite><testcase name="a"><properties><property name="fault" value="a pod is deleted"/>
<property name="seconds" value="{seconds}"/><property name="lost" value="{lost}"/>
<property name="load" value="{load}"/></properties></testcase>
<testcase name="b"><failure/></testcase></testsuite></testsuites>"""


def reports(*points: tuple[float, int]) -> list[dict[str, float]]:
    """Of iterations that ended then."""
    return [{"time": time_s, "iteration": iteration} for time_s, iteration in points]


def test_the_cost_is_the_longest_time_without_a_new_iteration_after_the_fault() -> None:
    before, after = [(0.0, 1), (7.0, 2)], [(9.0, 3), (13.0, 4), (14.0, 5)]
    assert cost(reports(*before, *after), 8.0) == Cost(4.0, 0)
    assert cost(reports(*after, *before, before[0]), 8.0) == Cost(4.0, 0)  # In any order, one told twice.


def test_iterations_done_again_are_no_progress_and_count_as_lost() -> None:
    assert cost(reports((1.0, 1), (2.0, 2), (3.0, 3), (6.0, 2), (7.0, 3), (8.0, 4)), 3.5) == Cost(4.5, 2)
    assert cost(reports((1.0, 1), (2.0, 2), (3.0, 1), (4.0, 2), (5.0, 3)), 4.5) == Cost(0.5, 0)


def test_the_page_tells_of_several_runs_the_median_and_the_worst(tmp_path: Path) -> None:
    files = []
    for number, (seconds, lost_iterations, load) in enumerate([(1.2, 0, 12.2), (9.0, 7, 9.4), (1.5, 1, 30)]):
        files.append(tmp_path / f"{number}.xml")
        files[-1].write_text(JUNIT.format(seconds=seconds, lost=lost_iterations, load=load))
    days = ["2026-11-25"]
    assert page(read_costs(files), days, 2).splitlines()[-1] == "| a pod is deleted | 1.5, 9.0 | 1, 7 | 3 | 9 to 30 |"
    assert page(read_costs(files[:1]), days, 2).splitlines()[-1] == "| a pod is deleted | 1.2 | 0 | 1 | 12 |"


def test_the_docs_have_a_line_for_each_fault() -> None:
    lines = (ROOT / "docs/fault-costs.md").read_text().split("|---|---|---|---|---|\n")[1].splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == list(FAULTS)
