"""kubectl as the cluster's administrator."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.layout import ADMIN, NAMESPACE
from tests.cluster.processes import ClusterError, output_of


class Kubectl:
    """Commands to the running cluster. All raise ClusterError with what the API server answered."""

    def __init__(self, kube: Path) -> None:
        self._kube = kube

    def __call__(self, *words: str | Path, namespace: str = NAMESPACE, text: str | None = None) -> str:
        """What it prints."""
        return output_of(self._kube, "kubectl", "--kubeconfig", ADMIN, "--namespace", namespace, *words, text=text)

    def apply(self, *objects: str | Mapping[str, Any], namespace: str = NAMESPACE) -> None:
        """Make the objects so (YAML, or as they are)."""
        documents = "\n---\n".join(object_ if isinstance(object_, str) else json.dumps(object_) for object_ in objects)
        self("apply", "--server-side", "--force-conflicts", "-f", "-", namespace=namespace, text=documents)

    def create(self, *objects: Mapping[str, Any], namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        """Make the objects; each as the API server has it. It checks them by itself."""
        documents = "\n---\n".join(map(json.dumps, objects))
        text = self("create", "--validate=false", "-o", "json", "-f", "-", namespace=namespace, text=documents)
        decoder, items = json.JSONDecoder(), []
        while text := text.lstrip():
            document, end = decoder.raw_decode(text)
            items += document.get("items", [document])
            text = text[end:]
        return items

    def ask(self, path: str, wish: Mapping[str, Any], namespace: str = NAMESPACE) -> None:
        """POST to a path below the namespace that no object stands for: `pods/NAME/eviction`."""
        self("create", "--raw", f"/api/v1/namespaces/{namespace}/{path}", "-f", "-", text=json.dumps(wish))

    def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> dict[str, Any] | None:
        """One object; None: there is none, or no such kind yet."""
        try:
            return json.loads(self("get", kind, name, "-o", "json", namespace=namespace))
        except ClusterError as error:
            if "(NotFound)" in str(error) or "doesn't have a resource type" in str(error):
                return None
            raise

    def list(self, kind: str, selector: str = "", namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        """All of a kind, with these labels."""
        return json.loads(self("get", kind, "-l", selector, "-o", "json", namespace=namespace))["items"]
