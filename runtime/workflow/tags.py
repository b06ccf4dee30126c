"""Argo's tags: `{{name}}` is replaced by a text, `{{=expression}}` by the expression's value; unknown ones stay.

One call is one of Argo's passes: what a value brings in is looked at by the next pass only. The first closing braces
end a tag; a tag inside another is replaced first and the outer one by the next pass.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from runtime.workflow.expressions import ExpressionError, ExpressionSyntaxError, UnknownNameError, evaluate, paths
from runtime.workflow.expressions.sprig import SPRIG
from runtime.workflow.expressions.values import go_json, go_text

_TAG = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_UNQUOTABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
LATE = ("retries", "lastRetry", "item", "workflow.status", "workflow.failures")
"""What an expression may read before it is bound: the tag waits for it."""
FUNCTIONS = {"sprig": SPRIG}


class TagError(ExpressionError):
    """A tag cannot be replaced; in Argo's words."""


def substitute(value: Any, scope: Mapping[str, Any], strict: bool = False) -> Any:
    """`value` (a text, or lists and mappings of texts) with every tag that the scope knows replaced.

    `strict`: an expression that fails is an error, not text that stays. Raises TagError for that, for an expression
    that cannot be read, and for a value with control characters.
    """
    if isinstance(value, str):
        if "{{" not in value:
            return value
        return _TAG.sub(lambda tag: _replaced(tag, scope, strict), value)
    if isinstance(value, Mapping):
        return {substitute(key, scope, strict): substitute(inner, scope, strict) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [substitute(inner, scope, strict) for inner in value]
    return value


def tags(value: Any) -> list[str]:
    """The simple tags and expressions (with their `=`) that are left in a text, or in lists and mappings of texts."""
    found: list[str] = []
    each_text(value, lambda text: found.extend(_TAG.findall(text)))
    return found


def each_text(value: Any, seen: Callable[[str], None]) -> None:
    """Call `seen` for every text in it."""
    if isinstance(value, str):
        seen(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            each_text(key, seen)
            each_text(inner, seen)
    elif isinstance(value, list | tuple):
        for inner in value:
            each_text(inner, seen)


def reads(value: Any) -> set[str]:
    """The dotted names that all tags of a value read, with brackets written as dots."""
    found: set[str] = set()
    for tag in tags(value):
        if tag.startswith("="):
            try:
                found |= paths(tag[1:])
            except ExpressionError:
                continue
        else:
            found.add(tag.rpartition("{{")[2].strip())
    return found


def _replaced(tag: re.Match[str], scope: Mapping[str, Any], strict: bool) -> str:
    inner = tag.group(1)
    if inner.startswith("="):
        return _evaluated(tag.group(0), inner[1:], scope, strict)
    name = inner.strip()
    if name in scope:
        return _quotable(scope[name], name)
    before, braces, nested = inner.rpartition("{{")
    if braces and before and nested in scope:
        return "{{" + before + _quotable(scope[nested], nested)
    return tag.group(0)


def _quotable(value: Any, name: str) -> str:
    if value is None:
        raise TagError(
            f"unable to substitute {{{{{name}}}}}: output is an absent optional (skipped/omitted node with no default)"
        )
    text = value if isinstance(value, str) else go_text(value)
    if _UNQUOTABLE.search(text):
        raise TagError("cannot finish template replacement because the result was invalid JSON")
    return text


def _evaluated(tag: str, expression: str, scope: Mapping[str, Any], strict: bool) -> str:
    try:
        if any(_unbound(path, scope) for path in paths(expression)):
            return tag
        found = evaluate(expression, scope, FUNCTIONS)
    except UnknownNameError:
        return tag
    except ExpressionError as error:
        if strict or isinstance(error, ExpressionSyntaxError):
            raise TagError(f"failed to evaluate expression: {error}") from None
        return tag
    if found is None:
        if strict:
            raise TagError(f'failed to evaluate expression "{expression}"')
        return tag
    return found if isinstance(found, str) else go_json(found)


def _unbound(path: str, scope: Mapping[str, Any]) -> bool:
    """It begins with a name that is bound later."""
    late = next((name for name in LATE if path == name or path.startswith(f"{name}.")), None)
    return late is not None and not any(name == late or name.startswith(f"{late}.") for name in scope)
