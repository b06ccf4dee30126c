"""What pods get of who runs them, what others see of their Secrets, and what their words do to a terminal."""

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.console import Console

from everstep.cli.main import main
from everstep.errors import BadInput
from everstep.pipeline import Submission
from everstep.runtime.display.terminal import as_text
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import PodEnded, PodStarted, RunCreated
from everstep.runtime.workflow.local_pods import inherited_variables
from everstep.runtime.workflow.local_pods.isolation_page import render
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.parse import parse
from everstep.runtime.workflow.run.run_folder import read_inputs
from everstep.runtime.workflow.run.view import _PlainView, table
from everstep.shell_settings import checked_variables
from everstep.steps.reuse import STEPS
from tests.harness import ROOT
from tests.workflow.running import log, manifest_text, ran, sh

TOKENS = {
    "ARGO_TOKEN": "Bearer t", "AWS_SECRET_ACCESS_KEY": "t", "AWS_SESSION_TOKEN": "t", "GITHUB_TOKEN": "t",
    "HF_TOKEN": "t", "NVIDIA_API_KEY": "t", "KUBECONFIG": "/k", "SSH_AUTH_SOCK": "/s", "PIP_INDEX_URL": "t",
    "GOOGLE_APPLICATION_CREDENTIALS": "/g", "WANDB_API_KEY": "t", "EVERSTEP_JOB_TOKEN": "t", "EVERSTEP_POD": "p",
    "ARGO_TEMPLATE": "{}", "SPARK_AUTHENTICATE_SECRET": "t",
}  # fmt: skip
NEEDED = {
    "PATH": "/bin", "HOME": "/h", "LC_ALL": "C.UTF-8", "TMPDIR": "/t", "PYTHONPATH": "/p", "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "0", "HF_HOME": "/hf", "EVERSTEP_CACHE": "/c", "EVERSTEP_FAULT": "x",
    "JAVA_HOME": "/j",
    "no_proxy": "localhost", "NCCL_SOCKET_IFNAME": "lo", "SPARK_LOCAL_IP": "127.0.0.1",
}  # fmt: skip
STORE = {"MINIO_ENDPOINT": "http://m", "AWS_ACCESS_KEY_ID": "a", "AWS_REGION": "r", "AWS_CA_BUNDLE": "/b"}
RUN = ["-m", "everstep", "workflow"]


def test_pods_get_what_they_need_and_no_token() -> None:
    everything = {**TOKENS, **NEEDED, **STORE}
    assert inherited_variables.inherited_variables(everything) == NEEDED
    assert inherited_variables.inherited_variables(everything, ["WANDB_API_KEY", "AWS_A*"]) == {
        **NEEDED, "WANDB_API_KEY": "t", "AWS_ACCESS_KEY_ID": "a",
    }  # fmt: skip
    of_store = {**STORE, "AWS_SECRET_ACCESS_KEY": "t", "AWS_SESSION_TOKEN": "t"}
    assert inherited_variables.inherited_variables(
        everything, (), ["python", "-m", "everstep.steps.train", "--store=s3://b"]
    ) == {
        **NEEDED,
        **of_store,
    }


@pytest.mark.parametrize("step", STEPS)
def test_every_step_of_ours_gets_the_store(step: Any) -> None:
    template = step()
    assert inherited_variables.is_own_step([*template.command, *template.args])


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "python -m everstep.steps.train"],
        ["python", "-m", "stepsxtrain"],
        ["python", "-m", "everstep.steps.train.evil"],
        ["/tmp/python", "-m", "everstep.steps.train"],
        ["python"],
    ],
)
def test_nobody_else_gets_the_store(command: list[str]) -> None:
    assert not inherited_variables.is_own_step(command)


def test_the_list_is_the_documentation() -> None:
    page_text = (ROOT / "docs/pod-isolation.md").read_text()
    assert page_text == render(), (
        "run: python -m everstep.runtime.workflow.local_pods.isolation_page > docs/pod-isolation.md"
    )


