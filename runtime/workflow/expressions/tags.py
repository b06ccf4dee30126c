"""Argo's tags: `{{name}}` is replaced by a text, `{{=expression}}` by the expression's value; unknown ones stay.

One call is one of Argo's passes: what a value brings in is looked at by the next pass only. The first closing braces
end a tag; a tag inside another is replaced first and the outer one by the next pass.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.runtime.workflow.expressions import (
    ExpandedScope,
    ExpressionError,
    ExpressionSyntaxError,
    UnknownNameError,
    dotted_paths,
    evaluate,
    expand_names,
)
from everstep.runtime.workflow.expressions.bounds import Meter, use_meter
from everstep.runtime.workflow.expressions.sprig import SPRIG
from everstep.runtime.workflow.expressions.values import go_json, go_text

_UNQUOTABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
LATE_NAMES = ("retries", "lastRetry", "item", "workflow.status", "workflow.failures")
"""Names that are bound late: a tag whose expression reads one stays until then."""
FUNCTIONS = {"sprig": SPRIG}


class TagError(ExpressionError):
    """A tag cannot be replaced; in Argo's words."""


def substitute(value: Any, scope: Mapping[str, Any], strict: bool = False) -> Any:
    """`value` (a text, or lists and mappings of texts) with every tag that the scope knows replaced.

    `strict`: an expression that fails is an error, not text that stays. Raises TagError for that, for an expression
    that cannot be read, and for a value with control characters; ExpressionError for more text than there is room for.
    """
    with use_meter() as meter:
        return _Pass(scope, strict, meter).replace_tags(value)


class _Pass:
    """One pass over a value."""

    def __init__(self, scope: Mapping[str, Any], strict: bool, meter: Meter) -> None:
        self._scope = scope
        self._strict = strict
        self._meter = meter
        self._expanded: ExpandedScope | None = None
        self._quoted: dict[str, str] = {}

    def replace_tags(self, value: Any) -> Any:
        """The value with its tags replaced."""
        if isinstance(value, str):
            return self._replace_in_text(value) if "{{" in value else value
        if isinstance(value, dict | Mapping):  # Most are dicts: asking for that first takes a tenth of the time.
            return {self.replace_tags(key): self.replace_tags(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.replace_tags(inner) for inner in value]
        return value

    def _replace_in_text(self, text: str) -> str:
        pieces, place = list[str](), 0
        for begin, end in _tag_spans(text):
            new = self._replace_tag(text[begin:end])
            if end - begin == len(text):
                return new  # As it is: what many nodes are given is kept once.
            self._meter.spend_text(begin - place + len(new))
            pieces += (text[place:begin], new)
            place = end
        return "".join([*pieces, text[place:]])

    def _replace_tag(self, tag: str) -> str:
        inner = tag[2:-2]
        if inner.startswith("="):
            return self._evaluate_tag(tag, inner[1:])
        name = inner.strip()
        if name in self._scope:
            return self._name_text(name)
        before, braces, nested = inner.rpartition("{{")
        if braces and before and nested in self._scope:
            return "{{" + before + self._name_text(nested)
        return tag

    def _name_text(self, name: str) -> str:
        """Looked through once, however often it stands in what is passed over."""
        if name not in self._quoted:
            self._quoted[name] = _quotable_text(self._scope[name], name)
        return self._quoted[name]

    def _evaluate_tag(self, tag: str, expression: str) -> str:
        try:
            if any(_is_unbound(path, self._scope) for path in dotted_paths(expression)):
                return tag
            if self._expanded is None:
                self._expanded = expand_names(self._scope)
            value = evaluate(expression, self._expanded, FUNCTIONS)
            if value is not None:
                return value if isinstance(value, str) else go_json(value)
        except UnknownNameError:
            return tag
        except ExpressionError as error:
            if self._strict or isinstance(error, ExpressionSyntaxError):
                raise TagError(f"failed to evaluate expression: {error}") from None
            return tag
        if self._strict:
            raise TagError(f'failed to evaluate expression "{expression}"')
        return tag


def _tag_spans(text: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of every tag: the first braces that close one end it."""
    place = 0
    while (begin := text.find("{{", place)) >= 0 and (end := text.find("}}", begin + 2)) >= 0:
        place = end + 2
        yield begin, place


def without_tags(text: str, instead: str = "") -> str:
    """The text with something else for each of its tags."""
    pieces, place = list[str](), 0
    for begin, end in _tag_spans(text):
        pieces.append(text[place:begin])
        place = end
    return instead.join([*pieces, text[place:]])


def tags(value: Any) -> list[str]:
    """The simple tags and expressions (with their `=`) that are left in a text, or in lists and mappings of texts."""
    names: list[str] = []
    for_each_text(value, lambda text: names.extend(text[begin + 2 : end - 2] for begin, end in _tag_spans(text)))
    return names


def for_each_text(value: Any, visit: Callable[[str], None]) -> None:
    """Call `visit` for every text in it."""
    if isinstance(value, str):
        visit(value)
    elif isinstance(value, dict | Mapping):
        for key, inner in value.items():
            for_each_text(key, visit)
            for_each_text(inner, visit)
    elif isinstance(value, list | tuple):
        for inner in value:
            for_each_text(inner, visit)


def names_read(value: Any) -> set[str]:
    """The dotted names that all tags of a value read, with brackets written as dots."""
    names: set[str] = set()
    for tag in tags(value):
        if tag.startswith("="):
            try:
                names |= dotted_paths(tag[1:])
            except ExpressionError:
                continue
        else:
            names.add(tag.rpartition("{{")[2].strip())
    return names


def _quotable_text(value: Any, name: str) -> str:
    if value is None:
        raise TagError(
            f"unable to substitute {{{{{name}}}}}: output is an absent optional (skipped/omitted node with no default)"
        )
    text = value if isinstance(value, str) else go_text(value)
    if _UNQUOTABLE.search(text):
        raise TagError("cannot finish template replacement because the result was invalid JSON")
    return text


def _is_unbound(path: str, scope: Mapping[str, Any]) -> bool:
    """Whether the path begins with a late name that the scope does not have yet."""
    late = next((name for name in LATE_NAMES if path == name or path.startswith(f"{name}.")), None)
    return late is not None and not any(name == late or name.startswith(f"{late}.") for name in scope)
