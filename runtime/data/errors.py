"""What is wrong with data that was given."""


class DatasetError(ValueError):
    """The dataset is missing, half there or not one: one line that says which file and what to do."""
