"""docs/reference/python-api.md: the public names with their signatures and docstrings, parsed and not imported."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from docs.rendering.source import (
    Function,
    definition,
    docstring,
    documented_names,
    is_property,
    parse,
    public_methods,
    signature,
)


@dataclass(frozen=True)
class Public:
    """A public name."""

    name: str
    path: str
    bases: Sequence[tuple[str, str]] = ()
    """(path, class) of the bases whose methods belong to the API."""
    hidden: Sequence[str] = ()
    """Fields and methods that only a framework or Everstep itself uses."""


WORKER = (("runtime/checkpoint/worker/checkpointer.py", "Checkpointer"),)
SCRIPT = (
    Public("init", "everstep/training.py"),
    Public("main", "everstep/reentry.py"),
    Public("Context", "everstep/session.py", hidden=("link",)),
    Public("batches", "everstep/training.py"),
    Public("Batch", "everstep/token_batches.py"),
    Public("loader", "everstep/dataset_batches.py"),
    Public("LoadedBatch", "everstep/dataset_batches.py"),
    Public("LoadedPart", "everstep/dataset_batches.py"),
    Public("ElasticSampler", "everstep/dataset_batches.py"),
    Public("shards", "everstep/data_shards.py"),
    Public("Shard", "everstep/data_shards.py"),
    Public("Checkpointer", "everstep/checkpoints.py", WORKER, hidden=("restore", "beacon", "correct_beacon")),
    Public("Replay", "everstep/replay.py"),
    Public("report", "everstep/training.py"),
    Public("track", "everstep/training.py"),
    Public("phase", "everstep/training.py"),
    Public("results", "everstep/job_results.py"),
)
PIPELINE = (
    Public("submit", "everstep/pipeline.py"),
    Public("parameters", "everstep/pipeline.py"),
    Public("parameter", "everstep/pipeline.py"),
    Public("check_step", "everstep/pipeline.py"),
    Public("LocalFile", "everstep/local_files.py"),
)
RETURNED = (
    Public("Batches", "everstep/token_batches.py"),
    Public("Loader", "everstep/dataset_batches.py"),
    Public("OwnStep", "steps/own.py"),
)
"""What these functions return; a script need not spell the names."""
STEPS = ("corpus", "model", "preprocess", "check", "train", "evaluate", "chaos", "verdict")
OWN_STEP = (
    Public("step", "steps/own.py"),
    Public("progress", "steps/own.py"),
)
ERRORS = (
    Public("BadInput", "everstep/errors.py"),
    Public("DatasetError", "runtime/data/errors.py"),
    Public("LinkError", "runtime/protocol/worker_link.py"),
    Public("RestoreError", "runtime/checkpoint/errors.py", hidden=("flaw",)),
    Public("ResultsError", "runtime/data/results.py"),
    Public("StateError", "runtime/checkpoint/errors.py"),
    Public("StoreError", "runtime/store/protocol.py"),
)
"""What `everstep.errors` has for `except`."""
FLASH = "everstep/flash_checkpoint.py"
FLASH_BASE = ((FLASH, "FlashCheckpoints"),)
MEGATRON = "everstep/megatron.py"
MODULES = {
    "everstep.huggingface": (
        Public("EverstepCallback", "everstep/huggingface.py", hidden=(
            "on_init_end", "on_train_begin", "on_epoch_begin", "on_step_begin", "on_step_end", "on_log", "on_train_end",
        )),
    ),
    "everstep.lightning": (
        Public("EverstepCallback", "everstep/lightning.py", hidden=(
            "setup", "restored", "on_train_start", "on_train_batch_start", "on_train_batch_end", "on_train_end",
        )),
    ),
    "everstep.megatron": (
        Public("save_checkpoint", MEGATRON),
        Public("load_checkpoint", MEGATRON),
        Public("MegatronCheckpointer", MEGATRON, FLASH_BASE, hidden=("save_checkpoint",)),
    ),
    "everstep.torchtitan": (Public("CheckpointManager", "everstep/torchtitan.py"),),
    "everstep.torchtune": (
        Public("RecipeCheckpointer", "everstep/torchtune.py", hidden=("load_checkpoint", "save_checkpoint")),
        Public("MetricLogger", "everstep/torchtune.py", hidden=("log_config", "log", "log_dict", "close")),
    ),
    "everstep.deepspeed": (Public("DeepSpeedCheckpointer", "everstep/deepspeed.py", FLASH_BASE),),
    "everstep.flash_checkpoint": (
        Public("DdpCheckpointer", FLASH, FLASH_BASE),
        Public("FsdpShardCheckpointer", FLASH, FLASH_BASE),
        Public("StorageType", FLASH),
    ),
}  # fmt: skip


def _function(node: Function, title: str) -> str:
    return f"```python\n{signature(node, title)}\n```\n{docstring(node)}\n\n"


def _class(symbol: Public, node: ast.ClassDef) -> str:
    text = f"{docstring(node)}\n\n"
    parts = [node, *(base_class(*base) for base in symbol.bases)]
    for name, kind, _, about in documented_names(node):
        if not name.startswith("_") and name not in symbol.hidden:
            text += f"- `{name}`{f': `{kind}`' if kind else ''}{f'. {about}' if about else ''}\n"
    for method in public_methods(node):
        if is_property(method) and method.name not in symbol.hidden and docstring(method):
            text += (
                f"- `{method.name}`: `{ast.unparse(method.returns)}`. {docstring(method)}\n" if method.returns else ""
            )
    text += "\n"
    names_documented = set(symbol.hidden)
    starts = [n for part in parts for n in part.body if isinstance(n, Function) and n.name == "__init__"]
    if starts and docstring(starts[0]):  # Without one, only Everstep itself makes such objects.
        text += _function(starts[0], symbol.name)
    for part in parts:
        for method in public_methods(part):
            if method.name not in names_documented and docstring(method) and not is_property(method):
                names_documented.add(method.name)
                text += _function(method, method.name)
    return text


def base_class(path: str, name: str) -> ast.ClassDef:
    """The class of that name at that path."""
    node = definition(parse(path), name)
    assert isinstance(node, ast.ClassDef)
    return node


def _section(symbol: Public, level: str = "###") -> str:
    node = definition(parse(symbol.path), symbol.name)
    text = _class(symbol, node) if isinstance(node, ast.ClassDef) else _function(node, symbol.name)
    return f"{level} `{symbol.name}`\n{text}"


def _step(step: str) -> str:
    node = definition(parse(f"steps/{step}/template.py"), "task")
    assert isinstance(node, Function)
    return f"### `everstep.steps.{step}`\n{_function(node, f'{step}.task')}"


def render() -> str:
    """The page."""
    modules = "".join(
        f"## `{module}`\n{docstring(parse(names[0].path))}\n\n{''.join(map(_section, names))}"
        for module, names in MODULES.items()
    )
    exit_handler = definition(parse("steps/report/template.py"), "on_exit")
    assert isinstance(exit_handler, Function)
    return f"""\
