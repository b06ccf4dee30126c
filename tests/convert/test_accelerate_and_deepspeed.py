"""`accelerate launch` and `deepspeed` in a job's command: the train step starts their scripts, as it does torchrun's.

What is expected is what the launchers themselves do: Accelerate 1.15 is asked itself (its parser, and the functions in
accelerate/utils/launch.py that make a script's variables); DeepSpeed by its documentation ("Getting Started",
"Launching DeepSpeed Training") and deepspeed/launcher/runner.py and launch.py.
"""

import argparse
import json
import os
import shlex
from typing import Any

import pytest

from everstep.convert import Conversion, convert
from everstep.convert.launcher import Launch, Place, parse_launch
from everstep.convert.launchers import accelerate, deepspeed
from tests.convert.stand_ins import HEAD, POD, PYTHON, ranks_in, run_converted


def launched(line: str, nodes: int = 1, devices: int = 0) -> Launch:
    launch = parse_launch(shlex.split(line), {}, Place(nodes, devices))
    assert launch
    return launch


def converted(line: str, replicas: int = 1, gpus: int = 0) -> Conversion:
    pod = POD.replace("[python, t.py]", json.dumps(["sh", "-c", line]))
    pod = pod.replace("image: i,", f"image: i, resources: {{limits: {{memory: 1Gi, nvidia.com/gpu: {gpus}}}}},")
    return convert(f"{HEAD}  replicaSpecs: {{worker: {{replicas: {replicas}, {pod}}}}}", "f")


def role_of(conversion: Conversion) -> dict[str, Any]:
    return conversion.arguments["job_spec"]["replicaSpecs"]["worker"]


def variables_of(conversion: Conversion) -> dict[str, str]:
    container = role_of(conversion)["template"]["spec"]["containers"][0]
    return {entry["name"]: entry["value"] for entry in container["env"]}


@pytest.mark.parametrize(
    ("line", "replicas", "gpus", "sizes"),
    [
        ("accelerate launch --num_processes=8 --num_machines 2 t.py", 2, 4, (2, 2, 4)),
        ("accelerate launch --num-processes 8 --num-machines=2 --machine_rank $RANK --main_process_ip $MASTER_ADDR "
         "--main_process_port $MASTER_PORT t.py", 2, 0, (2, 2, 4)),
        ("accelerate launch --num_machines $WORLD_SIZE --num_processes 16 --multi_gpu t.py", 4, 8, (4, 4, 4)),
        ("accelerate launch t.py", 3, 4, (3, 3, 4)),
        ("accelerate launch --cpu --num_processes 2 t.py", 2, 1, (2, 2, 1)),
        ("accelerate-launch --num_processes 2 t.py", 1, 1, (1, 1, 2)),
        ("python -m accelerate.commands.launch --num_processes 2 t.py", 1, 1, (1, 1, 2)),
        ("deepspeed t.py", 2, 8, (2, 2, 8)),
        ("deepspeed --num_gpus 4 --num_nodes=2 --hostfile /job/hostfile --master_port 29501 t.py", 3, 8, (2, 2, 4)),
        ("deepspeed --num_accelerators=4 -H h --no_ssh --node_rank 1 t.py", 2, 8, (2, 2, 4)),
        ("deepspeed --elastic_training --min_elastic_nodes 2 --max_elastic_nodes 4 t.py", 4, 1, (2, 4, 1)),
        ("python -u -m deepspeed.launcher.runner --elastic_training t.py", 3, 1, (1, 3, 1)),
    ],
)  # fmt: skip
def test_as_many_processes_are_started_as_the_launcher_would_start(
    line: str, replicas: int, gpus: int, sizes: tuple[int, int, int]
) -> None:
    conversion = converted(line, replicas, gpus)
    role = role_of(conversion)
    assert (role["minReplicas"], role["replicas"], role["slots"]) == sizes
    assert conversion.arguments["script"] == "t.py"
    assert not [note for note in conversion.notes if "launcher's" in note or "unchanged" in note]


def test_without_devices_there_is_one_process_and_no_flag_that_nobody_gave_is_told() -> None:
    for line in ("accelerate launch t.py", "deepspeed t.py"):
        conversion = converted(line)
        assert role_of(conversion)["slots"] == 1
        assert not [note for note in conversion.notes if "launcher's" in note]


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("accelerate launch -m pkg.train --lr 1", ("python", "-m", "pkg.train", "--lr", "1")),
        ("accelerate launch --no_python ./train a", ("./train", "a")),
        ("accelerate launch t.py --num_processes 3", ("python", "t.py", "--num_processes", "3")),
        ("deepspeed t.py --deepspeed ds.json",
         ("python", "t.py", "--local_rank=${local_rank}", "--deepspeed", "ds.json")),
        ("deepspeed --no_local_rank --module pkg x", ("python", "-m", "pkg", "x")),
        ("deepspeed --no_python ./train a", ("./train", "--local_rank=${local_rank}", "a")),
    ],
)  # fmt: skip
def test_the_program_of_each_process_is_the_launchers(line: str, program: tuple[str, ...]) -> None:
    assert launched(line).program == program


