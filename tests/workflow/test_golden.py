"""What a real Argo 4.1.2 answered to some 700 manifests (`golden/`), against what the executor does here.

Each agrees in every phase, message, id, type, input, output and child, but those of the table in `different`.
"""

import asyncio
import json
from pathlib import Path

import pytest

from tests.once import made_once
from tests.workflow.different import DIFFERENT, MACHINE
from tests.workflow.golden_cases import Answer
from tests.workflow.golden_cases import answers as find_answers

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted({f"{path.parent.name}/{path.stem}" for path in GOLDEN.glob("*/*.yaml")} - set(MACHINE))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """All cases, run side by side once: by one of the processes that share the tests, while the others wait for it."""

    def make(folder: Path) -> None:
        paths = [GOLDEN / f"{case}.yaml" for case in CASES]
        (folder / "answers.json").write_text(json.dumps(asyncio.run(find_answers(paths, folder / "runs"))))

    answers_path = made_once(tmp_path_factory, "golden", make) / "answers.json"
    return {case: Answer(*fields) for case, fields in json.loads(answers_path.read_text()).items()}


@pytest.mark.parametrize("case", CASES)
def test_it_is_answered_as_by_argo(case: str, answers: dict[str, Answer]) -> None:
    if case in DIFFERENT:
        assert answers[case].verdict == DIFFERENT[case][0], answers[case]
    else:
        assert answers[case] == Answer("agrees")


def test_every_difference_is_of_a_case_that_is_there() -> None:
    assert set(DIFFERENT) <= set(CASES)
