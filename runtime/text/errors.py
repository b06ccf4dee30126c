"""Errors of text files."""


class TextError(ValueError):
    """The text is missing, damaged or invalid. The text of the error is one line with the file, the position and the
    remedy."""
