"""A bill of materials of each image for scanners, CycloneDX 1.6: `python -m supply.sbom FOLDER` (make sbom).

It lists the Python packages; for the Debian packages below them run `dpkg-query --show` in the image.
"""

import json
import sys
import tomllib
import uuid
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from supply.image_packages import IMAGES, ROOT, image_packages, requirements_of
from supply.licences import licence


def bill(image: str) -> dict[str, Any]:
    """The document; the same for the same packages. Raises LicenceError, NotInstalledError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = image_packages(image)
    root = _purl("everstep", project["version"])
    own = {
        "type": "container", "bom-ref": root, "name": f"everstep-{image}", "version": project["version"],
        "licenses": [{"expression": project["license"]}],
    }  # fmt: skip
    components = [_component(name, package) for name, package in packages.items()]
    edges = [{"ref": root, "dependsOn": [component["bom-ref"] for component in components]}]
    edges += [_edge(name, package, packages) for name, package in packages.items()]
    content = json.dumps([own, components, edges])
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "metadata": {"component": own}, "components": components, "dependencies": edges,
    }  # fmt: skip


def _component(name: str, package: Distribution) -> dict[str, Any]:
    purl = _purl(name, package.version)
    expression = licence(name, package)
    return {
        "type": "library", "bom-ref": purl, "name": name, "version": package.version, "purl": purl,
        "licenses": [{"expression": expression}],
    }  # fmt: skip


def _edge(name: str, package: Distribution, packages: dict[str, Distribution]) -> dict[str, Any]:
    below = {
        canonicalize_name(requirement.name) for requirement in requirements_of(package, frozenset())
    } & packages.keys()
    return {
        "ref": _purl(name, package.version),
        "dependsOn": [_purl(name, packages[name].version) for name in sorted(below)],
    }


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def main(folder: Path) -> None:
    """Write one file for each image."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in IMAGES:
        path = folder / f"{image}.cdx.json"
        path.write_text(json.dumps(bill(image), indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
