"""`everstep convert FILE.yaml`: another system's training job as an Argo Workflow with Everstep's train step."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from everstep.errors import BadInput
from everstep.flags import Flag, add_action

EXAMPLES = """\
examples:
  everstep convert elastic_job.yaml > workflow.yaml && everstep workflow lint workflow.yaml
  kubectl get pytorchjob NAME -o yaml | everstep convert - > workflow.yaml
  everstep convert job.yaml --store s3://ml/everstep | kubectl create -n ml -f -
  everstep convert job.yaml --to python > pipeline.py && python pipeline.py --image registry.example/train:1"""

_OF_CLUSTER = ("service_account", "store_secret")


@dataclass(frozen=True)
class Convert:
    """Print another system's job as an Argo Workflow.

    It is an ElasticJob, AITrainingJob, Volcano Job, PyTorchJob, TFJob, MPIJob, TrainJob or RayJob. Fields without a
    counterpart are listed on stderr."""

    file: Annotated[Path, Flag(metavar="FILE", is_positional=True)]
    """The job's manifest; -: standard input, such as `kubectl get pytorchjob NAME -o yaml`."""
    to: Literal["yaml", "python"] = "yaml"
    """yaml: an Argo Workflow; python: a Hera pipeline with the same train step."""
    image: str = ""
    """Image with Everstep in it, of the step and of all nodes that have the first role's image; empty: that image."""
    store: str = "runs/store"
    """Keeps checkpoints and journals. With s3://bucket/prefix the Workflow is for a cluster; with a directory for
    everstep workflow run."""
    service_account: Annotated[str, Flag(metavar="NAME")] = "everstep"
    """Of a cluster's pods; the train step uses NAME-train. Empty: the namespace's default."""
    store_secret: Annotated[str, Flag(metavar="NAME")] = "everstep-store"
    """Secret with the store's AWS_* variables; empty: the pods get them by other means."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Convert, run)
    parser.epilog = EXAMPLES


def run(flags: Convert) -> int:
    """Print the Workflow or pipeline; returns the exit code. Raises BadInput."""
    import yaml

    from everstep.convert import convert
    from everstep.convert.workflow import pipeline_of, workflow_of
    from everstep.runtime.submission.manifest import ClusterOptions

    try:
        text = sys.stdin.read() if str(flags.file) == "-" else flags.file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInput(f"{flags.file}: {why}") from None
    on_cluster = flags.store.startswith("s3://")
    given = [name for name in _OF_CLUSTER if getattr(flags, name) != getattr(Convert, name)]
    if flags.to == "python" and (given or flags.store != Convert.store):
        raise BadInput("--to python: the pipeline has the flags of store, account and Secret itself; give them to it")
    if given and not on_cluster:
        raise BadInput(f"--{given[0].replace('_', '-')}: only for a cluster; give --store s3://bucket/prefix, too")
    conversion = convert(text, str(flags.file), flags.image)
    for note in conversion.notes:
        print(note, file=sys.stderr)
    if flags.to == "python":
        sys.stdout.write(pipeline_of(conversion))
    else:
        if not on_cluster:
            need = "a Workflow for a cluster needs --store s3://bucket/prefix"
            print(f"{flags.file}: for everstep workflow run; {need}", file=sys.stderr)
        options = ClusterOptions(conversion.pod.image, flags.service_account, store_secret=flags.store_secret)
        workflow = workflow_of(conversion, flags.store, options if on_cluster else None)
        yaml.safe_dump(workflow, sys.stdout, sort_keys=False, width=120, allow_unicode=True)
    return 0
