"""Which finished steps have to run again because what they made is gone: a store or artifacts that somebody removed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.runtime.store import Store, StoreError, absolute_uri, open_store
from everstep.runtime.workflow.artifacts.artifacts import ArtifactError, artifact_path
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import MissingObjectError

STORE_PARAMETER = "store"
"""The workflow parameter that names the store of Everstep's pipelines: outputs are addresses below it."""


def nodes_without_outputs(engine: Engine, artifacts: Path) -> list[str]:
    """Names of succeeded nodes of which an output is neither in the folder of artifacts nor in the store any more.

    A retried node is named as a whole. Outputs in buckets of an artifact's own, and in a store that does not answer,
    count as there.
    """
    folder, store = None if _has_bucket(engine) else artifacts, _open_store(engine)
    owners: dict[str, None] = {}
    for node in engine.state.nodes.values():
        is_pod = node.type in (NodeType.POD, NodeType.HTTP) and node.phase is Phase.SUCCEEDED and not node.memo_hit
        if is_pod and not node.hooked and (_lacks_artifact(node, folder) or _lacks_object(node, store)):
            owner = engine.state.nodes.get(node.owner)
            owners[owner.name if owner is not None and owner.type is NodeType.RETRY else node.name] = None
    return list(owners)


def _open_store(engine: Engine) -> Store | None:
    entries = list_at(engine.state.manifest.spec, "arguments", "parameters")
    uri = next((str(entry.get("value") or "") for entry in entries if entry.get("name") == STORE_PARAMETER), "")
    try:
        return open_store(uri, read_only=True) if uri else None
    except (StoreError, ValueError):
        return None


def _has_bucket(engine: Engine) -> bool:
    """Whether artifacts go to a bucket unless they say otherwise."""
    try:
        return bool(engine.state.manifest.library.artifact_repository(engine.state.manifest.spec).get("bucket"))
    except MissingObjectError:
        return True


def _lacks_artifact(node: Node, folder: Path | None) -> bool:
    return folder is not None and any(not _is_in(folder, entry) for entry in node.outputs.artifacts)


def _is_in(folder: Path, entry: Mapping[str, Any]) -> bool:
    at = entry.get("s3") or {}
    if at.get("bucket") or not at.get("key"):
        return True
    try:
        return artifact_path(folder, str(at["key"])).exists()
    except ArtifactError:
        return True


def _lacks_object(node: Node, store: Store | None) -> bool:
    if store is None:
        return False
    try:
        return any(next(iter(store.list(key)), None) is None for key in _keys(node, absolute_uri(store.uri)))
    except (StoreError, ValueError):
        return False


def _keys(node: Node, uri: str) -> Iterator[str]:
    """Keys of outputs that are addresses below the store."""
    for value in node.outputs.values().values():
        if value.startswith(f"{uri}/"):
            yield value.removeprefix(f"{uri}/")
