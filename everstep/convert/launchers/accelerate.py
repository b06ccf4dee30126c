"""Hugging Face Accelerate's launcher: `accelerate launch [flags] script arguments`.

By Accelerate 1.15, accelerate/commands/launch.py (its flags and their defaults) and accelerate/utils/launch.py (the
variables that its script gets): it starts `--num_processes` processes on `--num_machines` machines, by torchrun, and
tells a script everything else by variables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from everstep.convert.field_reader import number_in
from everstep.convert.launchers.dialect import DEVICES, MODULE, NO_PYTHON, SLOTS, Dialect, Translation

_MPI = "mpirun_hostfile"
_NOT_NEEDED = (
    "machine_rank", "main_process_ip", "main_process_port", "same_network", "rdzv_backend", _MPI,
    "deepspeed_hostfile", "deepspeed_multinode_launcher", "multi_gpu", "quiet", "q",
)  # fmt: skip
"""Most say where its machines meet, which the train step decides."""
_SWITCHES = frozenset({
    "cpu", "multi_gpu", "tpu", "enable_cpu_affinity", "dynamo_use_fullgraph", "dynamo_use_dynamic",
    "dynamo_use_regional_compilation", "use_deepspeed", "use_fsdp", "use_parallelism_config", "use_megatron_lm",
    "same_network", *MODULE, NO_PYTHON, "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "downcast_bf16",
    "fp8_use_autocast_during_eval", "debug", "quiet", "q",
})  # fmt: skip
_OWN = {"mixed_precision": "ACCELERATE_MIXED_PRECISION", "num_cpu_threads_per_process": "OMP_NUM_THREADS"}
"""Flags whose value is a variable's."""
_OWN_SWITCHES = {
    "debug": {"ACCELERATE_DEBUG_MODE": "true"}, "enable_cpu_affinity": {"ACCELERATE_CPU_AFFINITY": "1"},
    "cpu": {"ACCELERATE_USE_CPU": "True", "KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"},
}  # fmt: skip
_SMALL = ("offload_optimizer_device", "offload_param_device")
"""Values that the launcher writes in small letters."""
_LINEAR = "fp8_override_linear_precision"
_FALSE, _ON, _OFF = "False", "true", "false"


@dataclass(frozen=True)
class _Group:
    """Flags of one way to train, which count together."""

    switch: Mapping[str, str]
    """The variables that the group's own switch sets."""
    flags: str
    """What their names begin with."""
    variables: str
    """What the names of their variables begin with, instead."""
    defaults: Mapping[str, str]
    """Of flags, without `flags`, that set their variable also if they are not given."""
    names: Mapping[str, str]
    """Flags, without `flags`, whose variable is called otherwise; empty: it is not."""
    spelling: Callable[[str], str]
    """Of true and false."""


