"""The command line, read as argparse reads Megatron's: abbreviations, repeated flags, several keys after one flag.

Flags, defaults and help come from `Config`. An abbreviation that fits one of Megatron's flags means that flag, even if
Everstep's own flags begin with it, too.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from everstep.flags import field_help
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
SEVERAL = ("input", "jsonl_keys")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parse(config: type[C], prog: str, description: str, arguments: Sequence[str] | None = None) -> C:
    """The config that the command line gives. A wrong flag ends the process: one line on stderr, exit code 2."""
    parser = _Parser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    ours: list[str] = []
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        ours.append(flag)
        told = f"{field_help(config, field.name)} (default: {default if default != '' else 'empty'})".replace("%", "%%")
        if isinstance(default, bool):
            parser.add_argument(
                flag, nargs="?", const=True, default=default, type=_parse_bool, metavar="BOOL", help=told
            )
        elif field.name in SEVERAL:
            parser.add_argument(flag, nargs="+", default=[default], metavar=field.name.upper(), help=told)
        else:
            parser.add_argument(flag, default=default, type=type(default), metavar=field.name.upper(), help=told)
    words = sys.argv[1:] if arguments is None else arguments
    values: dict[str, Any] = vars(parser.parse_args(_expand_abbreviations(words, ours)))
    return config(**values | {name: ",".join(values[name]) for name in SEVERAL})


def _expand_abbreviations(arguments: Sequence[str], ours: Sequence[str]) -> list[str]:
    """The arguments with abbreviations of Megatron's flags expanded."""
    full = []
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        following = value if equals else arguments[index + 1] if index + 1 < len(arguments) else ""
        fitting = [flag for flag in MEGATRON if name.startswith("--") and name != "--" and flag.startswith(name)]
        meant = name not in ours or (name == "--tokenizer" and following in TYPES)
        full.append(fitting[0] + equals + value if meant and len(fitting) == 1 else argument)
    return full


def _parse_bool(value: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if value.lower() not in words:
        raise argparse.ArgumentTypeError(f"{value!r}: give True or False")
    return words[value.lower()]
