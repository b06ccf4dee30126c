"""Tokens and grammar of expr-lang (expr-lang.org, "Language Definition"), the language of `{{=...}}`.

`parse` gives a lark tree whose tokens know their places; the meaning is in `evaluator`.
"""

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedToken
from lark.lexer import Lexer

from everstep.runtime.workflow.expressions.bounds import MAX_TOKENS, TOKEN, TOO_LONG, check_nesting, use_meter
from everstep.runtime.workflow.expressions.errors import ExpressionSyntaxError, point_at

GRAMMAR = r"""
?start: sequence
?sequence: LET NAME ASSIGN conditional SEMICOLON sequence -> let
    | conditional
?conditional: pipe
    | pipe QUESTION conditional COLON conditional -> ternary
    | pipe QUESTION COLON conditional -> elvis
    | IF conditional LBRACE sequence RBRACE ELSE LBRACE sequence RBRACE -> if_else
?pipe: either | pipe PIPE NAME [LPAR [arguments] RPAR] -> pipe | pipe PIPE PREDICATED LPAR arguments RPAR -> pipe
?either: both | both (OR both)+ -> either
?both: comparison | comparison (AND comparison)+ -> both
?comparison: range | comparison COMPARATOR range -> binary
    | comparison WORD_COMPARATOR range -> binary
    | comparison NOT WORD_COMPARATOR range -> negated_binary
?range: sum | range RANGE sum -> binary
?sum: product | product (SIGN product)+ -> binary
?product: unary | unary (FACTOR unary)+ -> binary
?unary: NOT product -> negate | signed
?signed: SIGN signed -> sign | power
?power: coalesce | coalesce POWER signed -> binary
?coalesce: postfix | coalesce COALESCE operand -> coalesce
?operand: postfix | SIGN operand -> sign | NOT operand -> negate
?postfix: atom
    | postfix DOT word -> member
    | postfix OPTIONAL word -> optional_member
    | postfix LBRACKET conditional RBRACKET -> index
    | postfix OPTIONAL LBRACKET conditional RBRACKET -> optional_index
    | postfix LBRACKET [conditional] COLON [conditional] RBRACKET -> slice
    | postfix LPAR [arguments] RPAR -> call
    | PREDICATED LPAR predicates RPAR -> predicate_call
!word: NAME | PREDICATED | NOT | AND | OR | WORD_COMPARATOR | LET | IF | ELSE
arguments: conditional (COMMA conditional)* [COMMA]
predicates: conditional COMMA predicate (COMMA conditional)* | conditional
predicate: LBRACE sequence RBRACE -> closure | conditional -> closure
?atom: INTEGER -> integer | REAL -> real | STRING -> text | NAME -> name
    | HASH -> pointer | DOT word -> pointer_member
    | LPAR sequence RPAR -> parentheses
    | LBRACKET [arguments] RBRACKET -> array
    | LBRACE [pair (COMMA pair)* [COMMA]] RBRACE -> mapping
pair: (NAME | STRING | INTEGER) COLON conditional | LPAR conditional RPAR COLON conditional -> computed_pair
%declare LET NAME ASSIGN SEMICOLON QUESTION COLON IF ELSE LBRACE RBRACE PIPE LPAR RPAR OR AND COMPARATOR
%declare WORD_COMPARATOR NOT RANGE SIGN FACTOR POWER COALESCE DOT OPTIONAL LBRACKET RBRACKET COMMA PREDICATED
%declare INTEGER REAL STRING HASH STRAY
"""
WORDS = {
    "or": "OR", "and": "AND", "not": "NOT", "in": "WORD_COMPARATOR", "contains": "WORD_COMPARATOR",
    "startsWith": "WORD_COMPARATOR", "endsWith": "WORD_COMPARATOR", "matches": "WORD_COMPARATOR", "let": "LET",
    "if": "IF", "else": "ELSE",
}  # fmt: skip
PREDICATE_FUNCTIONS = frozenset(
    [
        "all",
        "any",
        "none",
        "one",
        "filter",
        "map",
        "count",
        "sum",
        "find",
        "findIndex",
        "findLast",
        "findLastIndex",
        "groupBy",
        "sortBy",
        "reduce",
    ]
)
SYMBOLS = {
    "||": "OR", "&&": "AND", "==": "COMPARATOR", "!=": "COMPARATOR", "<=": "COMPARATOR", ">=": "COMPARATOR",
    "<": "COMPARATOR", ">": "COMPARATOR", "!": "NOT", "+": "SIGN", "-": "SIGN", "**": "POWER", "^": "POWER",
    "*": "FACTOR", "/": "FACTOR", "%": "FACTOR", "??": "COALESCE", "?.": "OPTIONAL", "?": "QUESTION", ":": "COLON",
    "..": "RANGE", ".": "DOT", ",": "COMMA", ";": "SEMICOLON", "|": "PIPE", "=": "ASSIGN", "(": "LPAR", ")": "RPAR",
    "[": "LBRACKET", "]": "RBRACKET", "{": "LBRACE", "}": "RBRACE", "#": "HASH", "&": "STRAY",
}  # fmt: skip
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/(?=\*))
    |(?P<INTEGER>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+)
    |(?P<REAL>(?:\d[\d_]*\.\d[\d_]*(?:[eE][+-]?\d+)?|\d[\d_]*[eE][+-]?\d+|\.\d[\d_]*(?:[eE][+-]?\d+)?))
    |(?P<DECIMAL>\d[\d_]*)
    |(?P<STRING>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    |(?P<WORD>[^\W\d]\w*|\$env)
    |(?P<SYMBOL>\|\||&&|==|!=|<=|>=|\*\*|\?\?|\?\.|\.\.|[-<>!+*/%?:.,;|=()\[\]{}\#&^])""",
    re.VERBOSE | re.DOTALL,
)
_POINTER = re.compile(r"#(\w*)")
_CALLED = re.compile(r"\s*\(")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "'": "'", '"': '"'}
CHARACTERS_A_TOKEN = 4
"""Of a text that is not an expression: its tokens were not all counted."""
MAX_CACHED = 200
"""Characters of the longest expression whose tree is kept: a tree is some hundred times as large as its text."""
BRACKETS = ("LPAR", "RPAR", "LBRACKET", "RBRACKET", "LBRACE", "RBRACE")


class _Lexer(Lexer):
    """What expr-lang's own lexer gives; lark's parser takes it from there."""

    def __init__(self, conf: Any) -> None:
        pass

    def lex(self, data: Any) -> Iterator[Token]:
        """Tokens with their places."""
        return iter(_tokenize(str(data)))


def _tokenize(source: str) -> list[Token]:
    tokens: list[Token] = []
    position = 0
    while position < len(source):
        if source[position] == "#":
            pointer = _POINTER.match(source, position)
            assert pointer is not None
            tokens.append(Token("HASH", pointer.group(), start_pos=position))
            position = pointer.end()
            continue
        match = _TOKEN.match(source, position)
        if match is None:
            raise ExpressionSyntaxError(_unreadable_message(source, position))
        kind, text = str(match.lastgroup), match.group()
        position = match.end()
        if kind == "space" and text == "/":
            position = source.find("*/", position + 1) + 2
            if position == 1:
                raise ExpressionSyntaxError(point_at("unclosed comment", source, len(source) - 1))
        if kind == "space":
            continue
        if kind == "DECIMAL":
            kind = "INTEGER"
        elif kind == "SYMBOL":
            kind = SYMBOLS[text]
        elif kind == "WORD":
            is_call = text in PREDICATE_FUNCTIONS and _CALLED.match(source, position)
            kind = "PREDICATED" if is_call else WORDS.get(text, "NAME")
        tokens.append(Token(kind, text, start_pos=match.start()))
        if len(tokens) > MAX_TOKENS:
            raise ExpressionSyntaxError(TOO_LONG)
    return tokens


def _unreadable_message(source: str, position: int) -> str:
    if source[position] in "\"'`":
        return point_at("literal not terminated", source, len(source) - 1)
    return point_at(f"unrecognized character: U+{ord(source[position]):04X} '{source[position]}'", source, position)


_parser = Lark(GRAMMAR, parser="lalr", lexer=_Lexer, maybe_placeholders=True)


class ParseResult(NamedTuple):
    """The result of parsing a text."""

    tree: Tree[Token] | None
    steps: int
    """Steps that reading it costs."""
    wrong: str = ""
    """Why there is no tree."""


def parse(source: str) -> Tree[Token]:
    """The tree. Raises ExpressionSyntaxError with the words of expr-lang; ExpressionError where it is too much.

    Each text is paid for once an event, whether it was remembered or not: what a log is folded to must not depend on
    what this process has read before.
    """
    with use_meter() as meter:
        parsed_entry = _parse_cached(source) if len(source) <= MAX_CACHED else _parse_uncached(source)
        meter.spend_reading(source, parsed_entry.steps)
    if parsed_entry.tree is None:
        raise ExpressionSyntaxError(parsed_entry.wrong)
    return parsed_entry.tree


def _parse_uncached(source: str) -> ParseResult:
    try:
        tree = _parser.parse(source)
        check_nesting(tree)
        return ParseResult(tree, TOKEN * sum(1 for _ in tree.scan_values(lambda _: True)))
    except UnexpectedToken as error:
        token, wrong = error.token, "unexpected token EOF"
        place = max(0, len(source) - 1) if token.type == "$END" else token.start_pos or 0
        if token.type != "$END":
            wrong = f'unexpected token {_token_kind(token)}("{token}")'
        wrong = point_at(wrong, source, place)
    except ExpressionSyntaxError as error:
        wrong = str(error)
    return ParseResult(None, TOKEN * min(MAX_TOKENS, 1 + len(source) // CHARACTERS_A_TOKEN), wrong)


_parse_cached = lru_cache(maxsize=4096)(_parse_uncached)


def _token_kind(token: Token) -> str:
    """What expr-lang calls the token."""
    if token.type in ("NAME", "PREDICATED"):
        return "Identifier"
    if token.type in ("INTEGER", "REAL"):
        return "Number"
    if token.type == "STRING":
        return "String"
    return "Bracket" if token.type in BRACKETS else "Operator"


def unquote(token: str) -> str:
    """The text that a string literal stands for. Raises ExpressionSyntaxError for an unknown escape."""
    if token[0] == "`":
        return token[1:-1]
    return _ESCAPE.sub(_unescape, token[1:-1])


def _unescape(match: re.Match[str]) -> str:
    letters = match[1]
    if letters in _ESCAPES:
        return _ESCAPES[letters]
    if letters[0] in "xuU":
        code = int(letters[1:], 16)
        if code > sys.maxunicode or 0xD800 <= code < 0xE000:
            raise ExpressionSyntaxError(f"unable to unescape string, invalid code point \\{letters}")
        return chr(code)
    if letters.isdigit():
        return chr(int(letters, 8))
    raise ExpressionSyntaxError(f"unable to unescape string, unknown escape \\{letters}")
