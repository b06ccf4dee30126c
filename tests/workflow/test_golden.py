"""What a real Argo 4.1.2 answered to manifests within this executor's reach (`golden/`), against what it does here.

Every case there agrees in every phase, message, id, type, input, output and child.
"""

import asyncio
from pathlib import Path

import pytest

from tests.workflow.golden_cases import Answer, answers

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(f"{path.parent.name}/{path.stem}" for path in GOLDEN.glob("*/*.yaml"))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """All cases, run side by side once."""
    paths = [GOLDEN / f"{case}.yaml" for case in CASES]
    return asyncio.run(answers(paths, tmp_path_factory.mktemp("runs")))


@pytest.mark.parametrize("case", CASES)
def test_it_is_answered_as_by_argo(case: str, told: dict[str, Answer]) -> None:
    assert told[case] == Answer("agrees")
