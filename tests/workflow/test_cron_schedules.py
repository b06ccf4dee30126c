"""Schedules of a CronWorkflow, as robfig/cron's standard parser takes them or not ("CRON Expression Format")."""

import pytest

from everstep.runtime.workflow.lint import cron


def mistakes(schedule: str) -> list[str]:
    """What the lint says of a CronWorkflow with that schedule."""
    spec = {"schedules": [schedule], "workflowSpec": {}}
    source = {"apiVersion": "argoproj.io/v1alpha1", "kind": "CronWorkflow", "metadata": {"name": "c"}, "spec": spec}
    return [problem.text for problem in cron.problems(source)]


@pytest.mark.parametrize(
    "schedule",
    ["0 3 * * *", "*/15 9-17 * * MON-FRI", "0 0 1,15 * ?", "30 6 * Jan,jul 0", "@hourly", "@every 1h30m10s",
     "CRON_TZ=Asia/Tokyo 30 04 * * *", "3-59/15 * * * *"],
)  # fmt: skip
def test_a_schedule_of_the_documents_is_taken(schedule: str) -> None:
    assert mistakes(schedule) == []


@pytest.mark.parametrize(
    "schedule",
    ["", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 7", "5-3 * * * *", "*/0 * * * *",
     "* * * * MON-XYZ", "@every", "@reboot", "0 0 3 * * *"],
)  # fmt: skip
def test_a_schedule_that_means_nothing_is_told_with_its_place(schedule: str) -> None:
    (mistake,) = mistakes(schedule)
    assert mistake.startswith("spec.schedules[0]: ")
