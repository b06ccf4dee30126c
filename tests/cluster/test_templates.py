"""What lies in templates/ is taken by a real API server."""

from tests.cluster.lifecycle import Cluster
from tests.harness import ROOT


def test_the_steps_are_taken_as_workflow_templates(cluster: Cluster) -> None:
    text = (ROOT / "templates/chart/files/steps.yaml").read_text()
    cluster.kubectl.apply(text)
    names = {template["metadata"]["name"] for template in cluster.kubectl.list("workflowtemplates")}
    assert {"everstep-train", "everstep-preprocess", "everstep-report"} <= names
