"""A Python without torch, numpy or pyspark: one line says what to install, before anything starts."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from everstep import extras
from everstep.cli import main as command
from everstep.errors import BadInput
from everstep.pipeline import manifest_of
from everstep.pipelines import llama_finetune
from tests.harness import PATIENCE_S, ROOT


@pytest.fixture
def lacks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call it with the packages that this Python shall not have."""

    def forget(*names: str) -> None:
        def find(name: str) -> ModuleSpec | None:
            return None if name in names else find_spec(name)

        monkeypatch.setattr(extras, "find_spec", find)

    return forget


def test_each_package_is_in_the_extra_that_is_named_for_it() -> None:
    lists = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in extras.EXTRAS.items():
        assert package in [re.split(r"[>=<\[]", line)[0] for line in lists[extra]]
    assert {name for names in extras.STEPS.values() for name in names} <= set(extras.EXTRAS)


def test_a_pipeline_runs_here_with_all_packages() -> None:
    extras.require_for(manifest_of(llama_finetune.build(llama_finetune.Config()), "runs/store"))


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("torch", "numpy", "pyspark"), r"^steps check, corpus, evaluate, model, preprocess, train: this Python has no "
         r"numpy, pyspark, torch: pip install 'everstep\[all\]', or submit it to Argo$"),
        (("pyspark",), r"^step preprocess: this Python has no pyspark: pip install 'everstep\[preprocess\]', or"),
        (("torch",), r"^steps check, evaluate, model, train: this Python has no torch: pip install 'everstep\[train"),
    ],
)  # fmt: skip
def test_a_pipeline_is_refused_where_its_steps_cannot_run(
    lacks: Callable[..., None], names: tuple[str, ...], line: str
) -> None:
    lacks(*names)
    with pytest.raises(BadInput, match=line):
        extras.require_for(manifest_of(llama_finetune.build(llama_finetune.Config()), "runs/store"))


@pytest.mark.parametrize("manifest", [{}, {"spec": None}, {"spec": {"templates": [3, {"container": {"command": 1}}]}}])
def test_a_manifest_without_steps_of_ours_needs_nothing(
    lacks: Callable[..., None], manifest: dict[str, object]
) -> None:
    lacks(*extras.EXTRAS)
    extras.require_for(manifest)


def test_a_check_without_torch_is_refused(lacks: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    lacks("torch")
    assert command.main(["check"]) == 2
    assert capsys.readouterr().err == "everstep check: this Python has no torch: pip install 'everstep[train]'\n"


def test_a_command_that_cannot_import_torch_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from everstep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "checkpoint", "ls", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert done.stderr == "everstep checkpoint ls: this Python has no torch: pip install 'everstep[train]'\n"
    assert extras.hint(ModuleNotFoundError(name="mine")) == ""
