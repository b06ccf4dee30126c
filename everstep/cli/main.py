"""The `everstep` command: each verb is a module beside this one, imported only when it is called."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from everstep.errors import BadInput, permission_line
from everstep.extras import hint
from everstep.flags import with_dashes
from everstep.runtime.display.flaghelp import Flags
from everstep.runtime.exit_codes import ExitCode
from everstep.version import VERSION

VERBS = {
    "launch": "run a script on one node or many, like torchrun, but elastic",
    "check": "check whether machines are fit to train: this one, or several with one node each",
    "workflow": "run, lint, show, resume or stop Argo manifests on this machine",
    "doctor": "check whether a cluster's namespace is ready for a pipeline",
    "scale": "change the number of nodes of a running job",
    "chaos": "inject a fault into a running training",
    "simulate": "run jobs of thousands of nodes in virtual time; compare the goodput of policies",
    "status": "show conditions, restarts, nodes and the newest checkpoint of a job",
    "report": "show what a run did and where its seconds went, also while it runs",
    "top": "show iterations, waiting, CPU and memory of each rank, and which one the others wait for",
    "ui": "show all runs in one live local page: steps, loss, nodes, faults, logs; with buttons",
    "stacks": "show what every rank of a job is doing now, merged, and which rank is out of step",
    "checkpoint": "list, verify, export or remove the checkpoints in a store",
    "convert": "turn another system's training job (ElasticJob, PyTorchJob...) into an Argo Workflow",
    "templates": "print the steps as WorkflowTemplates for your own workflows",
    "completion": "print the completion of everstep and of pipelines for bash, zsh or fish",
}
EXAMPLES = """examples:
  everstep launch --standalone --nproc-per-node 2 train.py --epochs 3
  python pipelines/llama_finetune.py                   run a pipeline here
  everstep workflow run pipeline.yaml                  run any supported Argo manifest here
  everstep workflow get llama-finetune-x7k2            what a run's steps do
  everstep check --nodes 4                             four nodes on this machine: matrix products, all-reduces
  everstep scale llama-finetune-x7k2 --nodes 1         shrink its training to one node
  everstep status llama-finetune-x7k2                  how its training is doing
  everstep stacks llama-finetune-x7k2                  what each of its ranks is doing now
  everstep ui --open                                   watch all of it in a browser
  everstep chaos llama-finetune-x7k2 --kind crash      kill one of its training processes
  everstep checkpoint ls runs/store                    its checkpoints
  everstep templates --image I | kubectl apply -f -    the steps, for any workflow's templateRef
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the verb and run it; returns the exit code (0 done, 2 bad input, 130 ended by Ctrl-C)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["launch"]:  # torchrun's command line needs its own parser.
        return importlib.import_module("everstep.cli.launch").main(words[1:])
    parser = Flags(prog="everstep", description="Training pipelines that survive.", epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"everstep {VERSION}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    first_word = next((word for word in words if not word.startswith("-")), None)
    for verb, text in VERBS.items():
        below = verbs.add_parser(verb, help=text, description=text)
        if verb == first_word:
            importlib.import_module(f"everstep.cli.{verb}").configure(below)
    flags = parser.parse_args(with_dashes(parser, words))
    try:
        code = flags.act(flags)
        sys.stdout.flush()
        return code
    except BadInput as error:
        print(f"{flags.prog}: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except ModuleNotFoundError as error:
        if not (text := hint(error)):
            raise
        print(f"{flags.prog}: {text}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except PermissionError as error:
        print(f"{flags.prog}: {permission_line(error)}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # The reader, such as `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
