"""The images of templates/Containerfile, made from Debian's packages and run as a pod runs them: `make test-images`.

Each has nothing but what its instructions put there, and its processes are its user's.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.steps.reuse import STEPS
from supply.containerfile import settings, stages
from supply.image_builder import BASE, SHARED, Builder, missing
from supply.lock import parse_lock
from tests.datasets import write_dataset
from tests.harness import ROOT

TEXT = (ROOT / "templates/Containerfile").read_text()
STEPS_OF = {
    "submit": ("report",),
    "preprocess": ("corpus", "preprocess"),
    "train": ("model", "check", "train", "evaluate"),
    "everstep": ("report", "corpus", "preprocess", "model", "check", "train", "evaluate"),
}
"""The images, and the steps whose packages each has."""
FACTS = """
import importlib.metadata, json, os, pwd, shutil, sys
print(json.dumps({
    "user": pwd.getpwuid(os.getuid()).pw_name,
    "python": sys.version_info[:2],
    "tools": [name for name in ("pip", "pip3", "gcc", "cc", "make") if shutil.which(name)],
    "changeable": [name for name in sys.path[1:] if os.access(name, os.W_OK)],
    "packages": {one.name: one.version for one in importlib.metadata.distributions()},
}))
"""
TEXTS = ("the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """Makes stages in a folder that is removed at the end."""
    folder = tmp_path_factory.mktemp("images")
    if why := missing(folder):
        pytest.skip(why)
    try:
        yield Builder(folder, folder / "pip", ROOT, stages(TEXT, {"BASE": BASE}))
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module", params=STEPS_OF)
def image(request: pytest.FixtureRequest, builder: Builder) -> str:
    """The name of an image that is made."""
    builder.build(request.param)
    return request.param


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """A folder that pods see as SHARED."""
    os.chown(tmp_path, 1000, 1000)
    return tmp_path


def step(builder: Builder, image: str, shared: Path, name: str, *flags: str) -> str:
    """Run a step by its template's command. The output `uri`, `checkpoint`... is a file of the folder named like it."""
    (template,) = (template_made for template_made in (of() for of in STEPS) if template_made.name == name)
    words = [*map(str, template.command or []), f"--store={SHARED}/store", f"--outputs={SHARED}/{name}", *flags]
    result = builder.run(image, words, shared)
    assert result.code == 0, f"{name} in {image}: {result.text[-4000:]}"
    return result.text


def test_the_command_answers_by_the_entry_point(builder: Builder, image: str) -> None:
    result = builder.run(image, [*settings(builder.stages, image).entrypoint, "--help"])
    assert result.code == 0, result.text
    assert "usage: everstep" in result.text


def test_it_has_a_named_user_no_tools_and_only_pinned_packages(builder: Builder, image: str) -> None:
    result = builder.run(image, ["python", "-c", FACTS])
    assert result.code == 0, result.text
    facts = json.loads(result.text)
    packages = {_plain(name): version for name, version in facts.pop("packages").items()}
    assert facts == {"user": "everstep", "python": [3, 11], "tools": [], "changeable": []}
    del packages["everstep"]
    assert (
        packages.items()
        <= {package.name: package.version for package in parse_lock((ROOT / "constraints.txt").read_text())}.items()
    )


def test_it_has_the_licences_of_its_debian_packages_and_nothing_of_who_built_it(builder: Builder, image: str) -> None:
    script = (
        "for name in $(dpkg-query --show --showformat '${binary:Package} '); do "
        'test -e /usr/share/doc/${name%:*}/copyright || echo "no licence: $name"; done; '
        "ls -A /tmp /home /opt/tools | grep -v '^$'; ls /var/cache/apt /var/lib/apt/lists | grep -E 'bin$|Packages'; "
        r"find / -xdev \( -name .netrc -o -name pip.conf -o -path '/run/*.crt' \) 2>/dev/null"
    )
    ended = builder.run(image, ["sh", "-c", script])
    assert set(ended.text.split()) <= {"/tmp:", "/home:", "/opt/tools:"}, ended.text


def test_its_steps_start(builder: Builder, image: str) -> None:
    for name in STEPS_OF[image]:
        result = builder.run(image, ["python", "-m", f"everstep.steps.{name}", "--help"])
        assert result.code == 0, f"{name}: {result.text}"


@pytest.mark.parametrize("image", ["preprocess", "everstep"], indirect=True)
def test_text_becomes_tokens_by_spark(builder: Builder, image: str, shared_folder: Path) -> None:
    documents = [f"{text} {number}" for number in range(200) for text in TEXTS]
    (shared_folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    step(builder, image, shared_folder, "corpus", f"--source={SHARED}/text.jsonl", "--validation-share=0")
    corpus = (shared_folder / "corpus/uri").read_text()
    step(builder, image, shared_folder, "preprocess", f"--input={corpus}", "--vocab-size=300")
    dataset_facts = json.loads(_here(shared_folder, "preprocess/uri").joinpath("dataset.json").read_text())
    assert dataset_facts["train"]["documents"] == len(documents)
    assert dataset_facts["vocab_size"] == 300


@pytest.mark.parametrize("image", ["train", "everstep"], indirect=True)
def test_a_training_ends_with_a_checkpoint(builder: Builder, image: str, shared_folder: Path) -> None:
    write_dataset(shared_folder / "dataset")
    sizes = ("--nodes=1", "--iterations=3", "--sequence-length=16", "--global-batch=2")
    training_output = step(builder, image, shared_folder, "train", f"--dataset={SHARED}/dataset", *sizes)
    assert "3 iterations  loss" in training_output
    assert (shared_folder / "train/iterations").read_text() == "3"
    assert _here(shared_folder, "train/checkpoint").joinpath("manifest.json").is_file()


def _here(shared: Path, output: str) -> Path:
    """The folder here that is named by an output of a step."""
    return shared / Path((shared / output).read_text().removeprefix("file://")).relative_to(SHARED)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
