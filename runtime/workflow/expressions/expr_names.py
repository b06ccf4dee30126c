"""What an expression of expr-lang reads: its free names and dotted paths, without computing it."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from lark import Token, Tree

from everstep.runtime.workflow.expressions.bounds import use_meter
from everstep.runtime.workflow.expressions.builtins import BUILTINS
from everstep.runtime.workflow.expressions.expr_grammar import MAX_CACHED, parse, unquote


def free_names(tree: Any, bound_names: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """(place, name) of what the expression takes from its environment; functions of the language do not count."""
    if not isinstance(tree, Tree):
        return
    children = tree.children
    if tree.data == "name":
        if str(children[0]) not in bound_names | {"true", "false", "nil"}:
            yield node_position(children[0]), str(children[0])
        return
    if tree.data == "call" and isinstance(children[0], Tree) and children[0].data == "name":
        name = children[0].children[0]
        if str(name) not in BUILTINS:
            yield node_position(name), str(name)
        children = children[1:]
    if tree.data == "let":
        yield from free_names(children[3], bound_names)
        yield from free_names(children[5], bound_names | {str(children[1])})
        return
    for child in children:
        yield from free_names(child, bound_names)


def parse_with_names(text: str) -> tuple[Tree[Token], Sequence[tuple[int, str]]]:
    """The tree, and its free names."""
    tree = parse(text)
    return tree, _cached_names(text) if len(text) <= MAX_CACHED else list(free_names(tree))


@lru_cache(maxsize=4096)
def _cached_names(text: str) -> Sequence[tuple[int, str]]:
    return list(free_names(parse(text)))


def dotted_paths(text: str) -> frozenset[str]:
    """The dotted paths that an expression reads: `tasks.a.outputs.result`, also where written with brackets."""
    with use_meter():
        tree = parse(text)
        return _cached_paths(text) if len(text) <= MAX_CACHED else _tree_paths(tree)


@lru_cache(maxsize=4096)
def _cached_paths(text: str) -> frozenset[str]:
    return _tree_paths(parse(text))


def _tree_paths(tree: Any) -> frozenset[str]:
    paths: set[str] = set()

    def path(node: Any) -> str | None:
        if not isinstance(node, Tree):
            return None
        if node.data == "name":
            return str(node.children[0])
        if node.data in ("member", "optional_member") and (inner := path(node.children[0])):
            return f"{inner}.{word_text(node.children[-1])}"
        if node.data == "index" and (inner := path(node.children[0])):
            key = node.children[2]
            return f"{inner}.{unquote(str(key.children[0]))}" if isinstance(key, Tree) and key.data == "text" else inner
        return None

    def walk(node: Any) -> None:
        if isinstance(node, Tree):
            whole = path(node)
            if whole is not None:
                paths.add(whole)
            inner = node.children if whole is None or node.data == "index" else []
            for child in inner[1:] if node.data == "call" else inner:
                walk(child)

    walk(tree)
    return frozenset(paths)


def node_position(node: Any) -> int:
    """The position at which expr-lang reports a node."""
    while isinstance(node, Tree):
        if node.data in ("binary", "negated_binary", "coalesce", "either", "both"):
            node = next(child for child in reversed(node.children) if isinstance(child, Token))
        elif node.data in ("member", "optional_member"):
            node = node.children[-1]
        else:
            node = next((child for child in node.children if child is not None), None)
    return node.start_pos or 0 if node is not None else 0


def word_text(node: Any) -> str:
    return str(node.children[0]) if isinstance(node, Tree) else str(node)
