"""docs/reference/environment.md: the variables that Everstep reads or sets. A test finds each of them in the code."""

import re
from collections.abc import Iterator

from docs.rendering.source import ROOT

YOURS = {
    "EVERSTEP_STORE": "The store for the checkpoints of a script under plain `python` or `torchrun`. Under an agent: "
    "the job's store.",
    "EVERSTEP_JOB": "Name of the job, by which a script finds the checkpoints of its last start. Default: the script's "
    "name and `-alone`.",
    "EVERSTEP_KEEP_LAST": "How many checkpoints such a script keeps; 0: all. Default: 3.",
    "EVERSTEP_PERSIST_INTERVAL": "Iterations between two checkpoints that such a script writes. Default: one a minute; "
    "of a sharded state every 50.",
    "EVERSTEP_JOB_TOKEN": "`everstep launch` on several machines: the job's secret, the same on each. Choose it at "
    "random. On a cluster and on one machine, Everstep creates it.",
    "EVERSTEP_CACHE": "Folder of this machine that caches reads from S3. Default: `~/.cache/everstep`.",
    "EVERSTEP_CACHE_BYTES": "The largest size of that folder.",
    "EVERSTEP_UNPACKED_BYTES": "Local runs: how many bytes an archive may unpack to, even if it is small.",
    "EVERSTEP_FAULT": "Faults to inject: [fault points](fault-points.md).",
    "EVERSTEP_FAULT_DIR": "Folder in which each fired fault leaves a file.",
}
SCRIPTS = {
    "EVERSTEP_DATASET": "URI of the token dataset; empty if there is none.",
    "EVERSTEP_MODEL": "`tiny`, or the address of a Hugging Face directory.",
    "EVERSTEP_ITERATIONS": "Optimizer steps.",
    "EVERSTEP_SEQUENCE_LENGTH": "Tokens per sample.",
    "EVERSTEP_GLOBAL_BATCH": "Samples per iteration, over all ranks.",
    "EVERSTEP_LEARNING_RATE": "Peak of the learning rate.",
    "EVERSTEP_WARMUP": "Iterations until the peak.",
    "EVERSTEP_SEED": "Seed of the weights and of the order of the data.",
    "EVERSTEP_ROUND": "Number of the round that this process belongs to.",
    "EVERSTEP_NODE": "Name of the node.",
    "EVERSTEP_RUN_DIR": "Folder of the run on this machine.",
    "EVERSTEP_DISCOVERY_SCRIPT": "Jobs of Horovod: a script that prints the hosts of the newest round, for horovodrun.",
    "EVERSTEP_SSH": "Jobs of Horovod: a folder with ssh keys of the job's own, for the PATH: its `ssh` knows the job's "
    "hosts. `python -m everstep.ssh_server` is their server.",
    "EVERSTEP_CHECKPOINT": "`--evaluate-script`: URI of the checkpoint, or empty.",
    "EVERSTEP_VALIDATION": "`--evaluate-script`: URI of the held-out text.",
    "EVERSTEP_RESULTS": "`--evaluate-script`: the results of the training, as JSON.",
}
INTERNAL = {
    "EVERSTEP_COMPLETE": "Set by the shell's completion: print completions instead of running.",
    "EVERSTEP_AGENT": "The socket through which a worker speaks to its agent.",
    "EVERSTEP_BOARD": "File in which a worker publishes what it is doing.",
    "EVERSTEP_LOCAL_RANK": "The worker's number on its node, for its agent.",
    "EVERSTEP_SPARE": "Set in a warm spare: it rehearses the script, and gets a worker's place later.",
    "EVERSTEP_TRACEBACK": "File in which a worker leaves its traceback.",
    "EVERSTEP_MASTER": "Address of the job's master.",
    "EVERSTEP_DEAD_MAN_S": "Seconds that an agent continues without a master before it ends. Default: 300.",
    "EVERSTEP_IP": "Address of this node that other nodes reach.",
    "EVERSTEP_HOST": "Name of the pod's machine.",
    "EVERSTEP_HOST_IP": "Address of the machine, as in a topology.",
    "EVERSTEP_ZONE": "Failure domain of the machine, from the pod's label `topology.kubernetes.io/zone`.",
    "EVERSTEP_TRAINING_TOKEN": "A checked pod: the token of the job that it may become a node of, from its Secret.",
    "EVERSTEP_POD": "Name of a step's own pod on a cluster.",
    "EVERSTEP_POD_MARK": "Marks the processes of a local run's pod.",
    "EVERSTEP_CLONE": "Marks the processes of a git clone.",
}
KNOWN = {**YOURS, **SCRIPTS, **INTERNAL}
_COMPUTED = {f"EVERSTEP_{name}" for name in ("ITERATIONS", "SEQUENCE_LENGTH", "LEARNING_RATE", "WARMUP", "SEED")}
"""Those that steps/train/script.py makes from the names of its flags."""


def names_in_code() -> set[str]:
    """Each variable whose name is in the code that is installed."""

    def of_sources() -> Iterator[str]:
        for folder in ("everstep", "runtime", "steps", "pipelines"):
            for path in (ROOT / folder).rglob("*.py"):
                yield from re.findall(r"EVERSTEP_[A-Z][A-Z_]*[A-Z]\b", path.read_text())

    return {*of_sources(), *_COMPUTED}


def _table(variables: dict[str, str]) -> str:
    return "| variable | meaning |\n|---|---|\n" + "".join(f"| `{n}` | {text} |\n" for n, text in variables.items())


def render() -> str:
    """The page."""
    return f"""\
# Environment variables

Made from `docs/rendering/environment.py` by `make reference`. A test keeps the
page and the code in agreement.

## What you may set
{_table(YOURS)}
Stores in S3 use the usual variables: [MinIO and S3](../how-to/minio.md). Submission reads `ARGO_SERVER`, `ARGO_TOKEN`,
`ARGO_NAMESPACE`, `ARGO_INSTANCEID` and `KUBECONFIG`: [Argo Workflows](../how-to/argo.md).
[A local run](../pod-isolation.md) passes a fixed list of your shell's variables to its pods.

## What a script receives
Scripts also get torchrun's variables: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT` and the rest.

{_table(SCRIPTS)}
## Between Everstep's processes
Do not set these.

{_table(INTERNAL)}"""
