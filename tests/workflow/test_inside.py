"""Names that become paths: none leaves its folder, to be read or written, by a manifest, a parameter or a link."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from everstep.runtime.workflow.artifacts.artifacts import ArtifactError, load, save
from everstep.runtime.workflow.artifacts.inside import LONGEST, BadPathError, resolve_inside
from everstep.runtime.workflow.manifest.library import Library
from tests.workflow.running import log, ran, sh

PARTS = some.sampled_from(["a", "b", "d", "link", "up", "self", "..", ".", "", "~", "é", "日本", " ", "\0", "\ud800",
                           "-", "x" * 255, "x" * 256, "..a", "…", "a\nb"])  # fmt: skip
NAMES = some.one_of(
    some.lists(PARTS, max_size=8).map("/".join),
    some.text(max_size=30),
    some.tuples(PARTS, some.sampled_from([9, 400, 2500])).map(lambda parts: "/".join([parts[0]] * parts[1])),
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder beside others, with links out of it, into it and in a circle."""
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        kept_folder = top / "kept"
        (kept_folder / "d").mkdir(parents=True)
        (top / "other").mkdir()
        for name, target in (("up", ".."), ("link", str(top / "other")), ("self", "self"), ("d/a", "../../other/new"),
                             ("d/b", "../d")):  # fmt: skip
            (kept_folder / name).symlink_to(target)
        yield kept_folder


