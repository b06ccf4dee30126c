"""`everstep templates`: the steps as Argo WorkflowTemplates, for `kubectl apply` and `templateRef`."""

import argparse
import sys

from everstep.version import IMAGE

HEAD = """\
# Every step, for workflows that call it: templateRef: {name: everstep-train, template: train}
# Made by `everstep templates`, which knows of another image, service account and Secret.
"""
EXAMPLE = "example: everstep templates --image registry.example/everstep:0.1.0 | kubectl apply -n ml -f -"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = EXAMPLE
    parser.add_argument("--image", default=IMAGE, help=f"image of the steps, as the cluster pulls it ({IMAGE})")
    parser.add_argument("--service-account", default="everstep", metavar="NAME",
                        help="account of the pods (everstep); with more rights: NAME-train, NAME-spark")  # fmt: skip
    parser.add_argument("--store-secret", default="everstep-store", metavar="NAME",
                        help="Secret with the store's AWS_* variables (everstep-store); empty: the pods have them "
                        "by other means")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print the templates; returns the exit code."""
    import yaml

    from everstep.runtime.submission.manifest import ClusterOptions, fit_templates
    from everstep.steps.reuse import workflow_templates

    options = ClusterOptions(arguments.image, arguments.service_account, store_secret=arguments.store_secret)
    templates = workflow_templates()
    for one in templates:
        fit_templates(one["spec"], options, IMAGE)
    sys.stdout.write(HEAD)
    yaml.safe_dump_all(templates, sys.stdout, sort_keys=False, width=120)
    return 0
