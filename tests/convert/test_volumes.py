"""A Volcano Job's own volumes: claims that are there, and claims that the job makes.

After its API (batch/v1alpha1, VolumeSpec): all pods mount each volume at `mountPath`; either `volumeClaimName` names a
claim that is there, or `volumeClaim` is the spec of one that is made for the job, with a name of its own.
"""

import json
from typing import Any

import pytest
import yaml

from everstep.cli.main import main
from everstep.convert import ConvertError, convert
from everstep.convert.workflow import pipeline_of, workflow_of
from tests.convert.test_from_the_field import volcano

TASKS = (("main", "[python, a.py]"), ("worker", "[python, b.py]"))
SPEC = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
MADE = {"metadata": {"name": "claim-1"}, "spec": SPEC}
BOTH = [{"mountPath": "/data", "volumeClaimName": "imagenet"}, {"mountPath": "/out", "volumeClaim": SPEC}]


def job(volumes: list[dict[str, Any]], text: str = "") -> str:
    text = text or volcano("", *TASKS)
    return text.replace("  tasks:\n", f"  volumes: {json.dumps(volumes)}\n  tasks:\n")


def pods(text: str) -> list[dict[str, Any]]:
    roles = convert(text, "f").arguments["job_spec"]["replicaSpecs"].values()
    return [role["template"]["spec"] for role in roles]


def test_every_tasks_pods_mount_a_claim_that_is_there_and_one_that_the_workflow_makes() -> None:
    each = pods(job(BOTH))
    assert len(each) == 2
    for spec in each:
        assert spec["volumes"] == [
            {"name": "claim-0", "persistentVolumeClaim": {"claimName": "imagenet"}},
            {"name": "claim-1", "persistentVolumeClaim": {"claimName": "{{workflow.name}}-claim-1"}},
        ]
        assert spec["containers"][0]["volumeMounts"] == [
            {"name": "claim-0", "mountPath": "/data"}, {"name": "claim-1", "mountPath": "/out"},
        ]  # fmt: skip
    workflow = workflow_of(convert(job(BOTH), "f"), "store")
    assert workflow["spec"]["volumeClaimTemplates"] == [MADE]
    assert "volumeClaimTemplates" not in workflow_of(convert(job(BOTH[:1]), "f"), "store")["spec"]


def test_what_becomes_of_a_claim_of_the_workflow_is_told_and_nothing_else_of_the_volumes() -> None:
    notes = [note for note in convert(job(BOTH), "f").notes if "volume" in note or "{{" in note]
    (note,) = notes
    assert note == (
        "f:6: spec.volumes[1].volumeClaim: Argo deletes the claim of a workflow that has succeeded; nearest: a claim "
        "of your own as volumeClaimName, for what must stay"
    )


def test_a_pods_own_volumes_stay_and_one_claim_at_two_places_is_one_volume() -> None:
    text = volcano("", *TASKS).replace("{image: i,", "{image: i, volumeMounts: [{name: tmp, mountPath: /tmp}],")
    text = text.replace("{spec: {", "{spec: {volumes: [{name: tmp, emptyDir: {}}], ")
    twice = [{"mountPath": place, "volumeClaimName": "nfs"} for place in ("/a", "/b")]
    spec, _ = pods(job(twice, text))
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp", "claim-0"]
    assert [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]] == ["/tmp", "/a", "/b"]


def test_a_claim_whatever_it_is_called_is_a_volume_by_a_valid_name_that_no_pod_has() -> None:
    own = "volumes: [{name: claim-0, emptyDir: {}}, {name: nfs, emptyDir: {}}]"
    text = volcano("", *TASKS).replace("{spec: {", f"{{spec: {{{own}, ", 1)
    named = [{"mountPath": "/a", "volumeClaimName": "nfs"}, {"mountPath": "/b", "volumeClaimName": "team.data"}]
    for spec in pods(job(named, text)):
        claims = {volume["name"]: volume.get("persistentVolumeClaim") for volume in spec["volumes"]}
        assert len(claims) == len(spec["volumes"])
        assert claims["claim-0-job"] == {"claimName": "nfs"}
        assert claims["claim-1"] == {"claimName": "team.data"}
        assert [mount["name"] for mount in spec["containers"][0]["volumeMounts"]] == ["claim-0-job", "claim-1"]


def test_a_script_on_a_jobs_volume_is_started_by_the_nodes() -> None:
    text = volcano("", ("main", "[torchrun, /data/a.py]"))
    assert convert(text, "f").arguments["script"] == "/data/a.py"
    assert convert(job(BOTH, text), "f").arguments["script"] == "@command"


def test_the_pipeline_makes_the_same_claims() -> None:
    names: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(pipeline_of(convert(job(BOTH), "f")), "pipeline.py", "exec"), names)
    assert names["build"](names["Config"]()).to_dict()["spec"]["volumeClaimTemplates"] == [MADE]


def test_the_workflow_is_linted_clean(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(job(BOTH))
    assert main(["convert", str(tmp_path / "job.yaml")]) == 0
    (tmp_path / "workflow.yaml").write_text(written := capsys.readouterr().out)
    assert yaml.safe_load(written)["spec"]["volumeClaimTemplates"] == [MADE]
    assert main(["workflow", "lint", str(tmp_path / "workflow.yaml")]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ({"volumeClaimName": "a"}, r"spec\.volumes\[0\]\.mountPath: missing"),
        ({"mountPath": "/a"}, r"spec\.volumes\[0\]: neither volumeClaimName nor volumeClaim"),
        ({"mountPath": "/a", "volumeClaimName": "a", "volumeClaim": SPEC}, r"spec\.volumes\[0\]: both"),
        ({"mountPath": "/a", "volumeClaim": "1Gi"}, r"spec\.volumes\[0\]\.volumeClaim: '1Gi' is not a mapping"),
    ],
)  # fmt: skip
def test_what_volcano_refuses_is_refused_with_its_line(volume: dict[str, Any], said: str) -> None:
    with pytest.raises(ConvertError, match=rf"f:6: {said}"):
        convert(job([volume]), "f")


def test_a_volume_elsewhere_twice_is_refused() -> None:
    twice = [{"mountPath": "/a", "volumeClaimName": name} for name in "ab"]
    with pytest.raises(ConvertError, match=r"f:6: spec\.volumes\[1\]\.mountPath: /a is taken"):
        convert(job(twice), "f")
