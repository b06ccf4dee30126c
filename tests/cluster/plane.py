"""Host 0: etcd, API server with RBAC, controller manager, scheduler, and the store beside them."""

import json
import secrets
import urllib.request
from pathlib import Path

from tests.cluster.layout import ADMIN, API, HOME, NODES, PLANE, SERVICES, STORE, node_name
from tests.cluster.processes import output_of, start, wait, works

KEYS = HOME / "keys"
BUCKET = "everstep"
SILENT_S = 12
"""After so long without news a node counts as lost, instead of Kubernetes' 50."""


def kubeconfig(path: Path, token: str) -> None:
    """A file by which whoever has that token reaches the API."""
    cluster = {"server": API, "certificate-authority": str(KEYS / "apiserver.crt")}
    kube_settings = {
        "apiVersion": "v1", "kind": "Config", "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": cluster}], "users": [{"name": "tests", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kube_settings))
    path.chmod(0o600)


def node_kubeconfig(node: int) -> Path:
    """The node's own."""
    return HOME / f"{node_name(node)}.kubeconfig"


def identities() -> None:
    """A token for the administrator and for each node, and the key that signs those of service accounts. Once."""
    if ADMIN.exists():
        return
    KEYS.mkdir(parents=True, exist_ok=True)
    KEYS.chmod(0o700)
    output_of("openssl", "genrsa", "-out", KEYS / "accounts.key", "2048")
    admin = secrets.token_hex(16)
    token_lines = [f'{admin},admin,admin,"system:masters"']
    for node in range(1, NODES + 1):
        token = secrets.token_hex(16)
        token_lines.append(f'{token},system:node:{node_name(node)},{node_name(node)},"system:nodes"')
        kubeconfig(node_kubeconfig(node), token)
    (KEYS / "tokens.csv").write_text("\n".join(token_lines) + "\n")
    kubeconfig(ADMIN, admin)


def start_plane(kube: Path) -> None:
    """The control plane, until it answers."""
    identities()
    start(
        "etcd", 0,
        [
            kube, "etcd", "--data-dir", HOME / "etcd", "--unsafe-no-fsync", "--log-level=warn",
            "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ],
    )  # fmt: skip
    api_server(kube)
    wait(lambda: (KEYS / "apiserver.crt").exists() and answers(kube), "the API server")
    quietly = ["--leader-elect=false", "--bind-address=127.0.0.1", "--kubeconfig", ADMIN]
    start(
        "controller-manager", 0,
        [
            kube, "kube-controller-manager", *quietly, "--service-account-private-key-file", KEYS / "accounts.key",
            "--root-ca-file", KEYS / "apiserver.crt", "--node-monitor-period=1s",
            f"--node-monitor-grace-period={SILENT_S}s",
        ],
    )  # fmt: skip
    start("scheduler", 0, [kube, "kube-scheduler", *quietly])


def api_server(kube: Path) -> None:
    """The API server alone, as it is started again after it was stopped."""
    start(
        "api-server", 0,
        [
            kube, "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--bind-address={PLANE}",
            f"--advertise-address={PLANE}", "--secure-port=6443", "--cert-dir", KEYS, "--allow-privileged",
            f"--service-cluster-ip-range={SERVICES}", "--authorization-mode=Node,RBAC", "--token-auth-file",
            KEYS / "tokens.csv", "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file", KEYS / "accounts.key", "--service-account-signing-key-file",
            KEYS / "accounts.key", "--kubelet-preferred-address-types=InternalIP",
        ],
    )  # fmt: skip


def answers(kube: Path) -> bool:
    """Whether the API server is ready."""
    return works(kube, "kubectl", "--kubeconfig", ADMIN, "get", "--raw", "/readyz")


def store_started(minio: Path) -> None:
    """The store with an empty bucket."""
    store_file = HOME / "store.json"
    if not store_file.exists():
        credentials = {
            "MINIO_ENDPOINT": STORE, "AWS_ACCESS_KEY_ID": f"user{secrets.token_hex(4)}",
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        }  # fmt: skip
        store_file.write_text(json.dumps(credentials))
        store_file.chmod(0o600)
    credentials = store_variables()
    (HOME / "store" / BUCKET).mkdir(parents=True, exist_ok=True)
    variables = {
        "MINIO_ROOT_USER": credentials["AWS_ACCESS_KEY_ID"],
        "MINIO_ROOT_PASSWORD": credentials["AWS_SECRET_ACCESS_KEY"],
        "MINIO_BROWSER": "off", "MINIO_UPDATE": "off", "HOME": str(HOME),
    }  # fmt: skip
    command = [minio, "server", "--quiet", "--address", f"{PLANE}:9000", HOME / "store"]
    start("minio", 0, command, variables)


def store_answers() -> bool:
    """Whether the store is ready."""
    try:
        with urllib.request.urlopen(f"{STORE}/minio/health/ready", timeout=2):
            return True
    except OSError:
        return False


def store_variables() -> dict[str, str]:
    """By which the running store is found."""
    return json.loads((HOME / "store.json").read_text())
