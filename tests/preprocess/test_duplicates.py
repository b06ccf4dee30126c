"""Which documents came before: pure, for any cut into parts and kinds."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.steps.preprocess.cleaning import digest_of
from everstep.steps.preprocess.duplicates import Hashes, Slice, by_kind, later_positions
from tests.examples import examples


@settings(max_examples=examples(40))
@given(st.lists(st.lists(st.integers(0, 8))), st.integers(1, 4), st.randoms())
def test_the_first_of_equal_documents_stays_in_whatever_order_the_pieces_come(
    tmp_path_factory, parts: list[list[int]], kinds: int, random
) -> None:
    folder: Path = tmp_path_factory.mktemp("hashes")
    by: dict[int, list[Slice]] = {}
    for number, texts in enumerate(parts):
        file = folder / str(number)
        file.write_bytes(b"".join(digest_of([str(text)]) for text in texts))
        for kind, piece in by_kind(kinds, Hashes(number, str(file), len(texts))):
            by.setdefault(kind, []).append(piece)
    positions_by_piece = set()
    for pieces in by.values():
        random.shuffle(pieces)
        for number, positions in later_positions(pieces):
            assert (np.diff(positions.astype(int)) > 0).all()
            positions_by_piece |= {(number, position) for position in positions.tolist()}
    digests_seen: set[int] = set()
    expected = set()
    for number, texts in enumerate(parts):
        for position, text in enumerate(texts):
            if text in digests_seen:
                expected.add((number, position))
            digests_seen.add(text)
    assert positions_by_piece == expected


def test_texts_under_other_keys_are_another_document() -> None:
    assert digest_of(["a", None]) != digest_of([None, "a"])
    assert digest_of(["a", "b"]) != digest_of(["ab", ""])
    assert digest_of([None, None]) != digest_of(["", ""])
    assert digest_of(["a", "b"]) == digest_of(("a", "b"))
