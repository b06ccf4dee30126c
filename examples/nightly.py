"""Turn a pipeline's manifest into a CronWorkflow: train every night.

python pipelines/llama_finetune.py -o yaml | python examples/nightly.py "0 2 * * *" > nightly.yaml
kubectl apply -n ml -f nightly.yaml
"""

import argparse
import sys

import yaml


def main() -> None:
    """Read a Workflow from stdin, print the CronWorkflow."""
    parser = argparse.ArgumentParser(description="A CronWorkflow of the Workflow on stdin.")
    parser.add_argument("schedule", help='as in cron, such as "0 2 * * *"')
    parser.add_argument("--name", default="nightly")
    parser.add_argument("--timezone", default="Etc/UTC")
    options = parser.parse_args()
    workflow = yaml.safe_load(sys.stdin)
    about = {key: workflow["metadata"][key] for key in ("annotations", "labels") if key in workflow["metadata"]}
    cron = {
        "apiVersion": workflow["apiVersion"],
        "kind": "CronWorkflow",
        "metadata": {"name": options.name},
        "spec": {
            "schedules": [options.schedule],
            "timezone": options.timezone,
            "concurrencyPolicy": "Forbid",  # The next night is left out while one still trains.
            "workflowMetadata": about,
            "workflowSpec": workflow["spec"],
        },
    }
    yaml.safe_dump(cron, sys.stdout, sort_keys=False, width=120)


if __name__ == "__main__":
    main()
