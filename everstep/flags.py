"""Flags from a frozen dataclass (fields, defaults, and the strings below them), for steps and pipelines."""

import ast
import contextlib
import inspect
import io
import itertools
import re
import sys
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

C = TypeVar("C")


def parse(config: type[C], prog: str, description: str, arguments: Sequence[str] | None = None) -> C:
    """The config that the command line gives. A wrong flag ends the process: one line on stderr, exit code 2."""
    import tyro

    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            return tyro.cli(
                config,
                prog=prog,
                description=description,
                args=arguments,
                config=(tyro.conf.FlagConversionOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as end:
        if end.code:
            print(f"{prog}: {_sentence(output.getvalue())}; see --help", file=sys.stderr)
        raise


def _sentence(box: str) -> str:
    """The message inside tyro's frame: the text between the title and the next rule, joined."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│╭╮─-+| ") for line in box.splitlines()]
    body = lines[1:] if lines else []
    text = list(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, body)))
    return " ".join(text).rstrip(".") or "wrong flags"


def field_help(config: type[Any], field: str) -> str:
    """The string below a field in the dataclass's source, as one line; empty if there is none."""
    return _field_helps(config).get(field, "")


@lru_cache
def _field_helps(config: type[Any]) -> dict[str, str]:
    helps: dict[str, str] = {}
    for part in reversed(config.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
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
