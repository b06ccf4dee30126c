"""The `everstep` command and the package are light: verbs are imported when called, torch never for a pipeline."""

import subprocess
import sys

HEAVY = ["torch", "transformers", "pyspark", "numpy", "hera", "aiohttp", "rich"]


def modules_after(code: str) -> set[str]:
    """The names in sys.modules of a fresh interpreter that ran `code`."""
    listed = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(listed.stdout.split())


def test_help_imports_nothing_heavy() -> None:
    code = "from everstep.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not modules_after(code) & set(HEAVY)


def test_importing_everstep_imports_nothing_heavy() -> None:
    assert not modules_after("import everstep") & set(HEAVY)


def test_building_the_pipeline_needs_neither_torch_nor_spark() -> None:
    code = "from everstep.pipelines.llama_finetune import Config, build\nConfig().check()\nbuild(Config()).to_yaml()"
    assert not modules_after(code) & {"torch", "transformers", "pyspark", "numpy"}


def test_help_shows_each_verb_with_an_example() -> None:
    help_run = subprocess.run([sys.executable, "-m", "everstep", "--help"], capture_output=True, text=True, check=True)
    assert "everstep workflow run" in help_run.stdout
    assert "everstep scale" in help_run.stdout


def test_an_unknown_verb_is_exit_code_2() -> None:
    run = subprocess.run([sys.executable, "-m", "everstep", "nonsense"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "nonsense" in run.stderr
