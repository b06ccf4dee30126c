"""Sizes of shared memory. A segment is a control page, then slots of whole pages."""

PAGE = 4096
"""Bytes. Each slot starts at a page boundary, as do large tensors in a shard."""


def round_to_pages(size: int) -> int:
    """Round up to whole pages."""
    return -(-size // PAGE) * PAGE


def segment_bytes(slots: int, capacity: int) -> int:
    """Size of a file with that many slots for states of `capacity` bytes."""
    return PAGE + slots * round_to_pages(capacity)
