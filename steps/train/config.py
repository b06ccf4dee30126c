"""The parameters of the training."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.runtime.checkpoint.node.core.persist_interval import share_of
from everstep.runtime.job.spec import KEEP_LAST
from everstep.runtime.platform.gang import Gang
from everstep.runtime.store import NoSuchKey, StoreError, open_store
from everstep.runtime.store.code import fetch_code, is_code_address
from everstep.steps.entry import StepError, disk_error_code, require_count, require_number, require_script
from everstep.steps.model import directory
from everstep.steps.model.directory import TINY
from everstep.steps.train.job import job_of, ranks
from everstep.steps.train.script import COMMAND, script_arguments, script_variables, split_arguments

if TYPE_CHECKING:
    from everstep.runtime.diagnosis.switchbox import SwitchboxSpec

LLAMA = Path(__file__).with_name("llama.py")
COMMAND_SCRIPT = Path(__file__).with_name("command.py")
PERSIST_EVERY = 50
REPLAYED_EVERY = 100
"""Iterations between two replays by default: one takes up to as long as an iteration, and may take 1 % of the time."""
BOX_PAIRS = "0:1 2:4 3:5 6:7"
PRECISIONS = ("fp32", "bf16")
MOST_RATE, MOST_BYTES = 1e6, 1e18
_PEAK_TINY, _PEAK_TRAINED = 3e-3, 1e-4
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def _facts_of(dataset: str, flag: str) -> dict[str, Any]:
    """The dataset.json of a folder or URI. Raises StepError."""
    try:
        facts = json.loads(open_store(dataset, read_only=True).get("dataset.json"))
        sizes = {split: {"tokens": int(facts.get(split, {}).get("tokens", 0))} for split in ("train", "validation")}
        return {**sizes, "vocab_size": int(facts["vocab_size"])}
    except NoSuchKey:
        raise StepError(f"{flag} {dataset}: no dataset.json there; everstep.steps.preprocess makes one") from None
    except StoreError as error:
        raise StepError(f"{flag} {error}", disk_error_code(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StepError(f"{flag} {dataset}/dataset.json: not a dataset; make it again") from None


def _host_names(flag: str, text: str) -> tuple[str, ...]:
    """Raises StepError."""
    try:
        hosts = json.loads(text or "[]")
    except ValueError:
        hosts = None
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise StepError(f"{flag} {text}: must be a JSON list of names, like '[\"local-1\"]'")
    return tuple(hosts)


@dataclass(frozen=True)
class Config:
    """Train elastically on min-nodes to nodes nodes, whatever dies; a rerun continues from the newest checkpoint."""

    dataset: str = ""
    """URI of a token dataset, as the preprocess step prints it."""
    validation: str = ""
    """URI of the held-out split that the evaluation will measure, which is checked before training; empty: none."""
    model: str = TINY
    """tiny (5 million random weights), a Llama's Hugging Face directory, or the URI that the model step printed."""
    script: str = ""
    """Your own training script, or its address in a store; empty: steps/train/llama.py. It gets EVERSTEP_DATASET and
    the like, and those of the flags --dataset, --model, --iterations, ... that it declares (docs/scripts.md). @command:
    --script-args is a JSON mapping from roles to commands, which the workers run instead."""
    script_args: str = ""
    """More arguments for your script, as in a shell; the step fills in {dataset}, {iterations}, ..."""
    script_settings: bool = True
    """Whether your script gets the flags that it declares, and {dataset} and the like are filled in in --script-args.
    False: it gets --script-args alone, as they stand."""
    nodes: int = 2
    """Nodes that train together."""
    min_nodes: int = 1
    """With fewer nodes the training waits; after too long it ends with exit code 3."""
    workers_per_node: int = 1
    """Training processes on each node."""
    job_spec: str = ""
    """YAML file of the job's roles and policies, or such a mapping itself; flags must not contradict it."""
    iterations: int = 200
    """Optimizer steps."""
    sequence_length: int = 96
    """Tokens per sample."""
    global_batch: int = 8
    """Samples per iteration over all ranks, whatever their number."""
    learning_rate: float = 0.0
    """Peak of the learning rate; 0: 3e-3 for tiny's random weights, 1e-4 for a trained model."""
    warmup: int = 20
    """Iterations of linear warm-up; a cosine follows."""
    seed: int = 0
    """Decides the random weights and the order of the data."""
    precision: str = "fp32"
    """Of the default script's matrix products: fp32, or bf16 by autocast; weights stay in fp32."""
    compile: bool = False
    """The default script compiles the model with torch.compile."""
    micro_batch: int = 0
    """Samples that the default script computes at once; it accumulates gradients over the rest. 0: all of a rank's."""
    spares: int = 0
    """Warm spare processes of each node: one takes the place of a worker that dies. For scripts with everstep.main."""
    spare_nodes: int = 0
    """Nodes beyond --nodes: one takes the place of a lost node at once. With --spares it is warm by then."""
    persist_interval: int = PERSIST_EVERY
    """Iterations between two checkpoints in the store; memory holds one of every iteration."""
    checkpoint_overhead: str = ""
    """Instead of an interval: the share of the time, such as 1%, that staging and copying to the store may each take.
    The intervals then follow from measurements."""
    persist_bytes_per_s: float = 0.0
    """Bytes a second that each node may write to the store; 0: no limit."""
    state_bytes: float = 0.0
    """For your own script: bytes that a node stages, which sizes /dev/shm on a cluster; 0: unknown."""
    peer_copies: int = 1
    """Copies of a sharded state in other nodes' memory, each on another machine: as many machines may be lost at once.
    With more than 1, state_bytes counts as a sharded state, with the copies of other nodes' parts."""
    keep_last: int = KEEP_LAST
    """Newest checkpoints to keep in the store; 0: all."""
    keep_every: int = 0
    """Also keep each checkpoint whose iteration is a multiple of this; 0: none."""
    certify_interval: int = 0
    """Iterations between two comparisons of the state across replicas; only states that agree are restored. 0: no
    comparison, but every 100 with certify_replay."""
    loss_spike: float = 0.0
    """With certify_interval: a loss above this many times the median of the last 32 is unsound, as a non-finite one is:
    training steps back to the newest certified state. 0: no loss is."""
    skip_batches: int = 0
    """With certify_interval: skip a batch whose loss is unsound again when it is repeated, at most this many; beyond
    that the training fails. The script must use everstep.batches."""
    certify_replay: bool = False
    """Another rank computes the gradients of each compared iteration again; of three ranks, the one that gets other
    gradients is replaced. Your own script must use everstep.Replay. Without certify_interval, states are compared and
    go to the store every 100 iterations."""
    network_check: str = "auto"
    """True: check each node with a healthy one before it joins; an unfit one is replaced on another host. auto: where a
    node has a pod of its own, not where all share one machine."""
    exclude_straggler: bool = False
    """With that check: replace a node that is more than twice as slow as the median, too."""
    switchbox_check: bool = False
    """With that check: measure the links between each node's own CUDA devices, too."""
    box_pairs: str = BOX_PAIRS
    """Switch box pairs, DEVICE:DEVICE."""
    min_bandwidth: float = 10000.0
    """MB/s; a pair below it is a faulty link."""
    min_channels: int = 2
    """With fewer working pairs the node is faulty."""
    straggler_policy: str = "report"
    """What follows if the others wait for a node iteration after iteration: report, or replace (once for each node, if
    min-nodes are left meanwhile)."""
    gang: str = "none"
    """On a cluster: the scheduler that admits min-nodes nodes together or not at all: none, volcano, koordinator,
    coscheduling or kueue."""
    queue: str = ""
    """Volcano's Queue, Koordinator's ElasticQuota (empty: the default one) or Kueue's LocalQueue."""
    priority_class: str = ""
    """On a cluster: PriorityClass of min-nodes nodes; empty: that of the step's own pod."""
    extra_priority_class: str = ""
    """On a cluster: PriorityClass of the nodes beyond min-nodes, which give way first; empty: that of the others."""
    tls: bool = True
    """On a cluster: TLS between master, agents and peers; False where the network itself encrypts."""
    avoid_hosts: str = "[]"
    """JSON list of hosts not to use, as the check step prints it."""
    host_order: str = "[]"
    """JSON list of hosts in rank order, as the check step prints it."""
    taint_hosts: bool = False
    """On a cluster: taint avoided hosts everstep/unfit:NoSchedule for all pods; needs the right to do so."""
    job: str = ""
    """Name of the job; a job of the same name continues where it stopped. Empty: RUN-TASK."""
    max_relaunches: int = 3
    """Replacements of one node before the training continues without it."""
    max_restarts: int = 3
    """Restarts allowed for errors of the script."""
    replacement_wait_s: float = 10.0
    """Seconds that survivors wait for a lost node's replacement before they continue without it. They do not wait where
    no node of the job has started that fast so far."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run."""
    task: str = "train"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for checkpoint and iterations."""

    def with_default_cadence(self) -> "Config":
        """With certify_replay and no interval: what replays cost stays below 1 % of the time."""
        if not self.certify_replay or self.certify_interval or self.job_spec:
            return self
        persist_interval = REPLAYED_EVERY if self.persist_interval == PERSIST_EVERY else self.persist_interval
        return replace(self, certify_interval=REPLAYED_EVERY, persist_interval=persist_interval)

    def check(self) -> None:
        """Raise StepError for what can be checked before anything starts: numbers, paths, the model's directory."""
        whole = self.with_default_cadence()
        if whole is not self:
            whole.check()
            return
        self._check_numbers()
        self._check_scheduling()
        names = {"--run": self.run, "--task": self.task, "--job": self.job_name()}
        if unusable := [f"{flag} {name!r}" for flag, name in names.items() if not _JOB.fullmatch(name)]:
            raise StepError(f"{unusable[0]}: use letters, digits and . _ -")
        self.hosts_to_avoid()
        self.hosts_in_order()
        workers = ranks(job_of(self)) if self.job_spec else self.nodes * self.workers_per_node
        if self.global_batch < workers:
            raise StepError(f"--global-batch {self.global_batch}: fewer samples than the {workers} ranks; raise it")
        if self.script != COMMAND:
            require_script("--script", self.script)
        split_arguments(self.script_args)
        if self.script_args and not self.script:
            raise StepError("--script-args: they belong to your own --script; give one")
        if not self.script_settings and not self.script:
            raise StepError("--script-settings False: the default script needs its settings; give your own --script")
        self._check_llama_flags()
        model = {} if self.model == TINY else directory.check_finished(self.model, self.sequence_length)
        if self.dataset:
            self._check_dataset(model)

    def job_name(self) -> str:
        """Name of the job."""
        return self.job or f"{self.run}-{self.task}"

    def scheduler_flags(self) -> list[str]:
        """The given flags that only a cluster's scheduler understands."""
        is_given = {"gang": self.gang != "none", "queue": self.queue}
        is_given |= {
            "taint-hosts": self.taint_hosts,
            "priority-class": self.priority_class,
            "extra-priority-class": self.extra_priority_class,
        }
        return [f"--{name}" for name, value in is_given.items() if value]

    def _check_scheduling(self) -> None:
        if self.gang not in tuple(Gang):
            raise StepError(f"--gang {self.gang}: not known; use {', '.join(Gang)}")
        if self.queue and not Gang(self.gang).has_queues:
            raise StepError(f"--queue {self.queue}: queues are Volcano's, Koordinator's and Kueue's; give --gang, too")
        if self.gang == Gang.KUEUE and not self.queue:
            raise StepError("--gang kueue: give --queue, the LocalQueue whose quota admits the nodes")

    def _check_llama_flags(self) -> None:
        if self.precision not in PRECISIONS:
            raise StepError(f"--precision {self.precision}: not known; use {' or '.join(PRECISIONS)}")
        if self.script and self._llama_arguments():
            llama_flags = ", ".join(flag.partition("=")[0] for flag in self._llama_arguments())
            raise StepError(f"{llama_flags}: the default script's; give your own script's flags in --script-args")

    def _check_numbers(self) -> None:
        for name in ("nodes", "min_nodes", "workers_per_node", "iterations", "sequence_length", "persist_interval",
                     "global_batch"):  # fmt: skip
            require_count(f"--{name.replace('_', '-')}", getattr(self, name), 1)
        for name in ("warmup", "max_relaunches", "max_restarts", "seed", "keep_last", "keep_every", "peer_copies",
                     "certify_interval", "skip_batches", "micro_batch", "spares",
                     "spare_nodes"):  # fmt: skip
            require_count(f"--{name.replace('_', '-')}", getattr(self, name), 0)
        if self.min_nodes > self.nodes and not self.job_spec:
            raise StepError(f"--min-nodes {self.min_nodes}: more than --nodes {self.nodes}; lower it")
        require_number("--replacement-wait-s", self.replacement_wait_s)
        require_number("--learning-rate", self.learning_rate, MOST_RATE)
        for name in ("persist_bytes_per_s", "state_bytes"):
            require_number(f"--{name.replace('_', '-')}", getattr(self, name), MOST_BYTES)
        if self.straggler_policy not in ("report", "replace"):
            raise StepError(f"--straggler-policy {self.straggler_policy}: unknown; use report or replace")
        self._check_node_check()
        if self.certify_interval and self.checkpoint_overhead:
            raise StepError("--certify-interval: needs states at known iterations; leave --checkpoint-overhead out")
        if self.certify_interval and self.persist_interval % self.certify_interval:
            raise StepError(
                f"--persist-interval {self.persist_interval}: must be a multiple of --certify-interval "
                f"{self.certify_interval}, or nothing in the store could be restored"
            )
        if self.loss_spike and not 1 < self.loss_spike < MOST_RATE:
            raise StepError(f"--loss-spike {self.loss_spike:g}: give a factor above 1, or 0 for none")
        needs_certified = self.loss_spike or self.skip_batches
        if needs_certified and not (self.certify_interval or self.job_spec):
            raise StepError("--loss-spike, --skip-batches: only certified states are stepped back to; give "
                            "--certify-interval, too")  # fmt: skip
        if self.keep_every and not self.keep_last:
            raise StepError("--keep-every: with --keep-last 0 every checkpoint is kept; leave one of them out")

        try:
            share_of(self.checkpoint_overhead)
        except ValueError as error:
            raise StepError(str(error)) from None
        if self.checkpoint_overhead and self.persist_interval != PERSIST_EVERY:
            raise StepError("--checkpoint-overhead and --persist-interval: give only one of them")

    def _check_node_check(self) -> None:
        if self.network_check.lower() not in ("auto", "true", "false"):
            raise StepError(f"--network-check {self.network_check}: use auto, True or False")
        require_count("--min-channels", self.min_channels, 0)
        require_number("--min-bandwidth", self.min_bandwidth)
        off = self.network_check.lower() == "false"
        for flag, is_given in (
            ("exclude-straggler", self.exclude_straggler),
            ("switchbox-check", self.switchbox_check),
        ):
            if is_given and off:
                raise StepError(f"--{flag}: part of --network-check; do not switch that off")
        self.switchbox()

    def checks_nodes(self, *, in_pods: bool) -> bool:
        """Whether each node is checked before it joins."""
        choice = self.network_check.lower()
        return in_pods if choice == "auto" else choice == "true"

    def switchbox(self) -> "SwitchboxSpec | None":
        """The links within each node to measure. Raises StepError."""
        from everstep.runtime.diagnosis.switchbox import SwitchboxError, parse_switchbox

        if not self.switchbox_check:
            return None
        try:
            return parse_switchbox(self.box_pairs, self.min_bandwidth, self.min_channels)
        except SwitchboxError as error:
            raise StepError(str(error)) from None

    def hosts_to_avoid(self) -> tuple[str, ...]:
        """The hosts of `avoid_hosts`. Raises StepError if it is not a JSON list of names."""
        return _host_names("--avoid-hosts", self.avoid_hosts)

    def hosts_in_order(self) -> tuple[str, ...]:
        """The hosts of `host_order`. Raises StepError if it is not a JSON list of names."""
        return _host_names("--host-order", self.host_order)

    def _check_dataset(self, model: dict[str, Any]) -> None:
        """`model` is the config.json of the model's directory; empty for tiny."""
        place = self.dataset.partition("#")[0]
        facts, short = _facts_of(place, "--dataset"), f"--sequence-length {self.sequence_length}:"
        tokens, vocab_size = facts["train"]["tokens"], facts["vocab_size"]
        if tokens <= self.sequence_length:
            mend = f"give more text (--corpus), or at most {tokens - 1}" if tokens > 1 else "give more text (--corpus)"
            raise StepError(f"{short} the dataset {place} has {tokens} tokens, fewer than one sample needs; {mend}")
        if model and int(model.get("vocab_size", 0)) < vocab_size:
            mend = "tokenize with the model's own tokenizer (--tokenizer)"
            raise StepError(f"--model {self.model}: {model.get('vocab_size')} tokens, the dataset {vocab_size}; {mend}")
        if not self.validation or self.script:
            return
        held_out = _facts_of(self.validation.partition("#")[0], "--validation")["validation"]["tokens"]
        if held_out <= self.sequence_length:
            raise StepError(
                f"{short} the held-out text {self.validation} has {held_out} tokens, fewer than the evaluation needs; "
                "give more text (--corpus), or a shorter length"
            )

    def known_tokens(self) -> int:
        """How many tokens the dataset's tokenizer has. Raises StepError."""
        return _facts_of(self.dataset.partition("#")[0], "--dataset")["vocab_size"]

    def script_path(self) -> Path:
        """The script that the workers run, on this machine, absolute. Raises StoreError, StepError."""
        if self.script == COMMAND:
            return COMMAND_SCRIPT
        try:
            return fetch_code(self.script)[1] if is_code_address(self.script) else Path(self.script or LLAMA).absolute()
        except ValueError as error:
            raise StepError(f"--script {error}") from None

    def script_of_nodes(self) -> str:
        """The script as nodes find it: a path, or its address in the store."""
        return self.script if is_code_address(self.script) else str(self.script_path())

    def script_arguments(self) -> list[str]:
        """The arguments of the script."""
        own = [*self._llama_arguments(), *split_arguments(self.script_args)]
        return script_arguments(self.script_path(), own, self._script_settings()) if self.script_settings else own

    def _llama_arguments(self) -> list[str]:
        """The default script's flags that differ from its defaults."""
        precision = [f"--precision={self.precision}"] if self.precision != PRECISIONS[0] else []
        micro = [f"--micro-batch={self.micro_batch}"] if self.micro_batch else []
        return [*precision, *(["--compile"] if self.compile else []), *micro]

    def script_variables(self) -> dict[str, str]:
        """The variables that tell the script what the step knows."""
        return script_variables(self._script_settings())

    def _script_settings(self) -> dict[str, object]:
        return {
            "dataset": self.dataset,
            "model": directory.absolute_address(self.model),
            "iterations": self.iterations,
            "sequence-length": self.sequence_length,
            "global-batch": self.global_batch,
            "learning-rate": self.learning_rate or (_PEAK_TINY if self.model == TINY else _PEAK_TRAINED),
            "warmup": self.warmup,
            "seed": self.seed,
        }
