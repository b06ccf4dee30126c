"""The bills of materials: their shape, and that they list what an image gets, no more and no less."""

import json
import re
from pathlib import Path

import pytest

from supply.image_packages import IMAGES, image_packages
from supply.sbom import bill, main


@pytest.mark.parametrize("image", IMAGES)
def test_it_lists_what_the_image_gets(image: str) -> None:
    sbom = bill(image)
    assert (sbom["bomFormat"], sbom["specVersion"], sbom["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", sbom["serialNumber"])
    listed = {component["name"]: component for component in sbom["components"]}
    assert {name: component["version"] for name, component in listed.items()} == {
        name: package.version for name, package in image_packages(image).items()
    }
    for name, component in listed.items():
        assert component["purl"] == component["bom-ref"] == f"pkg:pypi/{name}@{component['version']}"
        assert component["type"] == "library"
        assert component["licenses"][0]["expression"]


@pytest.mark.parametrize("image", IMAGES)
def test_what_needs_what_is_told_among_those_that_are_listed(image: str) -> None:
    sbom = bill(image)
    own = sbom["metadata"]["component"]["bom-ref"]
    known_refs = {own, *(component["bom-ref"] for component in sbom["components"])}
    edges = {dependency["ref"]: dependency["dependsOn"] for dependency in sbom["dependencies"]}
    assert edges.keys() == known_refs
    assert {name for below in edges.values() for name in below} == known_refs - {own}


def test_the_same_packages_make_the_same_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        main(tmp_path / folder)
    for image in IMAGES:
        first, second = ((tmp_path / folder / f"{image}.cdx.json").read_bytes() for folder in ("a", "b"))
        assert first == second
        assert json.loads(first)["metadata"]["component"]["name"] == f"everstep-{image}"
