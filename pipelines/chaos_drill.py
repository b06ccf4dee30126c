"""Drill a training: a run without faults, then one for each fault, and a page that says what each fault cost."""

from dataclasses import dataclass
from typing import Annotated

from hera.workflows import DAG, Workflow

import everstep
from everstep.steps import corpus, model, preprocess, train
from everstep.steps.chaos.drill import check_names, drill
from everstep.steps.entry import StepError


@dataclass(frozen=True)
class Config:
    """Each field is a flag of this file and a parameter of the workflow."""

    only: str = ""
    """Comma separated names of experiments; empty: all. They are listed in steps/chaos/drill.py."""
    corpus: Annotated[str, everstep.LocalFile.TEXT] = ""
    """Comma separated paths, globs and s3:// addresses of text; empty: the text that comes with Python."""
    model: Annotated[str, everstep.LocalFile.MODEL] = "tiny"
    """tiny, smollm2, a directory of a Llama, or s3://..."""
    script: Annotated[str, everstep.LocalFile.SCRIPT] = ""
    """Your own training script instead of steps/train/llama.py."""
    script_args: str = ""
    """Its arguments, as in a shell; {dataset}, {iterations}, ... stand for what the pipeline knows."""
    nodes: int = 2
    """Nodes that train together."""
    iterations: int = 100
    """Optimizer steps of each training."""
    sequence_length: int = 64
    """Tokens per sample."""
    global_batch: int = 8
    """Samples per iteration over all nodes, however many there are."""
    node_memory: str = "2Gi"
    """Memory of a node in the experiments that fill it."""
    chaosblade: bool = False
    """On a cluster with ChaosBlade's operator: it injects the faults that it can."""
    seed: int = 0
    """Decides which node a fault happens to, and when."""

    def check(self) -> None:
        """Raise for input that no step could use, before anything starts."""
        check_names(self.only)
        everstep.check_step(corpus.Config(source=self.corpus), source="corpus")
        everstep.check_step(model.Config(self.model, sequence_length=self.sequence_length))
        everstep.check_step(
            train.Config(
                script=self.script,
                script_args=self.script_args,
                nodes=self.nodes,
                iterations=self.iterations,
                sequence_length=self.sequence_length,
                global_batch=self.global_batch,
            )
        )

    def check_machine(self) -> None:
        """Raise for what only a cluster can do, before a local run."""
        if self.chaosblade:
            raise StepError("--chaosblade: its operator injects faults into pods, and here nodes are processes")


def build(config: Config) -> Workflow:
    """The workflow; put `drill(...)` into your own, with the arguments of your train step."""
    with (
        Workflow(generate_name="chaos-drill-", entrypoint="main", arguments=everstep.parameters(config)) as workflow,
        DAG(name="main", fail_fast=False),
    ):
        text = corpus.task(source=everstep.parameter("corpus"))
        start = model.task(model=everstep.parameter("model"))
        tokens = preprocess.task("tokenize", input=text.uri, tokenizer=start.tokenizer)
        text >> tokens
        start >> tokens
        drill(
            after=tokens,
            only=config.only,
            nodes=config.nodes,
            iterations=config.iterations,
            node_memory=config.node_memory,
            seed=config.seed,
            chaosblade=config.chaosblade,
            dataset=tokens.uri,
            model=start.uri,
            script=everstep.parameter("script"),
            script_args=everstep.parameter("script_args"),
            sequence_length=everstep.parameter("sequence_length"),
            global_batch=everstep.parameter("global_batch"),
        )
    return workflow


if __name__ == "__main__":
    everstep.submit(build, Config)
