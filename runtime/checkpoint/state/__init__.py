"""A user's state: flattened to tensors and one JSON value, and which part of each tensor this rank holds."""
