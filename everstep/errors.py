"""Errors that are known before anything starts."""


class BadInput(Exception):  # noqa: N818 - what it is, not how it is told
    """One line that says what, where, and how to fix it. Exit code 2."""
