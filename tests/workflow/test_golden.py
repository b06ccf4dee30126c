"""What a real Argo 4.1.2 answered to manifests within this executor's reach (`golden/`), against what it does here."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.workflow import RunOptions, run

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(path.stem for path in GOLDEN.glob("*.yaml"))


def told(nodes: dict[str, Any]) -> dict[str, Any]:
    """What is compared of each node, by its name."""
    found = {}
    for node in nodes.values():
        outputs = (node.get("outputs") or {}).get("parameters", [])
        values = {entry["name"]: entry["value"] for entry in outputs if entry.get("value") is not None}
        found[node["name"]] = {
            **{field: node.get(field) or "" for field in ("id", "phase", "message", "type", "templateName")},
            "outputs": values,
            "children": sorted(node.get("children", [])),
        }
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_ends_as_on_argo(case: str, tmp_path: Path) -> None:
    manifest = yaml.safe_load((GOLDEN / f"{case}.yaml").read_text())
    wanted = json.loads((GOLDEN / f"{case}.json").read_text())
    name = manifest["metadata"].get("name", case)
    run(manifest, RunOptions(name=name, runs=tmp_path))
    status = json.loads((tmp_path / name / "workflow.json").read_text())["status"]
    nodes = {key: {**node, "name": key} for key, node in wanted["nodes"].items()}
    assert status["phase"] == wanted["phase"]
    assert status.get("message", "") == wanted.get("message", "")
    assert told(status["nodes"]) == told(nodes)
