"""Lint of scripts whose printed result feeds a loop: withParam takes all that is printed, and only a JSON list."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.schema import Problem
from everstep.runtime.workflow.manifest.template_walk import called_template, tasks, templates

RawFinding = tuple[str, bool, Problem]
PYTHON = re.compile(r"(?:.*/)?python[\d.]*$")
SHELL = re.compile(r"(?:.*/)?(?:ba|da|k|z)?sh$")
_RESULT = re.compile(r"\{\{\s*(?:tasks|steps)\.([-\w]+)\.outputs\.result\s*\}\}")
_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.Tuple, ast.ListComp, ast.DictComp, ast.SetComp)


def findings(spec: Mapping[str, Any], library: Library) -> Iterator[RawFinding]:
    """Of every loop over a result."""
    for at in templates(spec):
        task_by_name = {str(sibling.task.get("name")): sibling.task for sibling in tasks(at)}
        for task_at in tasks(at):
            read = _RESULT.fullmatch(str(task_at.task.get("withParam") or "").strip())
            if read and (producer := task_by_name.get(read[1])):
                script = (called_template(producer, spec, library) or {}).get("script") or {}
                if mistake := _output_mistake(script):
                    yield "items", False, Problem((*task_at.where, "withParam"), f"{read[1]} {mistake}")


def _output_mistake(script: Mapping[str, Any]) -> str:
    """What is wrong with what the script prints first, as far as its text tells; else empty."""
    command, source = script.get("command") or [""], str(script.get("source") or "")
    if PYTHON.match(str(command[0])):
        return _python_mistake(source)
    if SHELL.match(str(command[0])):
        return _shell_mistake(source)
    return ""


def _python_mistake(source: str) -> str:
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return ""
    calls = [
        statement.value
        for statement in body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    ]
    prints = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"
               and call.args and not any(word.arg == "file" for word in call.keywords)]  # fmt: skip
    if any(isinstance(printed, _DISPLAYS) for printed in prints):
        return "prints a Python list, which is not JSON; use print(json.dumps(...))"
    first = prints[0] if prints else None
    return _noise_mistake(first.value) if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _shell_mistake(source: str) -> str:
    """Of a script that begins with an echo of plain words."""
    first = re.split(r"[;\n]|&&", source.strip(), maxsplit=1)[0]
    if re.search(r"[$`|<>{&]", first):
        return ""
    try:
        words = shlex.split(first)
    except ValueError:
        return ""
    return _noise_mistake(" ".join(words[1:])) if words[:1] == ["echo"] and len(words) > 1 else ""


def _noise_mistake(text: str) -> str:
    if text.lstrip().startswith("[") or text.startswith("-"):
        return ""
    return f"prints {text!r} first, but withParam reads all output as one JSON list; print other text to stderr"
