"""The whole cluster: what this machine lacks for it, up, down, and one node lost or cut off."""

import fcntl
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import minio
from tests.cluster import namespace, network, node, plane
from tests.cluster.kubectl import Kubectl
from tests.cluster.layout import HOME, NODES
from tests.cluster.processes import ClusterError, names, output_of, running, stop, wait, works
from tests.golang import TOOLS, build_programs

DEBIAN = "containerd runc containernetworking-plugins nftables iptables conntrack busybox-static iproute2 openssl"
NEEDED = ("containerd", "ctr", "runc", "nft", "conntrack", "busybox", "ip", "nsenter", "openssl")
ARGO = "github.com/argoproj/argo-workflows/v4"
"""The module that has its kinds."""
LOCK = Path("/run/lock/everstep-cluster")


def missing() -> str:
    """Why there can be no cluster on this machine; "": there can."""
    if os.geteuid() != 0:
        return "no cluster: it needs root"
    absent = [name for name in NEEDED if not shutil.which(name)]
    if absent := [*absent, *(str(path) for path in node.PLUGINS if not path.exists())]:
        return f"no cluster: {', '.join(absent)} not found; apt-get install {DEBIAN}"
    if not (node.GROUPS / "pids").is_dir():
        return "no cluster: it is made for control groups of version 1"
    if not Path("/bin").is_symlink():
        return "no cluster: its pods use /usr of a machine whose /bin is /usr/bin"
    if not works("unshare", "-n", "ip", "link", "add", "ever0", "type", "bridge"):
        return "no cluster: no network namespaces here"
    return ""


def programs() -> Path:
    """The folder with `kube`, and Argo's kinds; built the first time. Raises NoGoError."""
    version = re.search(r"k8s.io/kubernetes (v[0-9.]+)", (TOOLS / "kube" / "go.mod").read_text())
    assert version, "tools/kube/go.mod names no Kubernetes"
    major, minor, _ = version[1].removeprefix("v").split(".")
    stamp_values = {"gitVersion": version[1], "gitMajor": major, "gitMinor": minor}
    stamped = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    stamps = {f"{package}.{name}": value for package in stamped for name, value in stamp_values.items()}
    return build_programs("kube", ["."], stamps, {ARGO: "manifests/base/crds/minimal"})


@dataclass(frozen=True)
class Cluster:
    """Two nodes and a store, all ready."""

    kubectl: Kubectl
    programs: Path

    @property
    def store(self) -> dict[str, str]:
        """The variables by which the store is found."""
        return plane.store_variables()


def up() -> Cluster:
    """Start what does not run, until all is ready. Raises ClusterError, NoGoError."""
    if why := missing():
        raise ClusterError(why)
    built_programs, store = programs(), minio.binary()
    kubectl = Kubectl(built_programs / "kube")
    network.make_hosts(NODES)
    plane.start_plane(built_programs / "kube")
    plane.store_started(store)
    for number in range(1, NODES + 1):
        node.start_node(number, built_programs / "kube")
    namespace.made_ready(kubectl, built_programs)
    wait(plane.store_answers, "MinIO")
    wait(lambda: _ready(kubectl) == NODES, "every node Ready")
    return Cluster(kubectl, built_programs)


def _ready(kubectl: Kubectl) -> int:
    conditions = [condition for node in kubectl.list("nodes") for condition in node["status"].get("conditions", ())]
    return sum(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def down() -> None:
    """Stop all of it, and leave nothing behind. Idempotent."""
    for number in range(1, NODES + 1):
        node.lose_node(number)
    for name in names():  # Nothing is kept, so nobody needs time to end well.
        stop(name, signal.SIGKILL)
    for place in _mount_points():
        output_of("umount", "--lazy", place)
    if mounts_left := _mount_points():
        raise ClusterError(f"{mounts_left[0]} is still mounted: nothing was removed")
    for number in range(1, NODES + 1):
        node.groups_removed(number)
    network.remove_rules()
    shutil.rmtree(HOME, ignore_errors=True)


def _mount_points() -> list[str]:
    """What is mounted in the cluster's folder, the innermost first."""
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((place for place in places if place.startswith(f"{HOME}/")), reverse=True)


@contextmanager
def alone() -> Iterator[None]:
    """Nobody else on this machine uses the cluster meanwhile; waits for whoever does."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def brought_up() -> Iterator[Cluster]:
    """The cluster, up for as long as the block uses it; other users of this machine wait. Raises as `up` does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Whoever ends a run so leaves no cluster behind.
    with alone():
        try:
            yield up()
        finally:
            down()


def status() -> str:
    """What runs, and the nodes as Kubernetes sees them."""
    if not names():
        return "no cluster"
    running_ones = [f"{name:20} {'runs' if running(name) else 'dead'}" for name in names()]
    return "\n".join([*running_ones, Kubectl(programs() / "kube")("get", "nodes", "-o", "wide")])
