"""The Helm chart, by Helm's own code: what it makes with its own values, and what each value changes."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.runtime.platform.kubernetes.switches import KEY, NAME
from tests.golang import NoGoError, build_program
from tests.harness import ROOT

CHART = ROOT / "templates/chart"
Objects = dict[tuple[str, str], dict[str, Any]]


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """What Helm's linter and template engine say."""
    try:
        program = build_program("helm")
    except NoGoError as why:
        pytest.skip(str(why))
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def render_chart(**values: Any) -> Objects:
    """What an administrator would install, by kind and name."""
    completed = helm(
        "template", CHART, "team", "ml", *(f"{name}={json.dumps(value)}" for name, value in values.items())
    )
    assert completed.returncode == 0, completed.stderr
    return by_name([document for document in yaml.safe_load_all(completed.stdout) if document])


def by_name(objects: list[dict[str, Any]]) -> Objects:
    """None twice."""
    objects_by_kind = {(object_["kind"], object_["metadata"]["name"]): object_ for object_ in objects}
    assert len(objects_by_kind) == len(objects)
    return objects_by_kind


def test_helm_finds_nothing_to_complain_of() -> None:
    completed = helm("lint", CHART)
    assert (completed.returncode, completed.stdout) == (0, "[INFO] Chart.yaml: icon is recommended\n"), completed


def test_helm_would_complain_of_a_fault(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "everstep")
    (tmp_path / "everstep/templates/broken.yaml").write_text("{{ .Values.nothing.of.that }}\n")
    completed = helm("lint", tmp_path / "everstep")
    assert completed.returncode == 1
    assert "[ERROR] templates/: everstep/templates/broken.yaml:1" in completed.stdout


def test_with_its_own_values_it_makes_the_account_its_rights_and_the_steps() -> None:
    texts = [(CHART / "files" / name).read_text() for name in ("rbac.yaml", "steps.yaml", "network.yaml")]
    files = [document for text in texts for document in yaml.safe_load_all(text)]
    assert render_chart() == by_name(files)


def test_image_registry_and_secrets_go_where_the_pods_are() -> None:
    objects = render_chart(
        registry="r.example/ml", image={"name": "e", "tag": 7}, imagePullSecrets=["pull"],
        storeSecret={"name": "keys", "values": {"AWS_REGION": "x"}},
    )  # fmt: skip
    steps = [object_ for (kind, _), object_ in objects.items() if kind == "WorkflowTemplate"]
    for step in steps:
        (template,) = step["spec"]["templates"]
        assert template["container"]["image"] == "r.example/ml/e:7"
        sources = [variable["valueFrom"] for variable in template["container"]["env"] if "valueFrom" in variable]
        secrets = {source["secretKeyRef"]["name"] for source in sources if "secretKeyRef" in source}
        own = {"everstep-{{workflow.uid}}-{{inputs.parameters.task}}"} if template["name"] == "train" else set()
        assert secrets == {"keys", *own}
    accounts = {name: object_ for (kind, name), object_ in objects.items() if kind == "ServiceAccount"}
    assert accounts.keys() == {"everstep", "everstep-train", "everstep-spark"}
    assert all(account["imagePullSecrets"] == [{"name": "pull"}] for account in accounts.values())
    assert objects["Secret", "keys"]["stringData"] == {"AWS_REGION": "x"}


def test_the_pull_policy_is_that_of_every_step_and_left_to_kubernetes_if_not_given() -> None:
    def policies(**values: Any) -> set[str | None]:
        steps = [object_ for (kind, _), object_ in render_chart(**values).items() if kind == "WorkflowTemplate"]
        return {step["spec"]["templates"][0]["container"].get("imagePullPolicy") for step in steps}

    assert policies() == {None}
    assert policies(registry="r.example", image={"pullPolicy": "Always"}) == {"Always"}


def test_priority_classes_are_made_in_their_order_when_they_are_named() -> None:
    objects = render_chart(priorityClasses={"name": "training", "value": -50})
    values = {name: object_["value"] for (kind, name), object_ in objects.items() if kind == "PriorityClass"}
    assert values == {"training-extra": -50, "training-min": -40, "training-master": -30}


def test_the_right_to_mark_machines_is_given_only_when_it_is_wanted() -> None:
    objects = render_chart(taintHosts=True)
    role = objects["ClusterRole", "everstep-taints-ml"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    binding = objects["ClusterRoleBinding", "everstep-taints-ml"]
    assert binding["roleRef"]["name"] == "everstep-taints-ml"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "everstep-train", "namespace": "ml"}]


def test_the_account_of_drills_is_made_only_when_it_is_wanted() -> None:
    usual, objects = render_chart(), render_chart(chaos=True, imagePullSecrets=["pull"])
    own = {kind: objects[kind, "everstep-chaos"] for kind in ("ServiceAccount", "Role", "RoleBinding")}
    assert objects.keys() - usual.keys() == {(kind, "everstep-chaos") for kind in own}
    assert own["ServiceAccount"]["imagePullSecrets"] == [{"name": "pull"}]
    assert list(own.values())[1:] == list(yaml.safe_load_all((CHART / "files/chaos/rbac.yaml").read_text()))[1:]


def test_the_network_policy_is_made_unless_it_is_not_wanted() -> None:
    assert ("NetworkPolicy", "everstep") in render_chart()
    assert not [name for kind, name in render_chart(networkPolicy=False) if kind == "NetworkPolicy"]


def test_prometheus_reaches_masters_where_the_values_say_who_it_is() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    usual, objects = render_chart(), render_chart(metricsFrom=peers)
    assert objects.keys() - usual.keys() == {("NetworkPolicy", "everstep-metrics")}
    spec = objects["NetworkPolicy", "everstep-metrics"]["spec"]
    assert spec["ingress"] == [{"from": peers}]
    assert spec["podSelector"] == {"matchLabels": {"everstep/step": "train"}}
    assert render_chart(metricsFrom=peers, networkPolicy=False).keys() == render_chart(networkPolicy=False).keys()


def test_the_switches_are_where_the_train_step_reads_them() -> None:
    lines = "s1 p1 10.0.0.1\ns1 p2 10.0.0.2\n"
    assert render_chart(topology_config=lines)["ConfigMap", NAME]["data"] == {KEY: lines}
