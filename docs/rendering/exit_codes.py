"""docs/reference/exit-codes.md, from `runtime/exit_codes.py`."""

import ast

from docs.rendering.source import cell, definition, docstring, documented_names, parse

SOURCE = "runtime/exit_codes.py"
MEANING = {"DONE": "Success.", "FAILED": "", "BAD_INPUT": "Bad input. "}


def render() -> str:
    """The page."""
    module = parse(SOURCE)
    node = definition(module, "ExitCode")
    assert isinstance(node, ast.ClassDef)
    rows = "".join(
        f"| {code} | `{name}` | {cell(MEANING.get(name, '') + text)} |\n"
        for name, _, code, text in documented_names(node)
    )
    return f"""\
# Exit codes

Made from `{SOURCE}` by `make reference`; a test keeps it true.

{docstring(module)}

| code | name | meaning |
|---|---|---|
{rows}
{docstring(node)}
[What follows from a worker's exit code](../faults.md) depends on the job's policies.
"""
