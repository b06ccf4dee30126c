"""docs/reference/fault-points.md: every `faults.point(...)` of the code."""

import ast
import re
from collections.abc import Iterator

from docs.rendering.source import ROOT, docstring, parse

FOLDERS = ("everstep", "runtime", "steps")


def points() -> Iterator[tuple[str, str, str]]:
    """(name, facts, module) of each fault point, in the order of names."""
    points = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "faults.point(" not in (text := path.read_text()) or path.is_symlink():
                continue
            for node in ast.walk(module := ast.parse(text)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "faults.point":
                    facts = ", ".join(f"`{keyword.arg}`" for keyword in node.keywords if keyword.arg)
                    where = str(path.resolve().relative_to(ROOT))
                    points += [(name, facts, where) for name in _names(node.args[0], module)]
    yield from sorted(set(points))


def _names(argument: ast.expr, module: ast.Module) -> list[str]:
    """The points that an argument may name: itself, or if it is a variable every text of the module like a point."""
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    texts = [node.value for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text for text in texts if re.fullmatch(r"[a-z]+\.(mid|after)_[a-z]+", text)]


def render() -> str:
    """The page."""
    about = (
        docstring(parse("runtime/faults/__init__.py"))
        .partition("\n\n")[2]
        .replace(" Imports only the standard\nlibrary.", "")
    )
    rows = "".join(f"| `{name}` | {facts} | `{module}` |\n" for name, facts, module in points())
    return f"""\
# Fault points

Made from the code by `make reference`; a test keeps it true. Tests kill at each of these points, and so can you.

{about}

| point | facts | module |
|---|---|---|
{rows}"""
