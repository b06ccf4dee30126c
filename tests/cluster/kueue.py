"""Kueue on the cluster: its own controller, from its module, with its admission of pods. It runs on host 0.

The certificate by which the API server trusts its webhooks is made here, as its charts or cert-manager make one.
"""

import base64
import json
from pathlib import Path
from typing import Any

from tests.cluster.kubectl import Kubectl
from tests.cluster.layout import ADMIN, HOME, NAMESPACE, PLANE
from tests.cluster.processes import output_of, start, stop, wait
from tests.cluster.room import SLOT
from tests.golang import build_programs

MODULE, GROUP = "sigs.k8s.io/kueue", "kueue.x-k8s.io"
VERSION = "v1beta2"
QUEUE = "research"
PORT = 9443
CONFIGURATION: dict[str, Any] = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "namespace": "kueue-system",
    "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
    "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": ":8089"},
    "integrations": {"frameworks": ["pod"]},
}  # fmt: skip
KINDS = (
    ("", "v1", "pod", "pods"),
    (GROUP, VERSION, "workload", "workloads"),
    (GROUP, VERSION, "clusterqueue", "clusterqueues"),
    (GROUP, VERSION, "resourceflavor", "resourceflavors"),
)
"""Group, version, kind and resource of what its webhooks complete and check."""


def programs() -> Path:
    """The folder with its controller and kinds; built the first time. Raises NoGoError."""
    return build_programs("kueue", [f"{MODULE}/cmd/kueue"], files={MODULE: "config/components/crd/bases"})


def install(kubectl: Kubectl) -> None:
    """Its controller answers. Raises NoGoError, ClusterError."""
    built_programs, etc = programs(), HOME / "kueue"
    keys = etc / "kueue/metrics/certs"
    kubectl.apply(*(path.read_text() for path in sorted(built_programs.glob("*.yaml"))))
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}})
    wait(lambda: _are_established(kubectl, len(list(built_programs.glob("*.yaml")))), "Kueue's kinds")
    keys.mkdir(parents=True, exist_ok=True)
    output_of(
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=kueue", "-addext",
        f"subjectAltName=IP:{PLANE}", "-keyout", keys / "tls.key", "-out", keys / "tls.crt",
    )  # fmt: skip
    settings = keys / "configuration.json"
    settings.write_text(json.dumps({**CONFIGURATION, "webhook": {"port": PORT, "certDir": str(keys)}}))
    # With certificates from outside it reads those of its metrics below /etc, wherever the others are.
    mount_command = ["unshare", "--mount", "sh", "-c", f'mount --bind {etc} /etc && exec "$@"', "sh"]
    command = [
        *mount_command,
        built_programs / "kueue",
        "--config",
        settings,
        "--feature-gates=VisibilityOnDemand=false",
    ]
    start("kueue", 0, command, {"KUBECONFIG": str(ADMIN), "HOME": str(HOME)})
    kubectl.apply(*_webhooks((keys / "tls.crt").read_bytes()))
    wait(lambda: _takes_queues(kubectl), "Kueue's webhooks")


def _webhooks(certificate: bytes) -> list[dict[str, Any]]:
    """Its two configurations, for the namespace of the tests only: no other pod waits for it."""
    webhooks = []
    for kind, verb, letter in (("MutatingWebhookConfiguration", "mutate", "m"),
                               ("ValidatingWebhookConfiguration", "validate", "v")):  # fmt: skip
        hooks = []
        for group, version, name, resource in KINDS:
            path = f"/{verb}-{group.replace('.', '-')}-{version}-{name}"
            client = {"url": f"https://{PLANE}:{PORT}{path}", "caBundle": base64.b64encode(certificate).decode()}
            operations = ["CREATE"] if letter == "m" else ["CREATE", "UPDATE"]
            rule = {"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": [resource]}
            hook = {
                "name": f"{letter}{name}.kb.io", "clientConfig": client, "rules": [rule], "sideEffects": "None",
                "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            }  # fmt: skip
            if resource == "pods":
                hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
            hooks.append(hook)
        webhooks.append({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "kueue"},
            "webhooks": hooks,
        })  # fmt: skip
    return webhooks


def _are_established(kubectl: Kubectl, kinds: int) -> bool:
    """Whether the API server serves so many kinds of its group. (`kubectl wait` fails where there is no status yet.)"""
    crds = [crd for crd in kubectl.list("crd") if crd["spec"]["group"] == GROUP]
    conditions = [condition for kind in crds for condition in kind.get("status", {}).get("conditions") or ()]
    return (
        sum(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions) == kinds
    )


def _takes_queues(kubectl: Kubectl) -> bool:
    try:
        quota(kubectl, 0)
    except Exception:  # noqa: BLE001 (until it listens, the API server refuses in several ways)
        return False
    return True


def quota(kubectl: Kubectl, slots: int) -> None:
    """The one queue may have so many slots in use, and of everything else whatever is asked for."""
    amounts = {"cpu": "1000", "memory": "1000Gi", SLOT: str(slots)}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    groups = [{"coveredResources": list(amounts), "flavors": [{"name": "any", "resources": resources}]}]
    spec = {
        "namespaceSelector": {}, "resourceGroups": groups, "preemption": {"withinClusterQueue": "LowerPriority"},
    }  # fmt: skip
    kubectl.apply(
        _object("ResourceFlavor", {"name": "any"}, {}),
        _object("ClusterQueue", {"name": QUEUE}, spec),
        _object("LocalQueue", {"name": QUEUE, "namespace": NAMESPACE}, {"clusterQueue": QUEUE}),
    )


def slots_in_use(kubectl: Kubectl) -> int:
    """What the queue's admitted workloads have of its quota; finished ones stay there as long as their pods."""
    queue = kubectl.get(f"clusterqueues.{GROUP}", QUEUE) or {}
    usage = [resource for flavor in queue["status"]["flavorsUsage"] for resource in flavor["resources"]]
    return sum(int(resource["total"]) for resource in usage if resource["name"] == SLOT)


def _object(kind: str, metadata: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata, "spec": spec}


def remove(kubectl: Kubectl) -> None:
    """It runs no more, and no pod waits for its word."""
    kubectl("delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "kueue")
    stop("kueue")
