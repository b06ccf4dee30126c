"""`make accept-frameworks`: users' own data, frameworks and job formats: wanted, measured, holds or not.

Tests prove what is built. Words on the command line select lines.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
import psutil

from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from everstep.runtime.job.brain import WriteRecord
from everstep.runtime.job.data_queues import NOTHING
from everstep.runtime.job.events import DataShardAsked
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.snapshot import encode_snapshot
from everstep.runtime.protocol.messages import ShardRequest
from tests.job.world import World, platform

LOADER, QUEUES = "tests/training/test_loader.py", "tests/job/test_data_queues.py"
SERVERS, PADDLE = "tests/frameworks/test_tensorflow.py", "tests/frameworks/test_paddle.py"
VARIABLES, ROLES = "tests/agent/test_framework_variables.py", "tests/job/test_frameworks_of_jobs.py"
CONVERT, FRAMEWORKS = "tests/convert/test_convert.py", "tests/checkpoint/test_frameworks.py"

DATA = {
    "data: any map-style or iterable dataset, each sample once at any world sizes": (
        f"{LOADER}::whatever_worlds", f"{LOADER}::iterable_dataset", "tests/data/test_shares.py",
    ),
    "data: 3 -> 4 -> 3 and 200 random kills": (f"{LOADER}::200_random_kills",),
    "data: kill -9 of workers, and loss of nodes, between 3 and 4 ranks while workers read ahead": (
        "tests/survival/test_own_datasets.py",
    ),
    "data: worker processes and prefetch; objects like Hugging Face datasets": (f"{LOADER}::read_ahead",),
    "data: the packages datasets, webdataset and torchdata through 200 random kills": (
        "tests/frameworks/test_data_packages.py",
    ),
    "data: an iterable dataset that divides itself: each rank reads its part, each sample once": (
        "tests/training/test_streams.py",
    ),
    "data: shuffled by (seed, epoch); what a dataset draws depends on the position": (
        f"{LOADER}::two_orders", f"{LOADER}::draws_at_random",
    ),
    "data: gradient accumulation when the world shrinks": (f"{LOADER}::accumulation",),
    "data: ElasticSampler for a DataLoader of one's own": (f"{LOADER}::the_sampler",),
    "data: seed 000's MNIST network, killed once, the same weights": (
        "tests/survival/test_own_scripts.py::dataset_of_its_own",
    ),
    "shards: each done once in what counts, in every order": (f"{QUEUES}::each_position",),
    "shards: a dead worker's go to others, slow ones get fewer": (
        f"{QUEUES}::dead_workers", f"{QUEUES}::slow_worker", "tests/launch/test_data_shards.py",
    ),
}  # fmt: skip
FORMATS = {
    "convert: seven kinds, linted clean, as YAML and Python": (
        f"{CONVERT}::each_kind", f"{CONVERT}::python_pipeline", f"{CONVERT}::sizes_of_each_kind",
    ),
    "convert: accelerate launch and deepspeed give way to the train step, with their sizes and variables": (
        "tests/convert/test_accelerate_and_deepspeed.py",
    ),
    "convert: MPIJob, Volcano's plugin mpi; mpirun starts anew on each round's hosts, by ssh between machines": (
        "tests/convert/test_mpi_job.py", "tests/agent/test_mpi_hosts.py", "tests/frameworks/test_mpirun_ssh.py",
    ),
    "convert: each field carried or listed with the nearest": (
        f"{CONVERT}::no_counterpart", f"{CONVERT}::the_pod_is_the_roles", f"{CONVERT}::first_roles_pod",
        f"{CONVERT}::keep_their_commands", "tests/convert/test_each_field.py", "tests/convert/test_launchers.py",
    ),
    "convert: Kubeflow's restart policies do what its operator does": (
        "tests/convert/test_each_field.py::kubeflows_operator",
    ),
    "convert: bad input: file, line, field, exit 2": (f"{CONVERT}::bad_input", f"{CONVERT}::policy_that"),
    "convert: any input is converted or refused in one line": ("tests/convert/test_any_input.py",),
    "convert: a job of each kind runs here": ("tests/convert/test_conversions_run.py",),
    "convert: a job of each kind runs in pods, and so does a printed Workflow": (
        "tests/convert/test_for_a_cluster.py", "tests/cluster/test_conversions.py",
    ),
    "DISK leaves the file at `path` for torch.load(weights_only=True)": (
        f"{FRAMEWORKS}::disk_save", f"{FRAMEWORKS}::cannot_be_written",
    ),
    "DISK leaves a directory at `path` for torch.distributed.checkpoint, with FSDP1": (f"{FRAMEWORKS}::fsdp1",),
    "frameworks: a loop of Accelerate, killed once, the same weights and loss": (
        "tests/survival/test_own_scripts.py::a_framework_goes_on::accelerate",
    ),
    "frameworks: FSDP1 and a Hugging Face Trainer under DDP": (f"{FRAMEWORKS}::fsdp1", f"{FRAMEWORKS}::trainer"),
}  # fmt: skip
MEGATRON, RELEASED = "tests/checkpoint/test_megatron.py", "tests/frameworks"
OWN = "tests/survival/test_own_scripts.py"
TRAINERS = {
    "Megatron-core: a small GPT goes on with tensor 2 -> 1, pipeline 2 -> 1, the same loss": (
        f"{MEGATRON}::other_tensor_and_pipeline", f"{MEGATRON}::never_stopped", f"{MEGATRON}::more_replicas",
    ),
    "Megatron-core: a worker killed with tensor parallel 2, the same weights and loss": (
        f"{OWN}::a_megatron_model_goes_on",
    ),
    "Megatron-core: a lost node's part of the model comes from a peer's memory": (f"{OWN}::peers_memory",),
    "DeepSpeed: ZeRO 1, 2 and 3 on CPUs, killed once, the same state and loss": (
        f"{RELEASED}/test_deepspeed.py::an_engine_goes_on_bit_for_bit",
    ),
    "DeepSpeed: names in a checkpoint lead out of no folder": (f"{RELEASED}/test_deepspeed.py::no_folder",),
    "DeepSpeed: ZeRO 1, 2 and 3 at other numbers of ranks, by its universal checkpoint": (
        f"{RELEASED}/test_deepspeed.py::another_number",
    ),
    "Hugging Face Trainer with fsdp=True, killed once, the same state and loss": (
        f"{OWN}::a_framework_goes_on::fsdp",
    ),
    "Hugging Face Trainer with deepspeed, ZeRO 1, 2 and 3, killed once, the same state and loss": (
        f"{RELEASED}/test_deepspeed.py::hugging_face",
    ),
    "torchtitan's Trainer, TorchTune's and verl's parts, killed once, the same state and loss": (
        f"{RELEASED}/test_torchtitan.py", f"{RELEASED}/test_torchtune.py::the_parts", f"{RELEASED}/test_verl.py",
    ),
    "TorchTune's recipes of full finetuning as they stand, killed once, the same state and loss": (
        f"{RELEASED}/test_torchtune.py::as_it_stands",
    ),
    "Lightning: Trainer and Fabric, killed once, the same state and loss": (f"{RELEASED}/test_lightning.py",),
    "recipes: parts with state_dict as torchtitan has them, killed once, the same state": (
        f"{OWN}::a_framework_goes_on::recipe",
    ),
    "two models: an actor and a critic; TRL's DPOTrainer; killed once, the same state": (
        f"{OWN}::a_framework_goes_on::two_models", f"{RELEASED}/test_trl.py",
    ),
}  # fmt: skip
STEPS = {
    "tokenizers: CharLevel and Tiktoken in the store, the table from a file": (
        "tests/preprocess/test_tiktoken_tables.py", "tests/preprocess/test_preprocess.py::tiktoken_table",
    ),
    "own steps: a step of a dataclass and a function": ("tests/face/test_own_step.py",),
    "sweep: withItems, early stop by loss, the best checkpoint": (
        "tests/docs/test_examples.py::sweep", "tests/train/test_train_config.py::reachable",
    ),
}  # fmt: skip
OTHERS = {
    "TensorFlow: TF_CONFIG of the round for chief, worker, ps, evaluator": (
        f"{VARIABLES}::tf_config", f"{VARIABLES}::evaluator", f"{ROLES}::tensorflows_roles", f"{ROLES}::all_members",
    ),
    "TensorFlow: a worker is evicted; others do its shards": (f"{SERVERS}::evicted_workers",),
    "TensorFlow: a ps is evicted; the checkpoint is restored": (f"{SERVERS}::parameter_servers",),
    "TensorFlow: chief, worker or ps runs out of memory; another one has twice as much": (
        f"{SERVERS}::twice_as_much",
    ),
    "out of memory: 8 GiB after 4, up to the limit": (f"{ROLES}::8_gib", f"{ROLES}::up_to_the_limit"),
    "Paddle: trainers come and go, the same losses": (f"{PADDLE}::losses_stay", f"{VARIABLES}::paddle"),
    "Horovod: discovery from the round, ssh keys of the job's own, a launcher that outlives rounds": (
        f"{VARIABLES}::discovery", f"{VARIABLES}::ssh_keys", "tests/train/test_horovod_roles.py",
        "tests/agent/test_keep_running.py",
    ),
    "Horovod 0.28.1: trainers come and go under one launcher, the same losses": (
        "tests/frameworks/test_horovod.py::come_and_go",
    ),
    "Horovod 0.28.1 by ssh between machines: workers and machines come and go, the same losses": (
        "tests/frameworks/test_horovod_ssh.py",
    ),
    "Horovod 0.28.1 by ssh between real pods: a converted AITrainingJob; one pod is deleted, the same losses": (
        "tests/cluster/test_horovod.py",
    ),
    "mpirun of Open MPI 4, 5 and MPICH between real pods: converted jobs lose a host and the launcher": (
        "tests/cluster/test_mpirun.py",
    ),
    "convert: a job with hostNetwork runs in pods, two on one machine, and loses one": (
        "tests/cluster/test_host_network.py",
    ),
    "docs: Kubeflow, Volcano, AITrainingJob, torchrun: each page's example runs": ("tests/docs/test_origins.py",),
    "docs: Horovod, Lightning, Ray Train, DLRover: each page's example runs": (
        "tests/frameworks/test_horovod.py::of_the_page", f"{RELEASED}/test_lightning.py::of_the_page",
        "tests/docs/test_examples.py::ray_train", f"{FRAMEWORKS}::what_users_of_dlrover",
    ),
}  # fmt: skip
PROVEN = {**DATA, **FORMATS, **TRAINERS, **STEPS, **OTHERS}
"""Promise -> the tests that prove it, in the words of `acceptance.prove`."""
MANY = 10**6


def many_shards(options: argparse.Namespace) -> Iterator[Line]:
    """10^6 shards through the brain, none of them settled by a checkpoint: the most that a queue holds."""
    world = World(platform())
    world.join_all()
    nodes = world.names(NodePhase.RUNNING)[:2]
    brain, position_by_node, written = world.brain, dict.fromkeys(nodes, NOTHING), 0
    memory, began = psutil.Process().memory_info().rss, time.process_time()
    for number in range(1, MANY // 2 + 2):
        for node in nodes:
            question = DataShardAsked(ShardRequest(node, 0, 1, number, "q", MANY, position_by_node[node], number))
            decisions = brain.handle(question, world.now)
            if number % SAMPLED == 0:
                records = [decision.record for decision in decisions if isinstance(decision, WriteRecord)]
                written += sum(len(msgspec.json.encode(record)) + 1 for record in records)
            position_by_node[node] = brain.state.queues["q"].leases[f"{node}/0"].position
    seconds = time.process_time() - began
    memory = psutil.Process().memory_info().rss - memory
    snapshot = len(encode_snapshot(brain.state))
    is_over = brain.state.queues["q"].is_over
    yield Line(SHARDS, "<= 100 µs of the brain each", f"{seconds / MANY * 1e6:.0f} µs", is_over and seconds < 100)
    yield Line(SHARDS, "<= 200 bytes of memory each", f"{memory / MANY:.0f} bytes", memory < 200 * MANY)
    journal = written * SAMPLED / MANY
    yield Line(SHARDS, "<= 400 bytes of the journal each", f"{journal:.0f} bytes", journal <= 400)
    yield Line(SHARDS, "<= 40 bytes of a snapshot each", f"{snapshot / MANY:.0f} bytes", snapshot <= 40 * MANY)


SHARDS = "shards: 10^6 of them are cheap"
SAMPLED = 100
"""The records of one in so many requests are measured."""
MEASURED: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = {SHARDS: many_shards}


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: measurements first, with the machine to themselves."""
    for promise, measure in MEASURED.items():
        if is_asked(promise, options.words):
            yield from measure(options)
    yield from prove(PROVEN, options)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    judge(lines(parse_options(parser, [*MEASURED, *PROVEN])))


if __name__ == "__main__":
    main()