def test_containers_of_every_kind_get_only_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TOKENS, "EVERSTEP_CACHE": "/c"}.items():
        monkeypatch.setenv(name, value)
    # Other tests' libraries, or people, may have set them.
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TOKENIZERS_PARALLELISM", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    own = [{"name": "OWN", "value": "yes"}, {"name": "GITHUB_TOKEN", "value": "the template's"}]
    text = "env | sort | grep -E 'TOKEN|SECRET|KEY|CREDENTIALS|CACHE|OWN'; true"
    templates: list[dict[str, Any]] = [
        {"name": "main", "steps": [[{"name": name, "template": name} for name in ("one", "several", "script")]]},
        {"name": "one", "container": sh(text, env=own)},
        {"name": "several", "container": sh(text), "initContainers": [sh(text, name="before")]},
        {"name": "script", "script": {"image": "i", "command": ["sh"], "source": text}},
    ]
    assert ran(tmp_path, monkeypatch, Library(), templates)["phase"] == "Succeeded"
    assert log(tmp_path, "[0].one") == "EVERSTEP_CACHE=/c\nGITHUB_TOKEN=the template's\nOWN=yes\n"
    assert log(tmp_path, "[0].several") == "EVERSTEP_CACHE=/c\n" * 2
    assert log(tmp_path, "[0].script") == "EVERSTEP_CACHE=/c\n"


def test_a_template_with_the_label_of_a_step_gets_the_store_in_its_main_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    step = {"metadata": {"labels": {"everstep/step": "score"}}, "container": sh("echo main $AWS_SECRET_ACCESS_KEY")}
    before = {"initContainers": [sh("echo before $AWS_SECRET_ACCESS_KEY", name="before")]}
    names = ("step", "several", "theirs")
    templates: list[dict[str, Any]] = [
        {"name": "main", "steps": [[{"name": name, "template": name} for name in names]]},
        {"name": "step", **step},
        {"name": "several", **step, **before},
        {"name": "theirs", "container": step["container"]},
    ]
    assert ran(tmp_path, monkeypatch, Library(), templates)["phase"] == "Succeeded"
    said = [log(tmp_path, f"[0].{name}") for name in names]
    assert said == ["main key\n", "before\nmain key\n", "main\n"]


SEES = manifest_text("""
  - name: main
    container: {image: i, command: [sh, -c, "echo $MINE$AGAIN$OTHER; test -e go"]}
""")


def test_env_adds_a_variable_also_when_the_run_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(SEES)
    for name, value in (("MINE", "mine-"), ("AGAIN", "again-"), ("OTHER", "other")):
        monkeypatch.setenv(name, value)
    assert main(["workflow", "run", "w.yaml", "--work-dir", ".", "--env", "MINE", "--env", "AGA*"]) == 1
    assert Path("runs/w/logs/w.log").read_text() == "mine-again-\n"
    assert read_inputs(Path("runs/w"))[2] == ("MINE", "AGA*")
    assert "again-" not in Path("runs/w/beside.json").read_text()
    monkeypatch.delenv("AGAIN")
    Path("go").touch()
    capsys.readouterr()
    assert main(["workflow", "retry", "w"]) == 0
    assert "w: its pods had the variable AGA*, which is not set here" in capsys.readouterr().err
    assert Path("runs/w/logs/w.log").read_text() == "mine-again-\nmine-\n"


def test_env_that_is_not_set_is_one_line_and_nothing_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(SEES)
    monkeypatch.setenv("MINE", "x")
    for name, expected_text in (("NOWHERE", "--env NOWHERE: no such variable is set here\n"),
                       ("MINE=secret", "--env MINE: no such variable is set here; it is passed on, not set here: write "
                                       "only its NAME\n")):  # fmt: skip
        assert main(["workflow", "run", "w.yaml", "--env", name]) == 2
        assert capsys.readouterr().err == f"everstep workflow run: {expected_text}"
    monkeypatch.setenv("EVERSTEP_UNPACKED_BYTES", "much")
    assert main(["workflow", "run", "w.yaml"]) == 2
    assert capsys.readouterr().err.endswith("run: EVERSTEP_UNPACKED_BYTES=much: give a whole number of bytes\n")
    assert not Path("runs/w/manifest.json").exists()


def test_env_is_a_flag_of_every_pipeline_and_refused_where_it_would_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "x")
    submission = Submission(env=("MINE",), store="s3://b/p")
    submission.check("local", "")
    assert checked_variables(submission.env) == ("MINE",)
    with pytest.raises(BadInput, match="--env: only for local runs"):
        submission.check("argo", "ARGO_SERVER")


