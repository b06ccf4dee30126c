"""A wheel brings one package: a user's project may have packages named like the repository's folders."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OWN = ("runtime", "steps", "pipelines", "tests")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel unpacks to."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    names = ("everstep", "runtime", "steps", "pipelines", "pyproject.toml", "README.md", "LICENSE")
    tracked = subprocess.run(["git", "ls-files", "-z", *names], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, source],
        capture_output=True, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's, with packages of its own under our folders' names."""
    for name in OWN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f'WHOSE = "the user\'s {name}"\n')
    return tmp_path


def run(project: Path, site: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site), "TMPDIR": str(project)}
    completed = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_nothing_but_everstep_is_installed(site: Path) -> None:
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"everstep"}
    assert (site / "everstep/py.typed").exists()
    assert (site / "everstep/runtime/report/page.html").exists()


def test_a_users_pipeline_finds_its_own_packages_and_ours(site: Path, project: Path) -> None:
    text = (ROOT / "pipelines/llama_finetune.py").read_text()
    text = text.replace("import everstep\n", f"import everstep\nimport {', '.join(OWN)}\n", 1)
    prints = "; ".join(f"print({name}.WHOSE)" for name in OWN)
    (project / "mine.py").write_text(
        text.replace("everstep.submit(build, Config)", f"{prints}; print(everstep.__file__)")
    )
    *whose, ours = run(project, site, sys.executable, "mine.py").splitlines()
    assert whose == [f"the user's {name}" for name in OWN]
    assert Path(ours) == site / "everstep/__init__.py"
    (project / "mine.py").write_text(text)
    manifest = yaml.safe_load(run(project, site, sys.executable, "mine.py", "-o", "yaml"))
    commands = [
        template["container"]["command"] for template in manifest["spec"]["templates"] if "container" in template
    ]
    assert commands
    assert all(command[:2] == ["python", "-m"] and command[2].startswith("everstep.steps.") for command in commands)


def test_steps_and_workers_start_in_a_users_project(site: Path, project: Path) -> None:
    assert "--nodes" in run(project, site, sys.executable, "-m", "everstep.steps.check", "--help")
    (project / "train.py").write_text(
        f"import {', '.join(OWN)}\nprint(*(one.WHOSE for one in ({', '.join(OWN)})), sep=', ')\n"
    )
    out = run(project, site, sys.executable, "-m", "everstep.cli.main", "launch", "--standalone", "train.py")
    assert ", ".join(f"the user's {name}" for name in OWN) in out
