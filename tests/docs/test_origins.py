"""The pages for those who come from another system: each one's example, done by a shell as it stands."""

from pathlib import Path

import pytest

from tests.docs.shell import follow, prepare
from tests.harness import ROOT

LINES = {
    "kubeflow": ["rank 0 of 2", "rank 1 of 2"],
    "volcano": ["rank 0 of 2", "rank 1 of 2", "ignored, as nodes are processes of this machine"],
    "aitrainingjob": ["launcher 0"],
    "torchrun": ["the ranks' sum is 1"],
}


@pytest.mark.long
@pytest.mark.parametrize("origin", LINES)
def test_the_example_of_a_page_runs_as_it_stands(origin: str, tmp_path: Path) -> None:
    output = follow(ROOT / "docs" / "how-to" / f"from-{origin}.md", prepare(tmp_path))
    for line in LINES[origin]:
        assert line in output
