"""Flags from frozen dataclasses (fields, types, defaults, and the strings below them): of steps, pipelines and verbs.

`everstep launch` alone has a list of its own, torchrun's.
"""

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from everstep.runtime.display.flaghelp import Flags

C = TypeVar("C")
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_FLAG = re.compile(r"^--[\w-]+(?==|$)")
"""A flag's name, of a word that is one."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """How a field looks on the command line, if not as `--field VALUE`: `Annotated[str, Flag("-n")]`."""

    short: str = ""
    metavar: str = ""
    is_positional: bool = False
    is_joined: bool = False
    """Several values may follow the flag; commas join them."""


def parse(config: type[C], prog: str, description: str, arguments: Sequence[str] | None = None) -> C:
    """The config that the command line gives. A wrong flag ends the process: one line on stderr, exit code 2."""
    parser = Flags(prog=prog, description=description, allow_abbrev=False)
    add_flags(parser, config)
    return read_flags(config, parser.parse_args(with_dashes(parser, sys.argv[1:] if arguments is None else arguments)))


def add_flags(parser: argparse._ActionsContainer, config: type[Any]) -> None:
    """Add a flag for each field of the dataclass to a parser or a group. Raises ValueError for one that it has already.

    A field's type makes a value of a string (str, int, float, Path, an Enum), or it is bool, a Literal, a tuple of such
    (the flag may be repeated), or one of these or None. A bool may be given without a value; where positional words
    could be taken for its value, it has none.
    """
    hints = typing.get_type_hints(config, include_extras=True)
    looks = {name: next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Flag)), Flag())
             for name, hint in hints.items()}  # fmt: skip
    has_words = any(look.is_positional for look in looks.values())
    for field in dataclasses.fields(config):
        hint, look = hints[field.name], looks[field.name]
        is_needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        options = {"help": _help_of(config, field), **_type_options(hint, look, has_words)}
        if look.metavar:
            options["metavar"] = look.metavar
        if look.is_positional:
            optional = {} if is_needed else {"nargs": "*" if "nargs" in options else "?"}
            parser.add_argument(field.name, **{**options, **optional})
            continue
        name = f"--{field.name.strip('_').replace('_', '-')}"
        names = (look.short, name) if look.short else (name,)
        try:
            parser.add_argument(
                *names, dest=field.name, required=is_needed, **{"default": argparse.SUPPRESS, **options}
            )
        except argparse.ArgumentError:
            raise ValueError(f"{config.__name__}.{field.name}: {name} is already another flag; rename it") from None


def read_flags(config: type[C], values: argparse.Namespace) -> C:
    """The dataclass with these values, and with its own defaults where none was given."""
    field_values = {field.name: getattr(values, field.name, None) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    return config(**{
        name: tuple(value) if isinstance(value, list) else value
        for name, value in field_values.items()
        if value is not None
    })  # fmt: skip


def add_action(parser: argparse.ArgumentParser, config: type[C], act: Callable[[C], int]) -> None:
    """Add the dataclass's flags and what is done with them: `values.act(values)` returns the exit code.

    `values.prog` is the command with its verbs.
    """
    add_flags(parser, config)
    parser.set_defaults(act=lambda values: act(read_flags(config, values)), prog=parser.prog)


def add_verbs(parser: argparse.ArgumentParser, verbs: Mapping[str, tuple[type[Any], Callable[[Any], int]]]) -> None:
    """Add verbs below a command: by name, the dataclass of its flags, whose docstring is its help, and what it does."""
    below = parser.add_subparsers(dest="what", metavar="VERB", required=True)
    for name, (config, act) in verbs.items():
        text = inspect.getdoc(config) or ""
        add_action(below.add_parser(name, help=text.partition("\n")[0], description=text), config, act)


def with_dashes(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The command line with the name of each flag spelled with dashes, whichever way it was written. Several words
    in one are the value of the flag before them, unless they begin with a flag of the parser's and `=`, as argparse has
    it: `--script-args "--num_epochs 3"`."""
    end, known = words.index("--") if "--" in words else len(words), set(_names_of_flags(parser))
    flags = list[str]()
    for before, word in zip(["", *words], words[:end], strict=False):
        spelled = _FLAG.sub(lambda name: name[0].replace("_", "-"), word, count=1)
        is_value = _FLAG.fullmatch(before) and re.search(r"\s", word) and spelled.partition("=")[0] not in known
        flags.append(word if is_value else spelled)
    return [*flags, *words[end:]]


def _names_of_flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _names_of_flags(below)


def _type_options(hint: Any, look: Flag, has_words: bool) -> dict[str, Any]:
    """What argparse needs to know of a type."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(member for member in typing.get_args(hint) if member is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        inner = _type_options(typing.get_args(hint)[0], look, has_words)
        return {**inner, "nargs": "+"} if look.is_positional else {**inner, "action": "append"}
    if typing.get_origin(hint) is Literal:
        choices = [choice for choice in typing.get_args(hint) if choice != ""]
        return {"choices": typing.get_args(hint), "type": type(choices[0]), "metavar": "|".join(map(str, choices))}
    if hint is bool:
        return {"action": "store_true"} if has_words else {"nargs": "?", "const": True, "type": _parse_bool,
                                                           "metavar": "BOOL"}  # fmt: skip
    return {"type": hint, **({"nargs": "+", "action": _JoinAction} if look.is_joined else {})}


class _JoinAction(argparse.Action):
    """Joins the words after a flag with commas."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, ",".join(values))


def _parse_bool(value: str) -> bool:
    if value.lower() not in _BOOLS:
        raise argparse.ArgumentTypeError(f"{value!r}: give True or False")
    return _BOOLS[value.lower()]


def _help_of(config: type[Any], field: "dataclasses.Field[Any]") -> str:
    """The string below the field, and its default unless that is empty."""
    text = field_help(config, field.name)
    if field.default in (dataclasses.MISSING, None, False, "", ()):
        return text.replace("%", "%%")
    return f"{text} (default: {field.default})".strip().replace("%", "%%")


def field_help(config: type[Any], field: str) -> str:
    """The string below a field in the dataclass's source, as one line; empty if there is none."""
    return _field_helps(config).get(field, "")


@lru_cache
def _field_helps(config: type[Any]) -> dict[str, str]:
    helps: dict[str, str] = {}
    for part in reversed(config.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        except OSError:
            continue  # Its source is in no file.
        assert isinstance(body, ast.ClassDef)
        for this, following in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(this, ast.AnnAssign)
                and isinstance(this.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                helps[this.target.id] = " ".join(str(following.value.value).split())
    return helps