@pytest.mark.parametrize("several", [False, True])
def test_a_secret_as_a_volume_is_for_nobody_else_to_read_and_goes_with_its_pod(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "hush", "sub": "hush"}}
    items = [{"key": "sub", "path": "below/it"}]
    volumes = [
        {"name": "a", "secret": {"secretName": "s"}},
        {"name": "b", "projected": {"sources": [{"secret": {"name": "s", "items": items}}]}},
        {"name": "c", "secret": {"secretName": "s", "defaultMode": 0o444}},
    ]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in "abc"]
    looks = "stat -c %a /a /b /c; cd /; stat -L -c %a a/password b/below/it c/sub; cat a/password b/below/it c/sub"
    container = sh(
        looks, volumeMounts=mounts, env=[{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "sub"}}}]
    )
    main: dict[str, Any] = {"name": "main", "container": container}
    if several:
        main["sidecars"] = [{"name": "beside", **sh("exec sleep 600", volumeMounts=mounts)}]
    umask = os.umask(0)
    try:
        status = ran(tmp_path, monkeypatch, Library.from_objects([secret]), [main], volumes=volumes)
    finally:
        os.umask(umask)
    assert status["phase"] == "Succeeded", status
    assert log(tmp_path, "w").split() == ["700"] * 3 + ["400", "400", "444", "hush" * 3]
    secret_files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert sorted(path.name for path in secret_files) == ["beside.json", "w.log"]
    assert stat.S_IMODE((tmp_path / "runs/w/beside.json").stat().st_mode) == 0o600


def test_a_secret_of_a_launcher_that_was_killed_goes_when_the_run_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_folder = tmp_path / "runs/w/pods/nobody-saw-its-end/secrets/a"
    secret_folder.mkdir(parents=True)
    (secret_folder / "password").write_text("hush")
    status = ran(tmp_path, monkeypatch, Library(), [{"name": "main", "container": sh("true")}])
    assert status["phase"] == "Succeeded"
    assert not secret_folder.parent.exists()


ACTS = "\x1b]0;PWNED\x07\x1b[2Jhello\x1b]52;c;ZXZpbA==\x07 [bold]x[/] \\[/y] \u202eabc \x9b2J"
SHOWN = r"\x1b]0;PWNED\x07\x1b[2Jhello\x1b]52;c;ZXZpbA==\x07 [bold]x[/] \[/y] \u202eabc \x9b2J"


@given(some.text())
def test_nothing_that_acts_is_left_of_a_text(text: str) -> None:
    text_shown = as_text(text)
    assert len(text_shown.splitlines()) <= 1
    assert text_shown.isprintable() or all(
        character.isprintable() or character == "\t" or ord(character) >= 0xA0 for character in text_shown
    )
    text_shown.encode()
    if text.isascii() and text.isprintable():
        assert text_shown == text


def failed_run(folder: Path) -> Engine:
    """A run whose one pod has failed with these words, of which its name and its message have some, too."""
    step = {"name": "a", "template": "a", "withItems": ["\x1b[2J[/]"]}
    pod = {"name": "a", "container": {"image": "i", "command": ["true"]}}
    spec = {"entrypoint": "main", "templates": [{"name": "main", "steps": [[step]]}, pod]}
    source = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w"}, "spec": spec}
    engine = Engine(parse(source), RunCreated(0.0, "w", "00000000-0000-0000-0000-000000000000"))
    (node,) = engine.pending_pods()
    engine.handle(PodStarted(1.0, node.name, 7, 7))
    engine.handle(PodEnded(2.0, node.name, 1))
    (folder / "logs").mkdir()
    (folder / "logs" / f"{node.name.removeprefix('w')[:200]}.log".replace("/", "_")).write_text(f"{ACTS}\n")
    return engine


def test_what_pods_say_is_text_in_the_live_view_and_in_plain_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = failed_run(tmp_path)
    out = io.StringIO()
    console = Console(file=out, width=400, force_terminal=True, color_system=None)
    console.print(table(engine, tmp_path, 10, 400))
    assert SHOWN in out.getvalue()
    assert r"a(0:\u001b[2J[/])" in out.getvalue()
    _PlainView().show(engine, tmp_path)
    plain = capsys.readouterr().err
    assert plain.count(SHOWN) == 2
    for text in (out.getvalue(), plain):
        assert not {"\x07", "\u202e", "\x9b", "\x1b"} & set(text.replace("\x1b[0m", ""))


def test_what_pods_say_is_text_in_what_the_command_prints(tmp_path: Path) -> None:
    code = f"import sys; sys.stdout.buffer.write({ACTS.encode()!r}); sys.exit(1)"
    container = {"image": "i", "command": ["python3", "-c", code]}
    spec = {"entrypoint": "main", "templates": [{"name": "main", "container": container}]}
    source = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w"}, "spec": spec}
    (tmp_path / "w.yaml").write_text(json.dumps(source))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = b""
    for words in (["run", "w.yaml"], ["logs", "w"], ["get", "w"]):
        completed = subprocess.run(
            [sys.executable, *RUN, *words], cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        printed += completed.stdout + completed.stderr
    assert printed.decode().count(SHOWN) == 3
    assert not {b"\x1b", b"\x07"} & {bytes([byte]) for byte in printed}