SETTINGS = {
    "mixed precision": "--mixed_precision bf16 --num_cpu_threads_per_process 3 --enable_cpu_affinity --debug",
    "dynamo": "--mixed_precision no --dynamo_backend inductor --dynamo_mode max-autotune --dynamo_use_fullgraph",
    "fsdp": "--mixed_precision fp16 --use_fsdp --fsdp_offload_params True --fsdp_auto_wrap_policy "
            "TRANSFORMER_BASED_WRAP --fsdp_transformer_layer_cls_to_wrap=LlamaDecoderLayer "
            "--fsdp_state_dict_type SHARDED_STATE_DICT",
    "fsdp with context parallelism": "--use_fsdp --fsdp_version 2 --use_parallelism_config "
                                     "--parallelism_config_dp_shard_size 2",
    "megatron": "--use_megatron_lm --megatron_lm_tp_degree 2 --megatron_lm_gradient_clipping 0.5 "
                "--megatron_lm_sequence_parallelism true",
    "deepspeed": "--use_deepspeed --mixed_precision bf16 --zero_stage 3 --gradient_accumulation_steps 4 "
                 "--gradient_clipping 0.5 --offload_optimizer_device CPU --zero3_init_flag True",
    "deepspeed's file": "--use-deepspeed --deepspeed-config-file ds.json --deepspeed_multinode_launcher standard",
}  # fmt: skip
EACH_TIME = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_", "OMP_NUM_THREADS", "PYTHONPATH")
"""Accelerate sets them also to what a script finds without them; PYTHONPATH has a test of its own."""
GIVEN = {"--mixed_precision": "ACCELERATE_MIXED_PRECISION", "--dynamo_backend": "ACCELERATE_DYNAMO_",
         "--num_cpu_threads_per_process": "OMP_NUM_THREADS"}  # fmt: skip


