"""Fine-tune a Llama on checked machines: corpus -> tokenize -> train -> evaluate, and always a report."""

from dataclasses import dataclass
from typing import Annotated

from hera.workflows import DAG, Workflow

import everstep
from everstep.steps import check, corpus, evaluate, model, preprocess, report, train


@dataclass(frozen=True)
class Config:
    """Each field is a flag of this file and a parameter of the workflow."""

    corpus: Annotated[str, everstep.LocalFile.TEXT] = ""
    """Comma separated paths, globs and s3:// addresses of text; empty: the text that comes with Python."""
    model: Annotated[str, everstep.LocalFile.MODEL] = "tiny"
    """tiny (a few million random weights), smollm2 (135 million trained ones), a directory of a Llama, or s3://..."""
    nodes: int = 2
    """Nodes that train together."""
    min_nodes: int = 1
    """With fewer healthy nodes the training waits, then gives up."""
    iterations: int = 200
    """Optimizer steps."""
    sequence_length: int = 96
    """Tokens per sample."""
    global_batch: int = 8
    """Samples per iteration over all nodes, whatever their number."""
    script: Annotated[str, everstep.LocalFile.SCRIPT] = ""
    """Your own training script instead of steps/train/llama.py: any that torchrun runs (docs/scripts.md)."""
    script_args: str = ""
    """Arguments of the script, as in a shell; the pipeline fills in {dataset}, {iterations}, ..."""
    tokenizer: Annotated[str, everstep.LocalFile.TOKENIZER] = ""
    """A tokenizer.json or a Hugging Face directory; empty: the model's own; for tiny, one is trained on the corpus."""
    text_key: str = "text"
    """Key of the text in each line of .jsonl files."""
    evaluate_script: Annotated[str, everstep.LocalFile.SCRIPT] = ""
    """Your own evaluation script; without one, only a Llama is measured."""
    job_spec: Annotated[str, everstep.LocalFile.JOB_SPEC] = ""
    """YAML file of the training's roles and policies; `nodes` is then the number of machines to check."""
    network_check: str = "auto"
    """Check each node with a healthy one when it joins the training: True, False, auto (on a cluster)."""
    hold_s: float = 120.0
    """On a cluster: seconds that checked pods wait to become the training's nodes; 0: they end with the check."""
    check_spare: int = 1
    """On a cluster: machines to check beyond `nodes`, so that training can avoid an unfit one."""
    exclude_straggler: bool = False
    """Also avoid machines more than twice as slow as the median."""
    switchbox_check: bool = False
    """Also check the links between each machine's CUDA devices."""
    box_pairs: str = "0:1 2:4 3:5 6:7"
    """Which devices share a switch: DEVICE:DEVICE."""
    min_bandwidth: float = 10000.0
    """MB/s; a pair below it is a faulty link."""
    min_channels: int = 2
    """With fewer working pairs a machine is faulty."""

    def check(self) -> None:
        """Raise for input that no step could use, before anything starts."""
        everstep.check_step(corpus.Config(source=self.corpus, text_key=self.text_key), source="corpus")
        everstep.check_step(model.Config(self.model, self.tokenizer, self.sequence_length))
        everstep.check_step(preprocess.Config(tokenizer=self.tokenizer))
        everstep.check_step(
            check.Config(
                nodes=self.nodes,
                min_nodes=self.min_nodes,
                check_spare=self.check_spare,
                job_spec=self.job_spec,
                switchbox_check=self.switchbox_check,
                box_pairs=self.box_pairs,
                min_bandwidth=self.min_bandwidth,
                min_channels=self.min_channels,
                hold_s=self.hold_s,
            )
        )
        everstep.check_step(self._training())
        everstep.check_step(evaluate.Config(script=self.evaluate_script), script="evaluate_script")

    def check_machine(self) -> None:
        """Raise for what this machine is too small for, before a local run."""
        train.require_memory_for(self._training(), self.model, self.tokenizer)

    def _training(self) -> train.Config:
        return train.Config(
            script=self.script,
            script_args=self.script_args,
            nodes=self.nodes,
            min_nodes=self.min_nodes,
            job_spec=self.job_spec,
            iterations=self.iterations,
            sequence_length=self.sequence_length,
            global_batch=self.global_batch,
            network_check=self.network_check,
            exclude_straggler=self.exclude_straggler,
            switchbox_check=self.switchbox_check,
        )


def build(config: Config) -> Workflow:
    """The workflow; the same object runs locally and on Argo."""
    with Workflow(
        generate_name="llama-finetune-", entrypoint="main", arguments=everstep.parameters(config)
    ) as workflow:
        with DAG(name="main"):
            text = corpus.task(source=everstep.parameter("corpus"), text_key=everstep.parameter("text_key"))
            start = model.task(
                model=everstep.parameter("model"),
                tokenizer=everstep.parameter("tokenizer"),
                sequence_length=everstep.parameter("sequence_length"),
            )
            tokens = preprocess.task("tokenize", input=text.uri, tokenizer=start.tokenizer)
            health = check.task(
                nodes=everstep.parameter("nodes"),
                min_nodes=everstep.parameter("min_nodes"),
                check_spare=everstep.parameter("check_spare"),
                job_spec=everstep.parameter("job_spec"),
                exclude_straggler=everstep.parameter("exclude_straggler"),
                switchbox_check=everstep.parameter("switchbox_check"),
                box_pairs=everstep.parameter("box_pairs"),
                min_bandwidth=everstep.parameter("min_bandwidth"),
                min_channels=everstep.parameter("min_channels"),
                training="train",
                hold_s=everstep.parameter("hold_s"),
            )
            training = train.task(
                dataset=tokens.uri,
                validation=tokens.validation,
                model=start.uri,
                script=everstep.parameter("script"),
                script_args=everstep.parameter("script_args"),
                nodes=everstep.parameter("nodes"),
                min_nodes=everstep.parameter("min_nodes"),
                job_spec=everstep.parameter("job_spec"),
                iterations=everstep.parameter("iterations"),
                sequence_length=everstep.parameter("sequence_length"),
                global_batch=everstep.parameter("global_batch"),
                avoid_hosts=health.avoid_hosts,
                host_order=health.host_order,
                network_check=everstep.parameter("network_check"),
                exclude_straggler=everstep.parameter("exclude_straggler"),
                switchbox_check=everstep.parameter("switchbox_check"),
                box_pairs=everstep.parameter("box_pairs"),
                min_bandwidth=everstep.parameter("min_bandwidth"),
                min_channels=everstep.parameter("min_channels"),
            )
            score = evaluate.task(
                checkpoint=training.checkpoint,
                results=training.results,
                validation=tokens.validation,
                model=start.uri,
                trained_by=everstep.parameter("script"),
                script=everstep.parameter("evaluate_script"),
            )
            text >> tokens >> training >> score
            start >> tokens
            health >> training
        report.on_exit(workflow)
    return workflow


if __name__ == "__main__":
    everstep.submit(build, Config)
