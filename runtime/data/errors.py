"""Errors of datasets."""


class DatasetError(ValueError):
    """The dataset is missing, incomplete or invalid. The text is one line with the file and the remedy."""
