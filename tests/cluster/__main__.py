"""A real Kubernetes of two nodes on this machine: `python -m tests.cluster up|down|status|kubectl ...`.

build         make its programs (20 minutes of two cores the first time)
up, down      start what does not run; stop all of it and leave nothing behind
lose I        node I's kubelet, containerd and containers are killed; up brings them back
cut I, join I node I leaves the network, and returns to it
kubectl ...   as the administrator
"""

import sys
import time

from tests.cluster import lifecycle, network, node
from tests.cluster.layout import ADMIN
from tests.cluster.processes import ClusterError, output_of
from tests.golang import NoGoError


def main(words: list[str]) -> str:
    """What the command has to say."""
    began = time.monotonic()
    match words:
        case ["build"]:
            return str(lifecycle.programs())
        case ["up"]:
            lifecycle.up()
            return f"up in {time.monotonic() - began:.1f} s; KUBECONFIG={ADMIN}"
        case ["down"]:
            lifecycle.down()
            return f"down in {time.monotonic() - began:.1f} s"
        case ["status"]:
            return lifecycle.status()
        case ["lose", number]:
            node.lose_node(int(number))
            return ""
        case ["cut" | "join" as verb, number]:
            network.cut(int(number), off=verb == "cut")
            return ""
        case ["kubectl", *more]:
            return output_of(lifecycle.programs() / "kube", "kubectl", "--kubeconfig", ADMIN, *more)
    raise ClusterError(f"{' '.join(words) or 'no word'}: not known\n{__doc__}")


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except (ClusterError, NoGoError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        sys.exit(2)
