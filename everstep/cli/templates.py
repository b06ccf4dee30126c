"""`everstep templates`: the steps as Argo WorkflowTemplates, for `kubectl apply` and `templateRef`."""

import argparse
import sys
from dataclasses import dataclass
from typing import Annotated

from everstep.flags import Flag, add_action
from everstep.options import PullPolicy
from everstep.version import IMAGE

HEAD = """\
# Every step, for workflows that call it: templateRef: {name: everstep-train, template: train}
# Made by `everstep templates`, which has flags for another image, service account and Secret.
"""
EXAMPLE = "example: everstep templates --image registry.example/everstep:0.1.0 | kubectl apply -n ml -f -"


@dataclass(frozen=True)
class Templates:
    """Print the steps as WorkflowTemplates for workflows of your own."""

    image: str = IMAGE
    """Image of the steps, as the cluster pulls it."""
    service_account: Annotated[str, Flag(metavar="NAME")] = "everstep"
    """Account of the pods; with more rights: NAME-train, NAME-spark."""
    store_secret: Annotated[str, Flag(metavar="NAME")] = "everstep-store"
    """Secret with the store's AWS_* variables; empty: the pods get them by other means."""
    image_pull_policy: PullPolicy = ""
    """When nodes pull the image; empty: with the tag latest always, else if they lack it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Templates, run)
    parser.epilog = EXAMPLE


def run(flags: Templates) -> int:
    """Print the templates; returns the exit code."""
    import yaml

    from everstep.runtime.submission.manifest import ClusterOptions, fit_templates
    from everstep.steps.reuse import workflow_templates

    options = ClusterOptions(
        flags.image, flags.service_account, store_secret=flags.store_secret, pull_policy=flags.image_pull_policy
    )
    templates = workflow_templates()
    for template in templates:
        fit_templates(template["spec"], options, IMAGE)
    sys.stdout.write(HEAD)
    yaml.safe_dump_all(templates, sys.stdout, sort_keys=False, width=120)
    return 0
