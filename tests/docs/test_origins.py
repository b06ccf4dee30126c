"""The pages for those who come from another system: each one's example, done by a shell as it stands."""

import re
from pathlib import Path

import pytest

from everstep.cli.main import main
from everstep.runtime.job.spec_reader import spec_of
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


def test_the_job_spec_for_users_of_dlrover_is_read_and_launch_refuses_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/how-to/from-dlrover.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    assert spec_of(f"{text}job: j\n").roles["worker"].waits_for == ("chief",)

    def problems(spec: str) -> list[str]:
        (tmp_path / "job.yaml").write_text(spec)
        flags = ["--job-spec", str(tmp_path / "job.yaml"), "--role", "worker", "--rdzv-endpoint", "localhost:1"]
        assert main(["launch", *flags, str(tmp_path / "none.py")]) == 2  # Its script is missing, too.
        return re.findall(r"worker\.(\w+): is not possible", capsys.readouterr().err)

    assert problems(text) == ["resources", "waitsFor"]
    assert problems(re.sub(", waitsFor.*}}", "}", text)) == []
