"""What goes wrong before anything starts."""

TRY_AGAIN = 75
"""Exit code: nothing was wrong with what was asked, the machine or a service failed."""


class BadInput(Exception):  # noqa: N818 - what it is, not how it is told
    """One line: what, where, and how to mend it. Exit code 2."""
