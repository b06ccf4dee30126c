"""What templates/Containerfile says, as far as reading it shows; tests/images makes the images."""

import shlex

import pytest

from everstep.version import IMAGE
from tests.harness import ROOT
from tests.images.containerfile import ContainerfileError, Settings, ignored, settings, stages

TEXT = (ROOT / "templates/Containerfile").read_text()
IMAGES = ("submit", "preprocess", "train", "everstep")


def test_every_image_runs_the_command_as_a_user_that_is_not_root() -> None:
    found = stages(TEXT)
    assert f"--target everstep -t {IMAGE} ." in TEXT
    for image in IMAGES:
        held = settings(found, image)
        assert (held.user, held.entrypoint) == ("1000:1000", ["everstep"]), image
        assert held.environment["PATH"].startswith("/opt/everstep/bin:")


def test_the_code_comes_after_all_packages() -> None:
    found = stages(TEXT)
    for image in IMAGES:
        last = [one for one in found[image].instructions if one.verb in ("RUN", "COPY")][-1]
        assert (last.verb, last.flag("from")) == ("COPY", "code")
        assert "code" not in {one.flag("from") for one in found[found[image].base].instructions}


def test_a_builder_sees_what_is_copied_and_nothing_else() -> None:
    out = ignored((ROOT / ".dockerignore").read_text())
    copied = {
        source
        for stage in stages(TEXT).values()
        for one in stage.instructions
        if one.verb == "COPY" and not one.flag("from")
        for source in shlex.split(one.rest)[:-1]
    }
    assert {path.name for path in ROOT.iterdir() if not out(path.name)} == copied
    assert not out("runtime/report/page.html")
    for path in (".git/config", "runs/store/x", "steps/__pycache__/a.pyc", "steps/train/__pycache__/a.pyc", ".env"):
        assert out(path), path


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("FROM a\n", "a name of its own"),
        ("FROM a AS b\nFROM c AS b\n", "a name of its own"),
        ("FROM a AS b\nUSER root\n", "UID:GID"),
        ("FROM a AS b\nENV X=$Y\n", "without variables"),
        ("FROM a AS b\nVOLUME /x\n", "VOLUME: not known"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, what: str) -> None:
    with pytest.raises(ContainerfileError, match=what):
        settings(stages(text), "b")


def test_lines_that_go_on_comments_and_flags_are_understood() -> None:
    found = stages(
        "# first\nFROM a AS b\nRUN --mount=type=cache,target=/c --mount=type=bind,from=d \\\n# no\n  x && \\\n  y\n"
    )
    (one,) = found["b"].instructions
    assert (one.verb, one.rest.split()) == ("RUN", ["x", "&&", "y"])
    assert one.mounts() == [{"type": "cache", "target": "/c"}, {"type": "bind", "from": "d"}]
    assert settings(found, "b") == Settings()
