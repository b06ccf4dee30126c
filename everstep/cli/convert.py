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
  everstep convert job.yaml --to python > pipeline.py && python pipeline.py --image registry.example/train:1"""


@dataclass(frozen=True)
class Convert:
    """Print an ElasticJob, AITrainingJob, Volcano Job, PyTorchJob, TFJob, TrainJob or RayJob as an Argo Workflow.

    Fields without a counterpart are listed on stderr."""

    file: Annotated[Path, Flag(metavar="FILE", is_positional=True)]
    """The job's manifest; -: standard input, such as `kubectl get pytorchjob NAME -o yaml`."""
    to: Literal["yaml", "python"] = "yaml"
    """yaml: an Argo Workflow; python: a Hera pipeline with the same train step."""
    image: str = ""
    """Image of the step and its nodes, with Everstep in it; empty: the job's own."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Convert, run)
    parser.epilog = EXAMPLES


def run(flags: Convert) -> int:
    """Print the Workflow or pipeline; returns the exit code. Raises BadInput."""
    import yaml

    from everstep.convert import convert
    from everstep.convert.workflow import pipeline_of, workflow_of

    try:
        text = sys.stdin.read() if str(flags.file) == "-" else flags.file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInput(f"{flags.file}: {why}") from None
    conversion = convert(text, str(flags.file), flags.image)
    for note in conversion.notes:
        print(note, file=sys.stderr)
    if flags.to == "python":
        sys.stdout.write(pipeline_of(conversion))
    else:
        yaml.safe_dump(workflow_of(conversion), sys.stdout, sort_keys=False, width=120, allow_unicode=True)
    return 0
