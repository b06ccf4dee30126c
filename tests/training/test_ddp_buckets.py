"""DistributedDataParallel sums alike in a round's first iteration and in others."""

from pathlib import Path

from tests.forks import Forks


def test_a_round_that_begins_in_the_middle_changes_no_bit_of_three_ranks_weights(tmp_path: Path, forks: Forks) -> None:
    log, out = tmp_path / "log", tmp_path / "equal"
    assert forks.run(["-m", "tests.training.ddp_ranks", str(out)], {}, log) == 0, log.read_text()
    assert out.read_text() == "False True", "torch's own buckets do"
