"""Flags come from a dataclass; what is wrong is told in one line."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from everstep import flags
from everstep.flags import Flag
from everstep.runtime.display.flaghelp import Flags


@dataclass(frozen=True)
class Config:
    """Two fields."""

    nodes: int = 2
    """How many
    nodes."""
    sure: bool = False


def test_flags_set_fields_of_their_type() -> None:
    assert flags.parse(Config, "p", "", ["--nodes", "3", "--sure", "True"]) == Config(3, True)


@dataclass(frozen=True)
class Every:
    """A field of each kind."""

    needed: int
    where: Path = Path("here")
    kind: Literal["", "a", "b"] = ""
    names: Annotated[tuple[str, ...], Flag("-n")] = ()
    rest: Annotated[str, Flag(is_joined=True)] = ""
    limit: float | None = None
    min_nodes: int = 1
    with_: bool = False


def test_each_kind_of_field_is_read() -> None:
    line = "--needed 1 --where there --kind b -n x --names y --rest c d --limit 0.5 --min_nodes=2 --with"
    expected = Every(1, Path("there"), "b", ("x", "y"), "c,d", 0.5, 2, True)
    assert flags.parse(Every, "p", "", line.split()) == expected
    assert flags.parse(Every, "p", "", ["--needed=1"]) == Every(1)
    assert not flags.parse(Every, "p", "", ["--needed=1", "--with=False"]).with_


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "--needed"),
        (["--needed=1", "--kind=c"], "'c'"),
        (["--needed=1", "--with=perhaps"], "'perhaps': give True or False"),
        (["--needed=1", "--min=2"], "--min=2"),
    ],
)
def test_a_value_that_cannot_be_is_refused(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        flags.parse(Every, "p", "", arguments)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1


def test_a_switch_does_not_take_a_positional_word_for_its_value() -> None:
    @dataclass(frozen=True)
    class Run:
        file: Annotated[tuple[str, ...], Flag(is_positional=True)]
        pod: Annotated[str, Flag(is_positional=True)] = ""
        sandbox: bool = False

    parser = Flags()
    flags.add_flags(parser, Run)
    assert flags.read_flags(Run, parser.parse_args(["--sandbox", "a.yaml"])) == Run(("a.yaml",), "", True)


def test_two_fields_of_one_flag_are_refused() -> None:
    parser = Flags()
    flags.add_flags(parser, Config)
    with pytest.raises(ValueError, match=r"Config\.nodes: --nodes is already another flag; rename it"):
        flags.add_flags(parser, Config)


def test_an_empty_value_after_the_equals_sign_is_an_empty_string() -> None:
    @dataclass(frozen=True)
    class Source:
        source: str = "x"

    assert flags.parse(Source, "p", "", ["--source="]) == Source("")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["--nodez", "3"], "--nodez"), (["--nodes", "x"], "--nodes"), (["stray"], "stray")],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        flags.parse(Config, "pipeline", "", arguments)
    output = capsys.readouterr().err
    assert end.value.code == 2
    assert output.count("\n") == 1
    assert part in output
    assert output.startswith("pipeline: ")


def test_the_help_of_a_field_is_the_string_below_it() -> None:
    assert flags.field_help(Config, "nodes") == "How many nodes."
    assert flags.field_help(Config, "sure") == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--script_args", "--num_epochs 3 --data_dir /x"], ["--script-args", "--num_epochs 3 --data_dir /x"]),
        (["--script-args", "--a_b=1 --c_d {global_batch}"], ["--script-args", "--a_b=1 --c_d {global_batch}"]),
        (["--script_args=--a_b 1"], ["--script-args=--a_b 1"]),
        (["--detach", "--script_args=--a_b 1 --c_d 2"], ["--detach", "--script-args=--a_b 1 --c_d 2"]),
        (["--max_steps", "3", "--run_name=a_b c"], ["--max-steps", "3", "--run-name=a_b c"]),
        (["--a_b", "--", "--c_d"], ["--a-b", "--", "--c_d"]),
    ],
)
def test_only_the_names_of_flags_are_spelled_with_dashes(words: list[str], expected: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for name in ("--script-args", "--max-steps", "--run-name"):
        parser.add_argument(name)
    assert flags.with_dashes(parser, words) == expected
