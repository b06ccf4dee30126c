"""A small corpus in the cluster's store: a document for each paragraph that Everstep's own documents have."""

import json
import secrets

from everstep.runtime.store import open_store
from tests.cluster.lifecycle import Cluster
from tests.cluster.plane import BUCKET
from tests.harness import ROOT


def lines() -> bytes:
    """A document a line."""
    pages = (ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    paragraphs = [paragraph for page in sorted(pages) for paragraph in page.read_text().split("\n\n")]
    return "\n".join(json.dumps({"text": paragraph}) for paragraph in paragraphs).encode()


def corpus_in(cluster: Cluster) -> str:
    """Its URI, once it is there."""
    folder, name = f"s3://{BUCKET}/text-{secrets.token_hex(3)}", "text.jsonl"
    open_store(folder, environment=cluster.store).put(name, lines())
    return f"{folder}/{name}"
