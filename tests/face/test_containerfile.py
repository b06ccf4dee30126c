"""What templates/Containerfile says, as far as reading it shows; tests/images makes the images."""

import re
import shlex
import subprocess

import pytest

from everstep.version import IMAGE
from supply.containerfile import ContainerfileError, Settings, ignore_rule, settings, stages
from tests.harness import ROOT

TEXT = (ROOT / "templates/Containerfile").read_text()
IMAGES = ("submit", "preprocess", "train", "everstep")
DEBIAN = "docker.io/library/debian"


def test_every_image_runs_the_command_as_a_user_that_is_not_root() -> None:
    all_stages = stages(TEXT, {"BASE": DEBIAN})
    assert f"--target everstep -t {IMAGE} ." in TEXT
    for image in IMAGES:
        image_settings = settings(all_stages, image)
        assert (image_settings.user, image_settings.entrypoint) == ("1000:1000", ["everstep"]), image
        assert image_settings.environment["PATH"].startswith("/opt/everstep/bin:")


def test_the_code_comes_after_all_packages() -> None:
    all_stages = stages(TEXT, {"BASE": DEBIAN})
    for image in IMAGES:
        *_, last = (step for step in all_stages[image].instructions if step.verb in ("RUN", "COPY"))
        assert (last.verb, last.flag("from")) == ("COPY", "code")
        assert "code" not in {
            instruction.flag("from") for instruction in all_stages[all_stages[image].base].instructions
        }


def test_a_builder_sees_what_is_copied_and_nothing_else() -> None:
    out = ignore_rule((ROOT / ".dockerignore").read_text())
    copied = {
        source
        for stage in stages(TEXT, {"BASE": DEBIAN}).values()
        for instruction in stage.instructions
        if instruction.verb == "COPY" and not instruction.flag("from")
        for source in shlex.split(instruction.rest)[:-1]
    }
    assert {path.name for path in ROOT.iterdir() if not out(path.name)} == copied
    assert not out("runtime/report/page.html")
    for path in (".git/config", "runs/store/x", "steps/__pycache__/a.pyc", "steps/train/__pycache__/a.pyc", ".env"):
        assert out(path), path


@pytest.mark.parametrize(
    ("base", "is_refused"),
    [(f"{DEBIAN}@sha256:{'a' * 64}", False), (f"{DEBIAN}:bookworm-slim", True), (DEBIAN, True), ("", True)],
)
def test_a_base_without_a_digest_is_refused_before_anything_is_made(base: str, is_refused: bool) -> None:
    first = next(
        instruction
        for instruction in stages(TEXT, {"BASE": base or DEBIAN})["base"].instructions
        if instruction.verb == "RUN"
    )
    completed = subprocess.run(
        ["/bin/sh", "-c", first.rest], env={"BASE": base}, capture_output=True, text=True, check=False
    )
    assert completed.returncode == is_refused
    assert completed.stderr == (f"BASE={base} names no digest: NAME@sha256:...\n" if is_refused else "")


def test_the_only_image_that_is_fetched_is_the_base_that_was_named() -> None:
    all_stages = stages(TEXT, {"BASE": DEBIAN})
    assert {stage.base for stage in all_stages.values()} - all_stages.keys() == {DEBIAN}
    with pytest.raises(ContainerfileError, match="give --build-arg BASE="):
        stages(TEXT)


def test_every_install_is_held_to_the_hashes() -> None:
    installs = [
        instruction.rest
        for stage in stages(TEXT, {"BASE": DEBIAN}).values()
        for instruction in stage.instructions
        if re.search(r"pip\b.* install ", instruction.rest) and "apt-get" not in instruction.rest
    ]
    assert len(installs) == 6
    for line in installs:
        own = "--no-deps" in line and line.endswith("--build-constraint /opt/tools/constraints.txt /src")
        both = "-c /opt/tools/constraints.txt --build-constraint /opt/tools/constraints.txt" in line
        assert own or both or "--require-hashes -r pip.txt" in line, line


def test_developer_tools_of_nvidia_are_left_out_of_the_layer_that_brings_them() -> None:
    (tool_instruction,) = (instruction.rest for instruction in stages(TEXT, {"BASE": DEBIAN})["torch"].instructions)
    for name in ("cuobjdump", "nvdisasm"):
        assert f"triton/backends/nvidia/bin/{name}" in tool_instruction.partition("&& rm ")[2]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("FROM ${BASE} AS b\n", "a base and a name of its own"),
        ("ARG X\nFROM a AS b\n", "give --build-arg X="),
        ("FROM a\n", "a base and a name of its own"),
        ("FROM a AS b\nFROM c AS b\n", "a base and a name of its own"),
        ("FROM a AS b\nUSER root\n", "UID:GID"),
        ("FROM a AS b\nENV X=$Y\n", "without variables"),
        ("FROM a AS b\nVOLUME /x\n", "VOLUME: not known"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, what: str) -> None:
    with pytest.raises(ContainerfileError, match=what):
        settings(stages(text), "b")


def test_lines_that_go_on_comments_and_flags_are_understood() -> None:
    all_stages = stages(
        "# first\nFROM a AS b\nRUN --mount=type=cache,target=/c --mount=type=bind,from=d \\\n# no\n  x && \\\n  y\n"
    )
    (instruction,) = all_stages["b"].instructions
    assert (instruction.verb, instruction.rest.split()) == ("RUN", ["x", "&&", "y"])
    assert instruction.mounts() == [{"type": "cache", "target": "/c"}, {"type": "bind", "from": "d"}]
    assert settings(all_stages, "b") == Settings()
