"""How many tokens a tokenizer.json has; the standard library alone, so that steps can check before they start."""

import json
from typing import Any


def vocabulary_size(content: bytes) -> int:
    """The largest token id plus one. Raises ValueError for what is not a tokenizer.json.

    A vocabulary is a mapping from tokens to ids (BPE, WordPiece, WordLevel) or a list in the order of ids (Unigram).
    Source: Hugging Face tokenizers, the models' serialization.
    """
    try:
        value: Any = json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    model = value.get("model") if isinstance(value, dict) else None
    if not isinstance(model, dict):
        raise ValueError("it has no model")
    vocabulary, added = model.get("vocab"), value.get("added_tokens") or []
    if isinstance(vocabulary, dict):
        ids = list(vocabulary.values())
    elif isinstance(vocabulary, list):
        ids = list(range(len(vocabulary)))
    else:
        raise ValueError("its model has no vocabulary")
    if not isinstance(added, list) or not all(isinstance(one, dict) for one in added):
        raise ValueError("its added tokens are not a list of tokens")
    ids += [one.get("id") for one in added]
    if not ids or not all(type(one) is int and one >= 0 for one in ids):
        raise ValueError("its vocabulary has tokens without a number, or no tokens")
    return max(ids) + 1
