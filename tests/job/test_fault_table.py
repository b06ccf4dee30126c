"""The table of faults, row by row, and its rendering."""

from pathlib import Path

from everstep.runtime.job import fault_policy
from everstep.runtime.job.reasons import Reason


def test_every_reason_has_one_row() -> None:
    assert sorted(row.reason for row in fault_policy.TABLE) == sorted(Reason)


def test_every_exit_code_has_a_reason_with_a_decision() -> None:
    for code in range(-64, 256):
        assert fault_policy.reason_of(code) in fault_policy.DECISIONS


def test_the_rendered_table_is_the_one_in_the_docs() -> None:
    docs = Path(__file__).parents[2] / "docs/faults.md"
    assert docs.read_text() == fault_policy.render(), (
        "run: python -m everstep.runtime.job.fault_policy > docs/faults.md"
    )
