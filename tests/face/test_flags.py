"""Flags come from a dataclass; what is wrong is told in one line."""

from dataclasses import dataclass

import pytest

from everstep import flags


@dataclass(frozen=True)
class Config:
    """Two fields."""

    nodes: int = 2
    """How many
    nodes."""
    sure: bool = False


def test_flags_set_fields_of_their_type() -> None:
    assert flags.parse(Config, "p", "", ["--nodes", "3", "--sure", "True"]) == Config(3, True)


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
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert told.count("\n") == 1
    assert part in told
    assert told.startswith("pipeline: ")


def test_the_help_of_a_field_is_the_string_below_it() -> None:
    assert flags.field_help(Config, "nodes") == "How many nodes."
    assert flags.field_help(Config, "sure") == ""
