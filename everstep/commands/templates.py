"""`everstep templates`: the steps as Argo WorkflowTemplates, to `kubectl apply` and to call by `templateRef`."""

import argparse
import sys
from pathlib import Path

from everstep.version import IMAGE

EXAMPLES = """examples:
  everstep templates --image registry.example/everstep:0.1.0 | kubectl apply -n ml -f -
  everstep templates -o manifests      one file a step
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--image", default=IMAGE, help=f"image of the steps, as the cluster pulls it ({IMAGE})")
    parser.add_argument("--store-secret", default="everstep-store", metavar="NAME",
                        help="Secret with the store's AWS_* variables (everstep-store); empty: the pods have them "
                        "by other means")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="write one file a step there; else to stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print or write them; returns the exit code (0 done, 2 bad input)."""
    import yaml

    from runtime import atomic
    from runtime.submission.manifest import ClusterOptions, equip
    from steps.reuse import workflow_templates

    options = ClusterOptions(image=arguments.image, store_secret=arguments.store_secret)
    texts = {}
    for manifest in workflow_templates():
        equip(manifest["spec"], options, IMAGE)
        texts[manifest["metadata"]["name"]] = yaml.safe_dump(manifest, sort_keys=False, width=120)
    if arguments.output is None:
        sys.stdout.write("---\n".join(texts.values()))
        return 0
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            atomic.replace(arguments.output / f"{name}.yaml", text)
    except OSError as error:
        print(f"everstep templates: -o {arguments.output}: {error.strerror}", file=sys.stderr)
        return 2
    return 0
