"""What is wrong with text that was given."""


class TextError(ValueError):
    """The text is missing, damaged or none: one line that says which file, where in it, and what to do."""
