"""Lint of inline Python and shell scripts: names that are read, and that nothing defines.

It errs on the side of silence. A name counts as defined if anything in the script binds it, in whatever scope and
order. A shell variable in capitals may come from the image, so only one that resembles a defined name is reported.
"""

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from everstep.runtime.workflow.lint.scripts import PYTHON, SHELL
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.schema import Problem, Where
from everstep.runtime.workflow.manifest.template_walk import templates

RawFinding = tuple[str, bool, Problem]
TAG = re.compile(r"\{\{.*?\}\}", re.DOTALL)
PLACEHOLDER = "_everstep_tag_"
"""Stands for a tag, whose text is known only when it runs."""
_DYNAMIC = ("exec", "eval", "globals", "locals", "vars", "setattr", "NameError")
"""Whoever uses one of these may define a name that no text shows."""
_MODULE_NAMES = {"__file__", "__builtins__", "__annotations__", "WindowsError"}
_READ = re.compile(r"\$(?:\$|\{[#!]?([A-Za-z_]\w*)(?P<more>\W?)|([A-Za-z_]\w*))")
_SET = re.compile(r"(?<![\w$])([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=|\bfor\s+([A-Za-z_]\w*)|\bselect\s+([A-Za-z_]\w*)")
_SETTER = re.compile(
    r"\b(?:read|export|local|declare|typeset|readonly|mapfile|readarray|getopts|let|printf)\b([^\n;|&]*)"
)
_OPAQUE = re.compile(r"(?:^|[;&|(\s])(?:\.|source|eval)\s", re.MULTILINE)
_HEREDOC = re.compile(r"<<-?\s*(['\"\\])(\w+)\1?(.*?)^\s*\2\s*$", re.DOTALL | re.MULTILINE)


class _Script(NamedTuple):
    command: str
    source: str
    where: Where
    variables: set[str] | None
    """Of its container; None: not all are known."""


def findings(spec: Mapping[str, Any]) -> Iterator[RawFinding]:
    """Of every script template, and of every container that runs `python -c` or `sh -c`."""
    for at in templates(spec):
        for kind in ("script", "container"):
            container = at.template.get(kind)
            if not isinstance(container, Mapping):
                continue
            script = _inline_script(container, (*at.where, kind))
            if script is None:
                continue
            if PYTHON.match(script.command):
                names = _undefined_python_names(script.source)
            elif SHELL.match(script.command) and script.variables is not None:
                names = _undefined_shell_names(script.source, script.variables)
            else:
                continue
            for name, line in names:
                message = f"line {line}: {name} is read, but nothing here defines it"
                yield "script", False, Problem(script.where, message)


def _inline_script(container: Mapping[str, Any], where: Where) -> _Script | None:
    variables = {str(variable.get("name")) for variable in list_at(container, "env")}
    variables_set = None if container.get("envFrom") else variables
    command = [str(word) for word in list_at(container, "command")]
    if container.get("source") and command:
        return _Script(command[0], str(container["source"]), (*where, "source"), variables_set)
    args = [str(word) for word in list_at(container, "args")]
    words = [*command, *args]
    if len(words) > 2 and re.fullmatch(r"-[a-z]*c", words[1]):
        return _Script(words[0], words[2], (*where, "args" if len(command) < 3 else "command"), variables_set)
    return None


def _undefined_python_names(source: str) -> list[tuple[str, int]]:
    """(name, line of its first read) of names that are never bound; none where the script may define them unseen."""
    try:
        tree = ast.parse(TAG.sub(PLACEHOLDER, source))
    except (SyntaxError, ValueError, RecursionError):
        return []
    bound_names, read = set(dir(builtins)) | _MODULE_NAMES, dict[str, int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.setdefault(node.id, node.lineno)
            else:
                bound_names.add(node.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Name) and PLACEHOLDER in node.value.id:
            return []
        bound_names |= _bound_names(node)
    if (
        "*" in bound_names
        or any(name in read for name in _DYNAMIC)
        or PLACEHOLDER in "".join(bound_names - {PLACEHOLDER})
    ):
        return []
    return [(name, line) for name, line in read.items() if name not in bound_names and PLACEHOLDER not in name]


def _bound_names(node: ast.AST) -> set[str]:
    """Names that a node other than a plain name binds; `*` for a star import."""
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).partition(".")[0] for alias in names}
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.arg():
            return {node.arg}
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return {name}
        case ast.MatchMapping(rest=str(name)):
            return {name}
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return set(names)
    return {parameter.name for parameter in getattr(node, "type_params", [])}


def _undefined_shell_names(source: str, variables: set[str]) -> list[tuple[str, int]]:
    """The same of a shell script; reads with a default (`${X:-y}`) do not count."""
    text = _expanded_text(TAG.sub(PLACEHOLDER, _HEREDOC.sub(lambda match: "\n" * match[0].count("\n"), source)))
    if _OPAQUE.search(source):
        return []
    variables_set = {name for match in _SET.finditer(source) for name in match.groups() if name} | variables
    variables_set |= {word for match in _SETTER.finditer(source) for word in re.findall(r"[A-Za-z_]\w*", match[1])}
    lines_by_name: dict[str, int] = {}
    for match in _READ.finditer(text):
        name = match[1] or match[3]
        if not name or name in variables_set or PLACEHOLDER in name or match["more"] in (":", "-", "+", "=", "?"):
            continue
        if any(letter.islower() for letter in name) or get_close_matches(name, variables_set, 1, 0.8):
            lines_by_name.setdefault(name, text.count("\n", 0, match.start()) + 1)
    return list(lines_by_name.items())


def _expanded_text(source: str) -> str:
    """The script without what the shell does not expand: single quotes, comments, escaped characters."""
    kept_text: list[str] = []
    quote, index = "", 0
    while index < len(source):
        character = source[index]
        if character == "\\" and quote != "'":
            kept_text.append("\n" if source[index + 1 : index + 2] == "\n" else "")
            index += 2
            continue
        if quote == "'":
            quote = "" if character == "'" else quote
            character = "\n" if character == "\n" else ""
        elif character == "'" and not quote:
            quote = character
        elif character == '"':
            quote = "" if quote else character
        elif character == "#" and not quote and (index == 0 or source[index - 1].isspace()):
            end = source.find("\n", index)
            index = len(source) if end < 0 else end
            continue
        kept_text.append(character)
        index += 1
    return "".join(kept_text)
