"""`everstep templates`: the steps as WorkflowTemplates, for `kubectl apply`."""

import argparse
import sys

from everstep.version import IMAGE

HEAD = """\
# Every step, for workflows that name it: templateRef: {name: everstep-train, template: train}
# Made by `everstep templates`, which knows of another image, service account and Secret.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--image", default=IMAGE, help=f"image of the steps, as the cluster pulls it (default: {IMAGE})"
    )
    parser.add_argument("--service-account", default="everstep", help="of the pods (default: everstep)")
    parser.add_argument(
        "--store-secret", default="everstep-store", help="Secret with the store's variables (default: everstep-store)"
    )
    parser.epilog = "example: everstep templates --image registry.example/everstep:0.1.0 | kubectl apply -n ml -f -"


def run(arguments: argparse.Namespace) -> int:
    """Print them; returns the exit code."""
    import yaml

    from runtime.submission.manifest import ClusterOptions, fit
    from steps.library import manifests

    options = ClusterOptions(arguments.image, store_secret=arguments.store_secret)
    made = manifests()
    for one in made:
        fit(one["spec"], options, IMAGE)
        for template in one["spec"]["templates"]:
            template["serviceAccountName"] = arguments.service_account
    sys.stdout.write(HEAD)
    yaml.safe_dump_all(made, sys.stdout, sort_keys=False, width=120)
    return 0
