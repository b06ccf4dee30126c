"""One node: containerd, kubelet and kube-proxy in the namespace of its host, and what is left of them cleared away.

Settings that a machine inside a container needs are told where they stand.
"""

import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.cluster import images
from tests.cluster.layout import ADMIN, PODS, address, folder, host_name, node_name, pod_range
from tests.cluster.plane import node_kubeconfig
from tests.cluster.processes import output_of, start, stop, wait, works

GROUPS = Path("/sys/fs/cgroup")
CPU_SHARES = 4 * 1024
"""Of a machine's pods: a process that is in no group counts 1024."""
PLUGINS = (Path("/usr/lib/cni/ptp"), Path("/usr/lib/cni/host-local"))
"""Of CNI, where Debian puts them."""
CONTAINERD = """version = 2
root = "{home}/containerd"
state = "{home}/run"
oom_score = 0
[grpc]
  address = "{home}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Lowering a process's OOM score needs CAP_SYS_RESOURCE, which root in a container may lack.
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{home}/cni"
"""


def start_node(node: int, kube: Path) -> None:
    """All of the node that does not run; it is Ready some seconds later."""
    home = folder(node)
    _settings(node)
    _groups(node)
    start(f"containerd-{node}", node, ["containerd", "--config", home / "containerd.toml"])
    wait(lambda: works(*_ctr(node), "version"), f"containerd of {node_name(node)}")
    import_images(node, images.of_the_cluster())
    start(
        f"kubelet-{node}", node,
        [
            kube, "kubelet", "--config", home / "kubelet.json", "--kubeconfig", node_kubeconfig(node),
            "--hostname-override", node_name(node), "--node-ip", address(node), "--root-dir", home / "kubelet",
            "--cert-dir", home / "kubelet-keys",
        ],
    )  # fmt: skip
    start(f"proxy-{node}", node, [kube, "kube-proxy", "--config", home / "proxy.json"])


def import_images(node: int, images_to_import: Iterable[images.Image]) -> None:
    """The node has these images."""
    have = output_of(*_ctr(node), "images", "list", "--quiet").split()
    for image in images_to_import:
        if image.name not in have:
            output_of(*_ctr(node), "images", "import", images.archive(image))


def forget_image(node: int, image: str) -> None:
    """The node has that image no more."""
    output_of(*_ctr(node), "images", "remove", "--sync", image)


def _ctr(node: int) -> tuple[str | Path, ...]:
    return ("ctr", "--address", folder(node) / "containerd.sock", "--namespace", "k8s.io")


def _settings(node: int) -> None:
    home = folder(node)
    (home / "cni").mkdir(parents=True, exist_ok=True)
    # Nobody answers there, at once. An empty file would be replaced by this machine's, whose servers no pod reaches:
    # torch looks for the names of its peers' addresses, and each of these would take 10 seconds.
    _write(home / "resolv.conf", "nameserver 127.0.0.1\n")
    _write(home / "containerd.toml", CONTAINERD.format(home=home, pause=images.PAUSE))
    # ptp: each packet is routed, so Services work between pods of one node without the kernel's br_netfilter.
    addresses = {"type": "host-local", "dataDir": str(home / "addresses"), "routes": [{"dst": "0.0.0.0/0"}]}
    addresses["ranges"] = [[{"subnet": pod_range(node)}]]
    plugin = {"type": "ptp", "ipMasq": False, "mtu": 1400, "ipam": addresses}
    network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}
    _write(home / "cni" / "10-pods.conflist", json.dumps(network))
    _write(home / "kubelet.json", json.dumps(_kubelet(node)))
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "clusterCIDR": PODS, "hostnameOverride": node_name(node), "clientConnection": {"kubeconfig": str(ADMIN)},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }  # fmt: skip
    _write(home / "proxy.json", json.dumps(proxy))


def _write(path: Path, text: str) -> None:
    """Unless it is so already: kube-proxy ends when its file is written to, whatever is written."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _kubelet(node: int) -> dict[str, Any]:
    home = folder(node)
    never = dict.fromkeys(
        ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"), "0%"
    )
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"}, "containerRuntimeEndpoint": f"unix://{home}/containerd.sock",
        "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{host_name(node)}", "enforceNodeAllocatable": [],
        "failSwapOn": False, "failCgroupV1": False, "oomScoreAdj": 0, "evictionHard": never,
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "resolvConf": str(home / "resolv.conf"), "podLogsDir": str(home / "pod-logs"),
        "volumePluginDir": str(home / "plugins"), "nodeStatusUpdateFrequency": "3s", "nodeLeaseDurationSeconds": 8,
    }  # fmt: skip


def _hierarchies() -> list[Path]:
    return [path for path in GROUPS.iterdir() if path.is_dir() and path.name != "unified"]


def _groups(node: int) -> None:
    """The node's control group in each hierarchy of version 1; a cpuset begins empty and would hold nothing.

    By default all pods of a machine together would have the weight of one process beside the others here.
    """
    for hierarchy in _hierarchies():
        group = hierarchy / host_name(node)
        group.mkdir(exist_ok=True)
        if (shares := group / "cpu.shares").exists():
            shares.write_text(str(CPU_SHARES))
        if hierarchy.name == "cpuset":
            for knob in ("cpuset.cpus", "cpuset.mems"):
                (group / knob).write_text((hierarchy / knob).read_text())


def lose_node(node: int) -> None:
    """As in a power cut: kubelet, containerd and every container are killed."""
    for name in (f"kubelet-{node}", f"proxy-{node}", f"containerd-{node}"):
        stop(name, signal.SIGKILL)
    home = f"{folder(node)}/"
    shims = [process for process in psutil.process_iter(["cmdline"]) if home in " ".join(process.info["cmdline"] or ())]
    for process in shims:  # And each runc that one of them started.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(shims, 30)
    deadline = time.monotonic() + 30
    while (pids_left := _pids_in_containers(node)) and time.monotonic() < deadline:
        for pid in pids_left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _pids_in_containers(node: int) -> list[int]:
    """Every process in a container of the node."""
    pids: list[int] = []
    for path in (GROUPS / "pids" / host_name(node)).rglob("cgroup.procs"):
        with suppress(OSError):  # It was removed meanwhile.
            pids += map(int, path.read_text().split())
    return pids


def groups_removed(node: int) -> None:
    """The node's control groups, which are empty."""
    for hierarchy in (*_hierarchies(), GROUPS / "unified"):
        top = hierarchy / host_name(node)
        for group in (*sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True), top):
            with suppress(FileNotFoundError):
                group.rmdir()
