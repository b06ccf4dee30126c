"""`make accept-main-job`: every promise of the main job: wanted, measured, holds or not. Exit code 1 if one fails.

The tests named in a line prove survival and bad input; times and memory are measured here.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from benchmarks.main_job import MIB, DefaultRun, default_run
from benchmarks.recovery import format_kills, kills
from tests.harness import ROOT, Pipeline

SURVIVAL = "tests/survival"


def first_run(run: DefaultRun) -> Iterator[Line]:
    """`make finetune`, after the installation."""
    phases = Pipeline(run.folder, run.folder).phases()
    bad = {name: phase for name, phase in phases.items() if phase not in ("Succeeded", "Skipped", "Omitted")}
    yield Line("the default run ends", "exit 0", f"exit {run.exit_code}", run.exit_code == 0)
    yield Line("its time after the installation", "<= 180 s", f"{run.seconds:.0f} s", run.seconds <= 180)
    yield Line("every step of the DAG and the exit handler", "Succeeded", str(bad or "all"), not bad)
    report = run.folder / "report.html"
    page = report.read_text() if report.exists() else ""
    outside = [word for word in ('src="http', 'href="http', "@import") if word in page]
    size = len(page.encode())
    yield Line(
        "report.html, self-contained", "one file, <= 1 MB", f"{size / 1e6:.2f} MB {outside or ''}",
        0 < size <= 1_000_000 and not outside,
    )  # fmt: skip
    yield Line(
        "peak memory of the whole run", "<= 4096 MiB", f"{run.peak_bytes / MIB:.0f} MiB", run.peak_bytes <= 4096 * MIB
    )
    yield Line("processes and shared memory left", "none", str(run.left or "none"), not run.left)
    yield model_loads(run)


def model_loads(run: DefaultRun) -> Line:
    """Load the exported directory in a fresh process."""
    nodes = Pipeline(run.folder, run.folder).workflow()["status"]["nodes"].values()
    evaluated = next(node for node in nodes if node["displayName"].startswith("evaluate") and node.get("outputs"))
    model = next(p["value"] for p in evaluated["outputs"]["parameters"] if p["name"] == "model")
    code = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "out = m.generate(**t('def main', return_tensors='pt'), max_new_tokens=5); print(type(m).__name__, len(out))"
    )
    loaded = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, check=False)
    last_words = (loaded.stdout or loaded.stderr).strip().splitlines()[-1:]
    return Line("transformers loads the exported model", "it generates", " ".join(last_words), loaded.returncode == 0)


def printed_manifest(folder: Path, run: DefaultRun) -> Line:
    """Compare `-o yaml` with what ran."""
    command = [sys.executable, str(ROOT / "pipelines/llama_finetune.py"), "-o", "yaml"]
    command += ["--store", str(folder / "runs/store")]
    manifest_run = subprocess.run(command, capture_output=True, text=True, check=True)
    same = yaml.safe_load(manifest_run.stdout)["spec"] == Pipeline(run.folder, run.folder).workflow()["spec"]
    return Line("-o yaml prints the manifest that ran", "equal specs", "equal" if same else "different", same)


def second_tokenization(folder: Path, run: DefaultRun) -> Line:
    """Run the tokenize step again: it finds its dataset."""
    nodes = Pipeline(run.folder, run.folder).workflow()["status"]["nodes"].values()
    corpus = next(node for node in nodes if node["displayName"].startswith("corpus") and node.get("outputs"))
    uri = next(p["value"] for p in corpus["outputs"]["parameters"] if p["name"] == "uri")
    command = [sys.executable, "-m", "everstep.steps.preprocess", "--input", uri, "--store", str(folder / "runs/store")]
    command += ["--append-eod"]
    started = time.monotonic()
    again = subprocess.run([*command, "--outputs", str(folder / "out")], cwd=ROOT, capture_output=True, check=False)
    seconds = time.monotonic() - started
    return Line("tokenizing the same again", "< 1 s", f"{seconds:.2f} s", again.returncode == 0 and seconds < 1)


def help_time() -> Line:
    """`everstep --help`, the best of 5."""
    times = []
    for _ in range(5):
        started = time.monotonic()
        subprocess.run([Path(sys.executable).with_name("everstep"), "--help"], capture_output=True, check=True)
        times.append(time.monotonic() - started)
    return Line("everstep --help", "< 0.3 s", f"{min(times):.2f} s", min(times) < 0.3)


def recovery(folder: Path, run: DefaultRun, count: int) -> Iterator[Line]:
    """kill -9 of a worker, the default model, 2 nodes x 1 worker."""
    killed = [kill for kill, _ in kills(folder, run.dataset, count)]
    holds = max(kill.seconds for kill in killed) <= 1
    yield Line(f"kill -9 of a worker -> next iteration, {len(killed)} kills", "<= 1 s", format_kills(killed), holds)
    lost_iterations = max(kill.lost for kill in killed)
    yield Line("iterations lost at a kill", "<= 1", str(lost_iterations), lost_iterations <= 1)


TRAINING, LAUNCHER = f"{SURVIVAL}/test_training_survives.py", f"{SURVIVAL}/test_launcher.py"
PROVEN = {
    "a worker killed at each named point: equal weights": (f"{TRAINING}::worker_killed",),
    "a node lost at each named point": (f"{TRAINING}::node_lost",),
    "the step killed at each named point": (f"{TRAINING}::step_killed", f"{TRAINING}::step_is_gone"),
    "everything killed: on from the store": (f"{TRAINING}::everything_killed",),
    "kills at random moments": (f"{TRAINING}::random",),
    "2 -> 1 -> 2 nodes: every sample once": (f"{SURVIVAL}/test_samples.py",),
    "the launcher killed, the run taken up by name; Ctrl-C": (LAUNCHER,),
    "bad input: one line, exit 2, nothing written": (
        "tests/face/",
        "tests/corpus/",
        "tests/preprocess/",
        "tests/train/",
    ),
}
"""Promise -> the tests that prove it, in the words of `acceptance.proven`."""


def default_lines(folder: Path, run: DefaultRun) -> Iterator[Line]:
    """What the default run shows, and what is checked afterwards."""
    yield from first_run(run)
    yield from (printed_manifest(folder, run), second_tokenization(folder, run), help_time())


MEASURED = ("the default run: its time, memory, DAG, report, model", "kill -9 of a worker -> next iteration")


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: the figures first, with the machine to themselves."""
    is_default_run, recovered = (is_asked(name, options.words) for name in MEASURED)
    if is_default_run or recovered:
        with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
            run = default_run(Path(name))
            yield from default_lines(Path(name), run) if is_default_run else ()
            yield from recovery(Path(name), run, options.kills) if recovered else ()
    yield from prove(PROVEN, options)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    judge(lines(parse_options(parser, [*MEASURED, *PROVEN])))


if __name__ == "__main__":
    main()
