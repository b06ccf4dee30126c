"""Completion: what a shell is told may follow on a command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from everstep.cli.main import main
from tests.harness import ROOT


def candidates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The candidates for the last word."""
    monkeypatch.setenv("EVERSTEP_COMPLETE", "1")
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["workflow", "re"], ["resubmit", "resume", "retry"]),
        (["workflow", "run", "--work"], ["--work-dir"]),
        (["workflow", "lint", "--format", ""], ["json", "sarif", "text"]),
        (["workflow", "lint", "--format", "=", "s"], ["sarif"]),
        (["launch", "--nproc"], ["--nproc-per-node"]),
        (["workflow", "run", "any.yaml", "--path", ""], []),
        (["completion", ""], ["bash", "fish", "zsh"]),
    ],
)
def test_verbs_flags_and_choices(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert candidates(monkeypatch, capsys, *words) == expected


def test_runs_of_the_folder_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "manifest.json").touch()
    words = ["workflow", "get", "--runs", str(tmp_path / "runs"), "f"]
    assert candidates(monkeypatch, capsys, *words) == ["first"]
    monkeypatch.chdir(tmp_path)
    assert candidates(monkeypatch, capsys, "status", "") == ["first", "second"]


def test_bash_completes_everstep_and_leaves_other_programs_alone(tmp_path: Path) -> None:
    """A Python file that is no pipeline is not run."""
    (tmp_path / "other.py").write_text("open('was-run', 'w')")
    script = f"""
        PATH={Path(sys.executable).parent}:$PATH
        source <(everstep completion bash)
        COMP_WORDS=(everstep workflow resub) COMP_CWORD=2; _everstep_complete everstep; echo "${{COMPREPLY[@]}}"
        COMPREPLY=() COMP_WORDS=(python other.py --x) COMP_CWORD=2; _everstep_complete python; echo "${{COMPREPLY[@]}}."
    """
    completion = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert completion.stdout == "resubmit\n.\n", completion.stderr
    assert not (tmp_path / "was-run").exists()


def test_a_pipelines_own_flags_are_completed() -> None:
    command = [sys.executable, str(ROOT / "pipelines/llama_finetune.py"), "--iter"]
    completion = subprocess.run(command, env={"EVERSTEP_COMPLETE": "1"}, capture_output=True, text=True, check=True)
    assert completion.stdout == "--iterations\n"


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["workflw"], "everstep: .*; did you mean workflow?; see --help"),
        (["workflow", "rn"], "everstep workflow: .*; did you mean run?; see --help"),
        (["workflow", "run", "w.yaml", "--nmae", "x"], "everstep workflow run: .*; did you mean --name?; see --help"),
        (["status", "r", "--otput"], "everstep status: .*; did you mean --output?; see --help"),
    ],
)
def test_a_misspelled_verb_or_flag_is_told_with_what_was_meant(
    words: list[str], expected_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    output, (start, end) = capsys.readouterr().err, expected_text.split(".*")
    assert raised.value.code == 2
    assert output.startswith(start)
    assert output.endswith(f"{end}\n")
    assert output.count("\n") == 1
