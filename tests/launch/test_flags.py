"""The command line of `everstep launch` beside the installed torch's own parser: what torch accepts means the same."""

import argparse
import contextlib
import io
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.launch.flags import Parser
from tests.examples import examples

torchrun = pytest.importorskip("torch.distributed.run")

OURS = {
    "spares", "network_check", "exclude_straggler", "switchbox_check", "box_pairs", "min_bandwidth", "min_channels",
    "node_unit", "store", "job_spec", "persist_interval", "checkpoint_overhead", "persist_bytes_per_s", "cooldown",
    "keep_last", "keep_every", "hang_timeout", "on_hang", "straggler_policy", "preload", "no_fork_server", "no_tls",
    "peer_copies",
}  # fmt: skip


def theirs(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """torch's parser, made in that environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return torchrun.get_args_parser()


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """By dest."""
    return {action.dest: action for action in parser._actions}


TORCH = actions(theirs({}))
MINE = actions(Parser({}))


def parse_outcome(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Any] | int | str:
    """The namespace without our own flags; the exit code for a usage error; the error's name for a bad value."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            options = vars(parser.parse_args(list(arguments)))
        except SystemExit as end:
            return int(end.code or 0)
    return {name: value for name, value in options.items() if name not in OURS}


def test_every_flag_of_torch_is_there_and_no_other_beside_ours() -> None:
    assert set(MINE) - OURS == set(TORCH)


@pytest.mark.parametrize("dest", sorted(TORCH))
def test_a_flag_has_torchs_spellings_default_and_values(dest: str) -> None:
    mine, torch = MINE[dest], TORCH[dest]
    assert sorted(mine.option_strings) == sorted(torch.option_strings)
    assert mine.default == torch.default
    assert mine.nargs == torch.nargs
    assert mine.const == torch.const
    assert mine.required == torch.required
    assert list(mine.choices or []) == list(torch.choices or [])
    for text in ("7", "0.5", "a,b,,c", ""):
        assert _typed_value(mine, text) == _typed_value(torch, text)


def _typed_value(action: argparse.Action, text: str) -> Any:
    try:
        return action.type(text) if callable(action.type) else text
    except ValueError:
        return ValueError


@pytest.mark.parametrize("dest", sorted(set(TORCH) - {"help", "print_completion"}))
@pytest.mark.parametrize("value", ["1", "0", "x", ""])
def test_a_flags_default_comes_from_the_environment_as_in_torch(dest: str, value: str) -> None:
    environment = {f"PET_{dest.upper()}": value}
    results = []
    for make in (theirs, Parser):
        try:
            results.append(parse_outcome(make(environment), ["train.py"]))
        except ValueError:
            results.append(ValueError)
    assert results[0] == results[1]


def _prefixes() -> list[str]:
    names = {name for action in TORCH.values() for name in action.option_strings if name.startswith("--")}
    return sorted({name[:length] for name in names for length in range(3, len(name) + 1)})


@pytest.mark.parametrize("prefix", _prefixes())
def test_an_abbreviation_means_what_it_means_to_torchrun(prefix: str) -> None:
    for arguments in ([prefix, "train.py"], [prefix, "1", "train.py"], [f"{prefix}=1", "train.py"]):
        assert parse_outcome(Parser({}), arguments) == parse_outcome(theirs({}), arguments)


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.sampled_from(
            [
                *(name for action in TORCH.values() for name in action.option_strings if "completion" not in name),
                "--", "-", "-m", "-r3", "-t", "2", "--nnodes=1:2", "--nproc_per", "train.py", "--its", "-x", "spawn",
                "a,,b", "--standalone", "--no-p", "--unknown=1",
            ]
        ),
        max_size=8,
    )
)  # fmt: skip
def test_any_command_line_is_read_as_torch_reads_it(arguments: list[str]) -> None:
    assert parse_outcome(Parser({}), arguments) == parse_outcome(theirs({}), arguments)


def test_dlrover_runs_flags_have_its_defaults() -> None:
    options = Parser({}).parse_args(
        ["--network_check", "--exclude-straggler", "--switchbox-check", "--node_unit=2", "x.py"]
    )
    assert (options.network_check, options.exclude_straggler, options.switchbox_check) == (True, True, True)
    assert (options.node_unit, MINE["node_unit"].default) == (2, 1)
    assert (options.box_pairs, options.min_bandwidth, options.min_channels) == ("0:1 2:4 3:5 6:7", 10000, 2)


def test_what_follows_the_script_is_the_scripts() -> None:
    options = Parser({}).parse_args(["--nnodes", "2", "train.py", "--nnodes", "9", "--store", "x", "--", "-m"])
    assert (options.nnodes, options.store) == ("2", "")
    assert options.training_script_args == ["--nnodes", "9", "--store", "x", "--", "-m"]


def test_a_completion_is_printed_where_shtab_is_and_asked_for_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as raised:
        Parser({}).parse_args(["--print-completion", "bash"])
    assert raised.value.code == 1
    assert capsys.readouterr().err == "--print-completion needs the package shtab: pip install shtab\n"
    shtab = SimpleNamespace(
        SUPPORTED_SHELLS=["zsh"], complete=lambda parser, shell: f"{shell} of {len(parser._actions) > 50}"
    )
    monkeypatch.setitem(sys.modules, "shtab", shtab)
    with pytest.raises(SystemExit) as raised:
        Parser({}).parse_args(["--print-completion", "zsh"])
    assert (raised.value.code, capsys.readouterr().out) == (0, "zsh of True\n")
