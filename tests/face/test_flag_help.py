"""The help of the verbs fits its terminal; a mistake on the command line is one line."""

import re

import pytest

from everstep.cli.main import main


@pytest.mark.parametrize("width", [60, 100, 160])
@pytest.mark.parametrize(
    "verb",
    [
        "",
        "launch",
        "check",
        "scale",
        "status",
        "report",
        "top",
        "stacks",
        "checkpoint",
        "workflow",
        "chaos",
        "simulate",
    ],
)
def test_help_fits_the_terminal_except_for_examples(
    verb: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as end:
        main([*verb.split(), "--help"])
    assert end.value.code == 0
    text = re.sub(r"^examples:\n(  .*\n)*", "", capsys.readouterr().out, flags=re.MULTILINE)
    assert [line for line in text.splitlines() if len(line) > width] == []
    assert not re.search(r"--\w+_\w", text), "a flag is shown by its spelling with dashes"


@pytest.mark.parametrize(
    "arguments",
    [
        ["launch"],
        ["launch", "--nnodes"],
        ["launch", "--max-restarts=x", "t.py"],
        ["scale", "r"],
        ["check", "-x"],
        ["no"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("everstep")
    assert error.count("\n") == 1
