"""The page of a tokenization: whole HTML that needs nothing else, whatever the texts hold."""

import re
from importlib import resources

import numpy as np
import pytest

from everstep.steps.preprocess import Config
from everstep.steps.preprocess.page import Length, Page, render, short
from everstep.steps.preprocess.parts import Sample

FACTS = {"documents": 120, "dropped": {"too short": 7, "too long": 0}, "mended": 3, "vocab_size": 32000}


def page(text: str, lengths: list[int]) -> str:
    counts = {"documents": len(lengths), "tokens": sum(lengths), "bytes": 4 * sum(lengths), "empty": 0}
    length = Length.of("document", "text", np.array(lengths, np.int32))
    sample = Sample("00", (text, None), len(text))
    config = Config(jsonl_keys="text,title", validation_share=0.1)
    return render(Page("out/result", config, FACTS, {("document", "text"): counts}, [length], [sample]))


def test_a_bar_holds_the_documents_of_one_doubling_and_none_is_lost() -> None:
    length = Length.of("document", "text", np.array([1, 2, 3, 4, 7, 8, 1000], np.int32))
    bars = [(bar.first, bar.last, bar.documents) for bar in length.bars if bar.documents]
    assert bars == [(1, 1, 1), (2, 3, 2), (4, 7, 2), (8, 15, 1), (512, 1023, 1)]
    assert (length.median, length.longest, max(bar.share for bar in length.bars)) == (4, 1000, 1.0)


@pytest.mark.parametrize(
    "text", ["plain", "<script>alert(1)</script></pre></main>", '"><img src=x onerror=y>', "\x00\x07"]
)
def test_text_of_documents_is_never_markup(text: str) -> None:
    page_text = page(text, [3, 5])
    assert "<script" not in page_text
    assert "<img" not in page_text
    assert not re.search(r"url\(|@import|https?://", page_text)
    for tag in ("main", "section", "div", "pre", "dl", "table", "span", "i", "b"):
        assert len(re.findall(rf"<{tag}[\s>]", page_text)) == page_text.count(f"</{tag}>"), tag


def test_counts_and_reasons_are_shown_and_a_dataset_without_documents_too() -> None:
    page_text = page("plain", [3, 5])
    assert re.search(r"too short</dt><dd>7<", page_text)
    assert "too long" not in page_text.partition("Settings")[0]
    assert "3 documents were mended" in page_text
    assert "None." in page("plain", [])


def test_large_numbers_are_told_shortly() -> None:
    assert [short(value) for value in (0, 950, 12_345, 3_912_331, 1.2e9)] == ["0", "950", "12.3 k", "3.9 M", "1.2 G"]


def test_the_page_is_installed_with_its_package() -> None:
    assert resources.files("everstep.steps.preprocess").joinpath("page.html").is_file()