def is_refused(folder: Path, name: str) -> bool:
    """A slow, obvious model: walk the parts, follow each link, and never stand outside."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or not parts or ".." in parts or "\0" in name:
        return True
    if any(len(part.encode()) > 255 for part in parts):
        return True
    at = root = Path(os.path.realpath(folder))
    if len(bytes(root / "/".join(parts))) > LONGEST:
        return True
    for part in parts:
        at = Path(os.path.realpath(at / part))
    return not at.is_relative_to(root) or at == root


@given(NAMES)
def test_no_name_leads_out_of_its_folder(folder: Path, name: str) -> None:
    if is_refused(folder, name):
        with pytest.raises(BadPathError, match=r"\A.+\Z"):
            resolve_inside(folder, name)
        return
    target = resolve_inside(folder, name)
    assert str(target).startswith(f"{os.path.realpath(folder)}/")
    assert (
        not target.is_symlink() or target == target.parent / target.readlink()
    )  # Only one that leads nowhere is left.


def world(top: Path) -> dict[str, str]:
    """What lies there, by path, but what the artifacts are kept in."""
    return {
        str(path.relative_to(top)): os.readlink(path)
        if path.is_symlink()
        else ""
        if path.is_dir()
        else path.read_text()
        for path in sorted(top.rglob("*"))
        if "artifacts" not in path.relative_to(top).parts[1:]
    }


def one_line(act: Callable[[], None]) -> str:
    """What was refused, in one line; empty where nothing was."""
    try:
        act()
    except ArtifactError as error:
        problem = str(error)
    else:
        return ""
    assert len(problem.splitlines()) == 1
    return problem


@settings(max_examples=60)
@given(NAMES, some.booleans())
def test_an_artifact_changes_nothing_outside_of_the_repository(name: str, whole_folder: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        runs, victim = top / "runs", top / "victim"
        victim.mkdir()
        (victim / "keep").write_text("kept")
        (runs / "artifacts" / "a").mkdir(parents=True)
        for link, target in (("link", victim), ("up", ".."), ("self", "self")):
            (runs / "artifacts" / link).symlink_to(target)
        source_folder = top / "made"
        if whole_folder:
            (source_folder / "a").mkdir(parents=True)
            (source_folder / "a" / "f").write_text("mine")
        else:
            source_folder.write_text("mine")
        before = world(top)
        entry: dict[str, Any] = {"name": "o", "path": "/tmp/o", "archive": {"none": {}}, "s3": {"key": name}}
        save_problem = one_line(lambda: save(source_folder, entry, runs / "artifacts", name, below_volume=False))
        assert world(top) == before
        into = top / "artifacts-in" / "artifacts"
        if not one_line(lambda: load(entry, runs / "artifacts", into, Library())) and not save_problem:
            assert (into / "a" / "f" if whole_folder else into).read_text() == "mine"
        assert "kept" not in {path.read_text() for path in into.rglob("*") if path.is_file()}


BAD = 'wait: Error (exit code 64): failed to put file: Resource name contains bad components such as ".." or ".".; '
KEYS = {
    "climbs": "../../../victim/PWNED",
    "climbs and names a folder": "../../../victim",
    "climbs in the middle": "a/../../victim",
    "has a dot": "./victim/PWNED",
    "comes from a parameter": "docs/{{workflow.parameters.doc}}",
}


@pytest.mark.parametrize("what", KEYS)
def test_a_key_that_leads_out_ends_the_step_in_the_words_of_the_store(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "a" / "b" / "c"
    work.mkdir(parents=True)
    victim = tmp_path / "a" / "b" / "victim"
    victim.mkdir()
    (victim / "keep").touch()
    output = {"name": "o", "path": "/tmp/out", "archive": {"none": {}}, "s3": {"key": KEYS[what]}}
    main = {"name": "main", "container": sh("echo pwned > /tmp/out"), "outputs": {"artifacts": [output]}}
    arguments = {"parameters": [{"name": "doc", "value": "../../../../victim"}]}
    bye = {"name": "bye", "container": sh("echo bye")}
    status = ran(work, monkeypatch, Library(), [main, bye], arguments=arguments, onExit="bye")
    assert (status["phase"], status["message"]) == ("Error", BAD)
    assert log(work, "onExit") == "bye\n"
    assert [path.name for path in victim.rglob("*")] == ["keep"]
    assert sorted(path.name for path in work.iterdir()) == ["runs"]


def test_a_key_that_is_absolute_is_one_below_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = {"archive": {"none": {}}, "s3": {"key": f"{tmp_path}/victim"}}
    templates = [
        {"name": "main", "steps": [[{"name": "make", "template": "make"}], [{"name": "use", "template": "use"}]]},
        {"name": "make", "container": sh("echo mine > /tmp/f"),
         "outputs": {"artifacts": [{"name": "f", "path": "/tmp/f", **at}]}},
        {"name": "use", "container": sh("cat /tmp/f"),
         "inputs": {"artifacts": [{"name": "f", "path": "/tmp/f", **at}]}},
    ]  # fmt: skip
    assert ran(tmp_path, monkeypatch, Library(), templates)["phase"] == "Succeeded"
    assert log(tmp_path, "[1].use") == "mine\n"
    assert not (tmp_path / "victim").exists()
    assert (tmp_path / f"runs/artifacts{tmp_path}/victim").read_text() == "mine\n"


def test_no_folder_of_artifacts_goes_for_a_file_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "kept" / "other").mkdir(parents=True)
    (tmp_path / "kept" / "other" / "f").touch()
    (tmp_path / "f").touch()
    entry = {"name": "o", "path": "/tmp/f", "archive": {"none": {}}}
    with pytest.raises(ArtifactError, match="failed to put file: Object name already exists as a directory"):
        save(tmp_path / "f", entry, tmp_path / "kept", "other", below_volume=False)
    assert (tmp_path / "kept" / "other" / "f").exists()


CONFIG = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"good": "1", "../../../../bad": "2"}}
CLIMBS = {
    "claim": ({"persistentVolumeClaim": {"claimName": "../../../claimup"}}, {}),
    "claim from a parameter": ({"persistentVolumeClaim": {"claimName": "{{workflow.parameters.x}}"}}, {}),
    "subPath": ({"emptyDir": {}}, {"subPath": "../../../../../../subpathup"}),
    "absolute subPath": ({"emptyDir": {}}, {"subPath": "/etc"}),
    "subPathExpr": ({"emptyDir": {}}, {"subPathExpr": "$(X)"}),
    "subPath of the machine's folder": ({"hostPath": {"path": "HERE"}}, {"subPath": "link"}),
    "item": ({"configMap": {"name": "c", "items": [{"key": "good", "path": "../../../../bad"}]}}, {}),
    "item beside the data": ({"configMap": {"name": "c", "items": [{"key": "good", "path": "..data/x"}]}}, {}),
    "key of a ConfigMap": ({"configMap": {"name": "c"}}, {}),
    "item of the pod's own facts": (
        {"downwardAPI": {"items": [{"path": "../../bad", "fieldRef": {"fieldPath": "metadata.name"}}]}}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CLIMBS)
def test_a_volume_stays_in_its_folder(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume, mount = CLIMBS[what]
    work = tmp_path / "a" / "b" / "c" / "d"
    (work / "mine").mkdir(parents=True)
    (work / "mine" / "link").symlink_to(tmp_path)
    if "hostPath" in volume:
        volume = {"hostPath": {"path": str(work / "mine")}}
    env = [{"name": "X", "value": "../../../up"}]
    main = {
        "name": "main",
        "container": sh("touch /v/x", env=env, volumeMounts=[{"name": "v", "mountPath": "/v", **mount}]),
    }
    bye = {"name": "bye", "container": sh("echo bye")}
    before = set(tmp_path.rglob("*"))
    status = ran(work, monkeypatch, Library.from_objects([CONFIG]), [main, bye], volumes=[{"name": "v", **volume}],
                 onExit="bye", arguments={"parameters": [{"name": "x", "value": "../../../claimup"}]})  # fmt: skip
    assert status["phase"] == "Failed", status
    assert "out of its folder" in status["message"] or "does not begin with .." in status["message"]
    assert log(work, "onExit") == "bye\n"
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(work / "runs")} == before


def test_claims_of_the_workflow_s_own_are_removed_from_no_other_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "a" / "b").mkdir(parents=True)
    victim.mkdir()
    (tmp_path / "a/b/runs/w/claims/w-x").mkdir(parents=True)  # With it, the path of the name would be one.
    claim_spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template = {"metadata": {"name": "x/../../../../../../victim"}, "spec": claim_spec}
    main = {"name": "main", "container": sh("true")}
    ran(tmp_path / "a" / "b", monkeypatch, Library(), [main], volumeClaimTemplates=[template])
    assert victim.exists()


def test_an_input_artifact_in_a_volume_stays_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "link").symlink_to(tmp_path)
    artifact = {"name": "a", "path": "/v/link/planted", "raw": {"data": "x"}}
    main = {"name": "main", "inputs": {"artifacts": [artifact]},
            "container": sh("true", volumeMounts=[{"name": "v", "mountPath": "/v"}])}  # fmt: skip
    volumes = [{"name": "v", "hostPath": {"path": str(tmp_path / "mine")}}]
    status = ran(tmp_path, monkeypatch, Library(), [main], volumes=volumes)
    assert status["phase"] == "Failed", status
    assert not (tmp_path / "planted").exists()


def test_outputs_are_what_the_pod_itself_could_see_and_no_pipe_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Path("/tmp", f"everstep-outside-{os.getpid()}")
    secret.write_text("outside")
    try:
        text = f"mkfifo /tmp/pipe /v/pipe; ln -s '/t'mp/{secret.name} /v/link; ln -s /tmp/pipe /tmp/there"
        outputs = [{"name": name.strip("/").replace("/", "-"), "valueFrom": {"path": name, "default": "none"}}
                   for name in ("/tmp/pipe", "/v/pipe", "/v/link", "/tmp/there")]  # fmt: skip
        artifact = {"name": "a", "path": "/tmp/pipe"}
        main = {"name": "main", "outputs": {"parameters": outputs, "artifacts": [artifact]},
                "volumes": [{"name": "v", "emptyDir": {}}],
                "container": sh(text, volumeMounts=[{"name": "v", "mountPath": "/v"}])}  # fmt: skip
        status = ran(tmp_path, monkeypatch, Library(), [main])
    finally:
        secret.unlink()
    values = {parameter["value"] for parameter in status["nodes"]["w"]["outputs"]["parameters"]}
    assert values == {"none"}
    assert status["message"] == "wait: Error (exit code 64): /tmp/pipe is not a regular file or directory; "
