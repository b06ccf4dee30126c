"""Errors that are known before anything starts."""

ExitCode.TRY_AGAIN = 75
"""Exit code: the input was right, but the machine or a service failed."""


class BadInput(Exception):  # noqa: N818 - what it is, not how it is told
    """One line that says what, where, and how to fix it. Exit code 2."""
