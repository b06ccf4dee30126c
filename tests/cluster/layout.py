"""Where everything of the cluster is: its folder, names and addresses. One cluster a machine.

Each host of it (0: control plane and store, 1...: nodes) is a network namespace on one bridge, with addresses that no
route leads out of the machine to.
"""

from pathlib import Path

HOME = Path("/var/lib/everstep-cluster")
PREFIX = "everstep-"
"""What the names of its namespaces, links and control groups begin with."""
BRIDGE = f"{PREFIX}bridge"
GATEWAY = "10.90.0.1"
"""This machine's own address on the bridge."""
PODS, SERVICES = "10.91.0.0/16", "10.92.0.0/24"
PLANE = "10.90.0.10"
API = f"https://{PLANE}:6443"
STORE = f"http://{PLANE}:9000"
ADMIN = HOME / "admin.kubeconfig"
NODES = 2
NAMESPACE = "training"
"""Where tests run their workflows."""


def host_name(host: int) -> str:
    """Of its network namespace, its link on the bridge, and its control groups."""
    return f"{PREFIX}{host}"


def address(host: int) -> str:
    """On the bridge."""
    return f"10.90.0.{10 + host}"


def pod_range(node: int) -> str:
    """The addresses of its pods."""
    return f"10.91.{node}.0/24"


def node_name(node: int) -> str:
    """As Kubernetes knows it."""
    return f"node-{node}"


def folder(node: int) -> Path:
    """What the node keeps."""
    return HOME / node_name(node)