# Python API

Made from the docstrings by `make reference`; a test keeps it true and complete. These names are public: they follow
[the rule of versions](../versions.md). Everything else may change with any release.

## In a training script: `import everstep`
{"".join(map(_section, SCRIPT))}## What these return
{"".join(map(_section, RETURNED))}## In a pipeline: `import everstep`
{"".join(map(_section, PIPELINE))}## In a step of your own: `import everstep`
{"".join(map(_section, OWN_STEP))}## Steps
A step's arguments are its [flags](flags.md#steps), spelled as Python names. A task's outputs are its attributes:
`tokens.uri`.

{"".join(map(_step, STEPS))}### `everstep.steps.report`
{_function(exit_handler, "report.on_exit")}## `everstep.errors`
{docstring(parse("everstep/errors.py"))}

{"".join(map(_section, ERRORS))}## `everstep.job`
{docstring(parse("everstep/job.py"))}

[The job spec](job-spec.md) describes each class and field.

## `everstep.keep_running`
{docstring(parse("everstep/keep_running.py"))}

## `everstep.mpi_hosts`
{docstring(parse("everstep/mpi_hosts.py"))}

## `everstep.prepare_once`
{docstring(parse("everstep/prepare_once.py"))}

## `everstep.ssh_server`
{docstring(parse("everstep/ssh_server.py"))}

{modules}"""
