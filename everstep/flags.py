"""Flags from a frozen dataclass (its fields, defaults and the strings below them), for steps and pipelines alike."""

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
    """The config as the command line gives it. A wrong flag is told in one line on stderr: exit code 2."""
    import tyro

    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(
                config,
                prog=prog,
                description=description,
                args=arguments,
                config=(tyro.conf.FlagConversionOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as end:
        if end.code:
            print(f"{prog}: {_sentence(told.getvalue())}; see --help", file=sys.stderr)
        raise


def _sentence(box: str) -> str:
    """The message of tyro's framed text: what stands between the title and the next rule, joined."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│╭╮─-+| ") for line in box.splitlines()]
    body = lines[1:] if lines else []
    said = list(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, body)))
    return " ".join(said).rstrip(".") or "wrong flags"


def field_help(config: type[Any], field: str) -> str:
    """The string that stands below a field in the dataclass's source, in one line; empty when there is none."""
    return _field_helps(config).get(field, "")


@lru_cache
def _field_helps(config: type[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
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
                found[this.target.id] = " ".join(str(following.value.value).split())
    return found