_GROUPS = {
    "dynamo_backend": _Group({}, "dynamo_", "ACCELERATE_DYNAMO_", {
        "mode": "default", "use_fullgraph": _FALSE, "use_dynamic": _FALSE, "use_regional_compilation": _FALSE,
    }, {}, str.capitalize),
    "use_fsdp": _Group({"ACCELERATE_USE_FSDP": "true"}, "fsdp_", "FSDP_", {
        "version": "1", "sharding_strategy": "FULL_SHARD", "reshard_after_forward": _ON, "offload_params": _OFF,
        "min_num_params": "100000000", "forward_prefetch": _OFF, "use_orig_params": _ON,
        "cpu_ram_efficient_loading": _ON, "sync_module_states": _ON, "activation_checkpointing": _OFF,
        "activation_checkpointing_offload": _OFF,
    }, {"transformer_layer_cls_to_wrap": "TRANSFORMER_CLS_TO_WRAP"}, str.lower),
    "use_megatron_lm": _Group({"ACCELERATE_USE_MEGATRON_LM": "true"}, "megatron_lm_", "MEGATRON_LM_", {
        "tp_degree": "1", "pp_degree": "1", "gradient_clipping": "1.0", **dict.fromkeys((
            "use_custom_fsdp", "no_load_optim", "eod_mask_loss", "no_save_optim", "optimizer_cpu_offload",
            "use_precision_aware_optimizer", "overlap_cpu_optimizer_d2h_h2d",
        ), _FALSE),
    }, {}, str),
    "use_parallelism_config": _Group(
        {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, "parallelism_config_", "PARALLELISM_CONFIG_", {
            **dict.fromkeys(("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size"), "1"),
            "cp_backend": "torch", "sp_backend": "deepspeed",
        }, {}, str.capitalize,
    ),
    "fp8": _Group({}, "fp8_", "ACCELERATE_FP8_", {
        "use_autocast_during_eval": _FALSE, "margin": "0", "interval": "1", "format": "HYBRID",
        "amax_history_len": "1024", "amax_compute_algo": "most_recent", "opt_level": "O2",
        "enable_fsdp_float8_all_gather": "1", "pad_inner_dim": "1",
    }, {}, str.capitalize),
    "use_deepspeed": _Group(
        {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": ""}, "", "ACCELERATE_", {}, {
            **dict.fromkeys(("gradient_accumulation_steps", "gradient_clipping", "deepspeed_config_file",
                             "deepspeed_moe_layer_cls_names"), ""),
            "zero_stage": "DEEPSPEED_ZERO_STAGE", "zero3_init_flag": "DEEPSPEED_ZERO3_INIT",
            "zero3_save_16bit_model": "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
            "offload_optimizer_device": "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
            "offload_param_device": "DEEPSPEED_OFFLOAD_PARAM_DEVICE",
        }, str.lower,
    ),
}  # fmt: skip
"""Each by the flag that makes the others count; fp8 is a value of --mixed_precision."""


def _translate(flags: Mapping[str, str], nodes: int) -> Translation:
    left = {name: value for name, value in flags.items() if name not in _NOT_NEEDED}
    variables: dict[str, str] = {}
    if "dynamo_backend" in left:
        left["dynamo_backend"] = left["dynamo_backend"].upper()
    is_fp8 = left.get("mixed_precision") == "fp8"
    if is_fp8:
        linear = left.pop(_LINEAR, "").split(",") + [""] * 3
        for part, value in zip(("FPROP", "DGRAD", "WGRAD"), linear, strict=False):
            variables[f"ACCELERATE_FP8_OVERRIDE_{part}"] = str(value.strip().lower() == _ON)
    for switch, group in _GROUPS.items():
        if switch in left or (switch == "fp8" and is_fp8):
            variables |= _take_group(group, left)
            left.pop(switch, None)
    for name, variable in _OWN.items():
        if name in left and _is_known(left[name]):
            variables[variable] = left.pop(name)
    for name, set_by_it in _OWN_SWITCHES.items():
        variables |= set_by_it if left.pop(name, "") else {}
    sizes = _sizes(left, nodes, is_cpu="cpu" in flags and _MPI not in flags)
    return Translation({**left, **sizes}, variables, adds_folder="use_deepspeed" in flags)


def _take_group(group: _Group, left: dict[str, str]) -> dict[str, str]:
    """The variables that the group's flags set, which are taken out of `left`."""
    names = [name for name in left if name.startswith(group.flags)] if group.flags else [*group.names]
    given = {name.removeprefix(group.flags): left.pop(name) for name in names if _is_known(left.get(name, "$"))}
    values = {**group.defaults, **given}
    spelled = {
        name: group.spelling(value) if value.lower() in (_ON, _OFF) else value.lower() if name in _SMALL else value
        for name, value in values.items()
    }
    named = {f"{group.variables}{group.names.get(name) or name.upper()}": value for name, value in spelled.items()}
    return {**group.switch, **named}


def _is_known(value: str) -> bool:
    """Whether a shell would put nothing else for it."""
    return "$" not in value


def _sizes(left: dict[str, str], nodes: int, is_cpu: bool) -> dict[str, str]:
    """torchrun's flags for the numbers of machines and processes, whose own flags are taken out of `left`.

    Without `--num_processes` there is one for each device; with `--cpu` alone one on each machine.
    """
    machines, processes = left.pop("num_machines", ""), left.pop("num_processes", "")
    of_all = (nodes if number_in(machines) is None else number_in(machines)) if machines else 1
    sizes = {"nnodes": machines} if machines else {}
    if is_cpu:
        return {**sizes, SLOTS: "1"}
    if not processes:
        return {**sizes, SLOTS: DEVICES}
    count = number_in(processes)
    if count is None or not of_all or count < of_all:
        return {**sizes, "num_processes": processes}
    return {**sizes, SLOTS: str(count // of_all)}


DIALECT = Dialect(
    (("accelerate", "launch"), ("accelerate-launch",)), ("accelerate.commands.launch",), _SWITCHES, _translate
)
