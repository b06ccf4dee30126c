"""Environments that lead to one of the two servers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.submission import Route, choose
from tests.submission.clusters import ArgoApi, Cluster, KubeApi, Served

Environment = dict[str, str]


def kube_config(folder: Path, url: str, token: str, namespace: str = "ml") -> Path:
    """A kube configuration with one context, `drill`."""
    context = {"cluster": "c", "user": "u", "namespace": namespace}
    kube_settings = {
        "apiVersion": "v1", "kind": "Config", "current-context": "drill",
        "contexts": [{"name": "drill", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }  # fmt: skip
    path = folder / "kube.config"
    path.write_text(json.dumps(kube_settings))
    return path


@pytest.fixture
def cluster() -> Cluster:
    """One that nothing has been asked of yet."""
    return Cluster()


@pytest.fixture
def by_kube(cluster: Cluster, tmp_path: Path) -> Iterator[Environment]:
    """The way through the Kubernetes API."""
    with Served(KubeApi, cluster) as url:
        yield {"HOME": str(tmp_path), "KUBECONFIG": str(kube_config(tmp_path, url, cluster.token))}


@pytest.fixture
def by_server(cluster: Cluster, tmp_path: Path) -> Iterator[Environment]:
    """The way through the Argo Server."""
    with Served(ArgoApi, cluster) as url:
        yield {"HOME": str(tmp_path), "ARGO_SERVER": url, "ARGO_TOKEN": f"Bearer {cluster.token}"}


@pytest.fixture(params=["Argo Server", "custom resource"])
def environment(request: pytest.FixtureRequest) -> Environment:
    """Each of the two ways: what is tested with it holds for both."""
    return request.getfixturevalue("by_server" if request.param == "Argo Server" else "by_kube")


@pytest.fixture
def route(environment: Environment) -> Route:
    """The chosen route."""
    target_route = choose("argo", environment).route
    assert target_route is not None
    return target_route


@pytest.fixture
def manifest() -> Callable[..., dict[str, Any]]:
    """A workflow with one step, as it is submitted."""

    def make(name: str = "drill-1", echoed: str = "hello") -> dict[str, Any]:
        from everstep.runtime.submission import ClusterOptions, for_argo

        step = {"name": "main", "container": {"image": "busybox:1.36", "command": ["echo"], "args": [echoed, ""]}}
        spec = {
            "entrypoint": "main",
            "templates": [step],
            "arguments": {"parameters": [{"name": "empty", "value": ""}, {"name": "zero", "value": "0"}]},
        }
        source = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {}, "spec": spec}
        return for_argo(source, name, "ml", ClusterOptions(), "everstep:0")

    return make
