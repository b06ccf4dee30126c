"""Argo's two expression languages as grammars: `expr` (expr-lang, in {{=...}}, depends and retries) and `govaluate` (`when`)."""

from runtime.argo.expressions.expr import ExpressionError, evaluate, names

__all__ = ["ExpressionError", "evaluate", "names"]