def all_by_accelerate(flags: str) -> dict[str, str]:
    """What its own launcher gives a script."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    line = ["--config_file", os.devnull, "--num_processes", "2", "--num_machines", "1", *shlex.split(flags), "t.py"]
    arguments: argparse.Namespace = launch.launch_command_parser().parse_args(line)
    arguments.mixed_precision = arguments.mixed_precision or "no"
    arguments.dynamo_backend = arguments.dynamo_backend or "no"
    arguments.num_cpu_threads_per_process = arguments.num_cpu_threads_per_process or 1
    arguments.deepspeed_fields_from_accelerate_config = ""
    arguments.main_process_port = 0
    prepare = (lambda of: prepare_deepspeed_cmd_env(of)[1]) if arguments.use_deepspeed else prepare_multi_gpu_env
    return prepare(arguments)


def variables_by_accelerate(flags: str) -> dict[str, str]:
    """Those of them that say something."""
    variables = all_by_accelerate(flags)
    unasked = tuple(
        name for name in EACH_TIME if not any(GIVEN[flag] == name for flag in GIVEN if flag in flags)
    )  # fmt: skip
    return {
        name: value
        for name, value in variables.items()
        if os.environ.get(name) != value and not name.startswith(unasked)
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_a_script_finds_the_variables_that_accelerates_launcher_sets(name: str) -> None:
    flags = SETTINGS[name]
    assert dict(launched(f"accelerate launch {flags} t.py").start.variables) == variables_by_accelerate(flags)


def test_deepspeeds_script_imports_from_the_folder_of_accelerates_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/lib")
    expected = all_by_accelerate("--use_deepspeed")["PYTHONPATH"]
    line = f"cd {os.getcwd()} && export PYTHONPATH=/lib && accelerate launch --use_deepspeed t.py"
    assert variables_of(converted(line))["PYTHONPATH"] == expected
    assert all_by_accelerate("--use_fsdp").get("PYTHONPATH") == "/lib", "of other scripts nothing is said"
    assert "PYTHONPATH" not in launched("accelerate launch --use_fsdp a/t.py").start.variables


@pytest.mark.parametrize(
    ("line", "is_listed"),
    [
        ("accelerate launch --use_deepspeed src/t.py", True),
        ("accelerate launch --use_deepspeed --no_python ./train", True),
        ("cd /w && accelerate launch --use_deepspeed /src/t.py", True),
        ("cd /w && accelerate launch --use_deepspeed /w/t.py", False),
        ("accelerate launch --use_deepspeed ./t.py", False),
        ("accelerate launch --use_deepspeed -m src.t", False),
        ("accelerate launch --use_fsdp src/t.py", False),
        ("deepspeed src/t.py", False),
    ],
)
def test_that_folder_is_listed_where_the_images_own_paths_are_not_known(line: str, is_listed: bool) -> None:
    told = [note for note in converted(line).notes if "append the folder in which it is started to PYTHONPATH" in note]
    assert bool(told) == is_listed


def test_fp8_settings_are_accelerates() -> None:
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import setup_fp8_env

    flags = "--fp8_backend te --fp8_margin 2 --fp8_use_autocast_during_eval"
    expected = setup_fp8_env(launch_command_parser().parse_args([*shlex.split(flags), "t.py"]), {})
    own = dict(launched(f"accelerate launch --mixed_precision fp8 {flags} t.py").start.variables)
    assert own == {"ACCELERATE_MIXED_PRECISION": "fp8", **expected}


def test_every_switch_of_accelerate_and_deepspeed_is_known_as_one() -> None:
    from accelerate.commands.launch import launch_command_parser

    actions = [action for action in launch_command_parser()._actions if action.option_strings and action.nargs == 0]
    spelled = {word.lstrip("-").replace("-", "_") for action in actions for word in action.option_strings}
    assert spelled - {"h", "help"} == accelerate.DIALECT.switches
    in_runner = (
        "module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training bind_cores_to_rank"
    )
    assert set(in_runner.split()) <= deepspeed.DIALECT.switches


def test_the_variables_are_those_of_the_nodes_pods() -> None:
    conversion = converted("export A=1 && B=2 accelerate launch --mixed_precision bf16 t.py --x", gpus=2)
    assert variables_of(conversion) == {"A": "1", "B": "2", "ACCELERATE_MIXED_PRECISION": "bf16"}
    assert conversion.arguments["script_args"] == "--x"


@pytest.mark.parametrize(
    ("line", "flag", "nearest"),
    [
        ("accelerate launch --config_file ds.yaml t.py", "config_file=ds.yaml", "the settings in it as flags"),
        ("accelerate launch --gpu_ids 0,1 t.py", "gpu_ids=0,1", "devices by the name of a resource"),
        ("accelerate launch --tpu t.py", "tpu=true", ""),
        ("accelerate launch --fsdp_offload_params true t.py", "fsdp_offload_params=true", ""),
        ("accelerate launch --mixed_precision $MP t.py", "mixed_precision=$MP", ""),
        ("accelerate launch --num_processes $N t.py", "num_processes=$N", "--workers-per-node"),
        ("accelerate launch --num_processes 1 --num_machines 2 t.py", "num_processes=1", "--workers-per-node"),
        ("deepspeed --include worker-0@worker-1:0,2 t.py", "include=worker-0@worker-1:0,2", "--nodes"),
        ("deepspeed --autotuning run t.py", "autotuning=run", ""),
        ("deepspeed --bind_cores_to_rank t.py", "bind_cores_to_rank=true", ""),
        ("deepspeed --num_gpus all t.py", "nproc_per_node=all", "--workers-per-node"),
    ],
)  # fmt: skip
def test_a_flag_that_cannot_be_carried_is_listed(line: str, flag: str, nearest: str) -> None:
    notes = [note for note in converted(line, 2).notes if "launcher's" in note]
    assert [
        note for note in notes if note.startswith(f"f: the launcher's --{flag}: no counterpart; nearest: {nearest}")
    ]
    assert len(notes) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "accelerate launch --multi_gpu --num_machines 2 --num_processes 4 --mixed_precision bf16 train.py --epochs 3",
        "deepspeed --num_gpus 2 train.py --epochs 3",
    ],
)
def test_it_runs_here_with_a_stand_in_for_its_script(line: str, tmp_path: Any) -> None:
    pod = POD.replace("[python, t.py]", json.dumps(["bash", "-c", line]))
    (tmp_path / "job.yaml").write_text(f"{HEAD}  replicaSpecs: {{worker: {{replicas: 2, {pod}}}}}")
    logs = run_converted(tmp_path, {"python": PYTHON}, ["train.py"])
    assert ranks_in(logs) == 4, logs[-5000:]
    rank = "'--local_rank=1', " if line.startswith("deepspeed") else ""
    assert f"given [{rank}'--epochs', '3']" in logs
