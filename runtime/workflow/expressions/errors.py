"""Errors of expressions, and how expr-lang points at their place."""


class ExpressionError(ValueError):
    """The expression cannot be read, or does not fit its values. The text is Argo's own."""


class ExpressionSyntaxError(ExpressionError):
    """The expression cannot be read."""


class UnknownNameError(ExpressionError):
    """The expression reads a name or calls a function that is not bound."""


def point_at(message: str, source: str, position: int) -> str:
    """`message (line:column)`, the line below it and a caret under the place; position counts characters from 0."""
    before = source[:position]
    line = before.count("\n")
    column = position - (before.rfind("\n") + 1)
    text = source.split("\n")[line] if source else ""
    return f"{message} ({line + 1}:{column + 1})\n | {text}\n | {'.' * column}^"
