"""Python sources, parsed: signatures, docstrings, and the strings below fields."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse(path: str) -> ast.Module:
    """The module at that path of the repository."""
    return ast.parse((ROOT / path).read_text())


def definition(module: ast.Module, name: str) -> ast.ClassDef | Function:
    """The class or function of that name; of one with overloads, what they are overloads of. Raises LookupError."""
    for node in reversed(module.body):
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return node
    raise LookupError(name)


def signature(function: Function, name: str = "") -> str:
    """`name(a: int, b: str = "") -> None` on one line, without self."""
    arguments = ast.unparse(function.args)
    arguments = re.sub(r"^self(, )?", "", arguments)
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{name or function.name}({arguments}){returns}".replace('"', "")


def docstring(node: ast.ClassDef | Function | ast.Module) -> str:
    """The docstring as paragraphs of Markdown."""
    return ast.get_docstring(node) or ""


def public_methods(node: ast.ClassDef) -> Iterator[Function]:
    """The methods without an underscore."""
    yield from (method for method in node.body if isinstance(method, Function) and not method.name.startswith("_"))


def is_property(method: Function) -> bool:
    """Is it read like a field?"""
    return any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in method.decorator_list)


def documented_names(node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """(name, type, default, text) of each field or member of a class, with the string below it."""
    for this, following in zip(node.body, [*node.body[1:], None], strict=True):
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = " ".join(str(following.value.value).split())
        if isinstance(this, ast.AnnAssign) and isinstance(this.target, ast.Name):
            yield this.target.id, ast.unparse(this.annotation), ast.unparse(this.value) if this.value else "", text
        elif isinstance(this, ast.Assign) and isinstance(this.targets[0], ast.Name):
            yield this.targets[0].id, "", ast.unparse(this.value), text


def cell(text: str) -> str:
    """A text that fits a table's cell."""
    return " ".join(textwrap.dedent(text).split()).replace("|", "\\|")
