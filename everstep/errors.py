"""What goes wrong before anything starts."""


class BadInput(Exception):  # noqa: N818 - what it is, not how it is told
    """One line: what, where, and how to mend it. Exit code 2."""
