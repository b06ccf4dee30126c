"""A user's state: flattened to tensors and one JSON value, with the part of each tensor that this rank holds."""
