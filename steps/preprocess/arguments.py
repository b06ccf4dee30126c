"""The command line, read as argparse reads Megatron's: abbreviations, repeated flags, several keys after one flag.

Flags, defaults and help come from `Config`. An abbreviation that fits one of Megatron's flags means that flag, even if
Everstep's own flags begin with it, too.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import TypeVar

from everstep.flags import add_flags, read_flags, with_dashes
from everstep.runtime.display.flaghelp import Flags
from everstep.steps.preprocess.config import TYPES

C = TypeVar("C")
MEGATRON = (
    "--input",
    "--jsonl-keys",
    "--num-docs",
    "--tokenizer-type",
    "--vocab-file",
    "--merge-file",
    "--append-eod",
    "--ftfy",
    "--output-prefix",
    "--dataset-impl",
    "--workers",
    "--log-interval",
)


def parse(config: type[C], prog: str, description: str, arguments: Sequence[str] | None = None) -> C:
    """The config that the command line gives. A wrong flag ends the process: one line on stderr, exit code 2."""
    parser = Flags(prog=prog, description=description)
    add_flags(parser, config)
    ours = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    words = _expand_abbreviations(with_dashes(parser, sys.argv[1:] if arguments is None else arguments), ours)
    return read_flags(config, parser.parse_args(words))


def _expand_abbreviations(arguments: Sequence[str], ours: Sequence[str]) -> list[str]:
    """The arguments with abbreviations of Megatron's flags expanded."""
    full = []
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        following = value if equals else arguments[index + 1] if index + 1 < len(arguments) else ""
        fitting = [flag for flag in MEGATRON if name.startswith("--") and name != "--" and flag.startswith(name)]
        is_megatrons = name not in ours or (name == "--tokenizer" and following in TYPES)
        full.append(fitting[0] + equals + value if is_megatrons and len(fitting) == 1 else argument)
    return full
