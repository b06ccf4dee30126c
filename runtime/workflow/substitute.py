"""Argo's tags: `{{name}}` is replaced by text, `{{=expression}}` by the expression's value; unknown ones stay."""

import json
import re
from collections.abc import Mapping
from typing import Any

from runtime.workflow.expressions import ExpressionError, evaluate

_TAG = re.compile(r"\{\{(=?)((?:[^{}]|\{(?!\{)|\}(?!\}))*)\}\}")


def substitute(value: Any, scope: Mapping[str, str]) -> Any:
    """`value` (text, or lists and mappings of it) with every tag that the scope knows replaced."""
    if isinstance(value, str):
        return _TAG.sub(lambda tag: _replaced(tag, scope), value)
    if isinstance(value, Mapping):
        return {key: substitute(inner, scope) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [substitute(inner, scope) for inner in value]
    return value


def unresolved(value: str) -> list[str]:
    """The tags that are left in a text."""
    return [tag.group(0) for tag in _TAG.finditer(value)]


def _replaced(tag: re.Match[str], scope: Mapping[str, str]) -> str:
    if not tag.group(1):
        return scope.get(tag.group(2).strip(), tag.group(0))
    try:
        found = evaluate(tag.group(2), scope)
    except ExpressionError:
        return tag.group(0)
    return found if isinstance(found, str) else json.dumps(found, separators=(",", ":"))
