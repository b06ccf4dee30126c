"""What a training script receives: variables for all, flags for those that it declares, and the user's own
arguments."""

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from everstep.steps.entry import StepError

COMMAND = "@command"
"""As `--script`: each role runs the command that `--script-args` gives it in JSON."""
_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")


def script_variables(script_values: Mapping[str, object]) -> dict[str, str]:
    """The environment of the workers: `EVERSTEP_DATASET`, `EVERSTEP_GLOBAL_BATCH`, ... for each thing that is known."""
    return {f"EVERSTEP_{name.replace('-', '_').upper()}": str(value) for name, value in script_values.items()}


def split_arguments(text: str) -> list[str]:
    """The words of `--script-args`, as in a shell. Raises StepError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise StepError(f"--script-args {text!r}: {error}") from None


def script_arguments(script: Path, own: Sequence[str], script_values: Mapping[str, object]) -> list[str]:
    """The script's arguments: a flag for each known thing that it declares and `own` does not give, then `own`.

    In `own`, `{dataset}` and the other names stand for their values.
    """
    flags_declared = declared_flags(script)
    flags_given = {flag.group().replace("_", "-") for word in own if (flag := _FLAG.match(word))}
    flags = [
        f"{flags_declared[f'--{name}']}={value}"
        for name, value in script_values.items()
        if f"--{name}" in flags_declared and f"--{name}" not in flags_given
    ]
    return [*flags, *(_fill_in(word, script_values) for word in own)]


def declared_flags(script: Path) -> dict[str, str]:
    """The flags that a Python script declares, by their names with dashes: texts such as `"--dataset"` in its code, or
    `"dataset"` if it also has `f"--{...}"`.

    So argparse, click and most others declare them. What the script imports is not looked through.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}  # Its own start tells what is wrong with it.
    nodes = list(ast.walk(tree))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if any(isinstance(node, ast.JoinedStr) and _begins_with_dashes(node) for node in nodes):
        texts += [f"--{text}" for text in texts]
    return {text.replace("_", "-"): text for text in texts if _FLAG.fullmatch(text)}


def _begins_with_dashes(text: ast.JoinedStr) -> bool:
    first = text.values[0] if text.values else None
    return isinstance(first, ast.Constant) and first.value == "--"


def _fill_in(word: str, script_values: Mapping[str, object]) -> str:
    for name, value in script_values.items():
        word = word.replace(f"{{{name.replace('-', '_')}}}", str(value))
    return word
