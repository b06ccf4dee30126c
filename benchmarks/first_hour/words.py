"""Mistakes on the command line, the verbs of `argo`, completion, and the report."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.acceptance import Line
from benchmarks.first_hour.commands import EVERSTEP, PIPELINE, Answer, ask, one_line
from benchmarks.first_hour.stopping import train

MISTAKES: dict[tuple[str, ...], str] = {
    (*PIPELINE, "--corpus", "nope.txt"): "--corpus nope.txt: matches no file",
    (*PIPELINE, "--iteratons", "5"): "did you mean --iterations",
    (*PIPELINE, "--model", "nope"): "--model nope: neither",
    (*PIPELINE, "--script", "folder"): "--script folder: a folder",
    (*PIPELINE, "--evaluate-script", "nope.py"): "--evaluate-script nope.py: no such file",
    (*PIPELINE, "--store", "file"): "--store file: ",
    (*PIPELINE, "--runs", "file"): "--runs file: ",
    (*PIPELINE, "--job-spec", "spec.yaml"): "did you mean minReplicas",
    (*PIPELINE, "--target", "locla"): "did you mean local",
    (EVERSTEP, "workflw"): "did you mean workflow",
    (EVERSTEP, "workflow", "rn"): "did you mean run",
    (EVERSTEP, "workflow", "run", "folder"): "folder",
    (EVERSTEP, "workflow", "list", "--runs", "file"): "--runs file: not a folder",
    (EVERSTEP, "launch", "folder"): "folder: a folder without __main__.py",
    (sys.executable, "-m", "everstep.steps.train", "--dataet", "x"): "did you mean --dataset",
}
"""Command -> what its one line must say."""
WITHOUT_RIGHTS = [
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
]
HELLO = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: hello-}
spec:
  entrypoint: main
  templates:
  - {name: main, container: {image: i, command: [python, -c, "import sys; print(sys.prefix)"]}}
"""


def mistakes(folder: Path) -> Iterator[Line]:
    """Each wrong command."""
    (folder / "folder").mkdir()
    (folder / "file").write_text("")
    (folder / "spec.yaml").write_text("replicaSpecs:\n  worker: {replicas: 2, minReplica: 1}\n")
    for words, pattern in MISTAKES.items():
        command_line = " ".join(Path(word).name if word.startswith("/") else word for word in words)
        yield one_line(command_line, ask(folder, words), re.escape(pattern))


def working_folders(folder: Path) -> Iterator[Line]:
    """One that was removed, one that cannot be written, and a run of another user."""
    for words in ((*PIPELINE, "--nodes", "1"), (EVERSTEP, "launch", "x.py"), (EVERSTEP, "workflow", "list")):
        answer = ask(folder, ["sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh", *words])
        command_line = f"in a removed folder: {' '.join(Path(word).name for word in words)}"
        yield one_line(command_line, answer, "the working folder was removed")
    closed = folder / "closed"
    closed.mkdir(mode=0o555)
    for words in (PIPELINE, (EVERSTEP, "workflow", "run", str(folder / "hello.yaml"))):
        command_line = f"in a read-only folder: {' '.join(Path(word).name for word in words)}"
        yield one_line(command_line, ask(closed, [*WITHOUT_RIGHTS, *words]), "Permission denied")
    ask(folder, ["sh", "-c", "cp -r runs/first runs/theirs && chown -R 65534 runs/theirs && chmod 700 runs/theirs"])
    for verb in ("get", "logs", "stop", "retry"):
        answer = ask(folder, [*WITHOUT_RIGHTS, EVERSTEP, "workflow", verb, "theirs"])
        yield one_line(f"a run folder of another user: {verb}", answer, "Permission denied; .* belongs to user")
    ask(folder, ["rm", "-r", "runs/theirs"])


def verbs(folder: Path) -> Iterator[Line]:
    """Those that `argo` has."""

    def workflow(*words: str) -> Answer:
        return ask(folder, [EVERSTEP, "workflow", *words])

    (folder / "hello.yaml").write_text(HELLO)
    first = workflow("run", "hello.yaml", "--name", "first")
    tries = (
        ("wait", workflow("wait", "first"), "^first Succeeded at "),
        ("watch", workflow("watch", "@latest"), "Status: +Succeeded"),
        ("resubmit", workflow("resubmit", "first"), "Succeeded"),
        ("delete", workflow("delete", "@latest"), "^Workflow 'hello-[0-9a-z]{5}' deleted"),
    )
    for verb, answer, pattern in tries:
        holds = answer.code == 0 and bool(re.search(pattern, answer.text, re.MULTILINE))
        yield Line(
            f"everstep workflow {verb}", pattern, f"exit {answer.code}: {answer.last}", holds and first.code == 0
        )
    yield one_line("-n is not a name", workflow("run", "hello.yaml", "-n", "x"), "unrecognized arguments: -n")
    version = ask(folder, [EVERSTEP, "--version"]).last
    same = ask(folder, [sys.executable, "-c", "import everstep; print('everstep', everstep.__version__)"]).last
    yield Line("everstep --version, everstep.__version__", "the same", f"{version}; {same}", version == same)
    link = folder / "link"
    link.symlink_to(Path(sys.executable).parents[1])
    ask(folder, [str(link / "bin/everstep"), "workflow", "run", "hello.yaml", "--name", "linked"])
    prefix = workflow("logs", "linked").last.partition(": ")[2]
    expected_text = ask(folder, [str(link / "bin/python"), "-c", "import sys; print(sys.prefix)"]).last
    holds = bool(prefix) and Path(prefix).resolve() == Path(expected_text).resolve()
    yield Line(
        "pods run the launcher's interpreter behind a symlinked .venv", expected_text, prefix or "nothing", holds
    )


COMPLETED: dict[str, tuple[tuple[str, ...], str]] = {
    "a verb": (("everstep", "workflow", "resub"), "resubmit"),
    "a flag": (("everstep", "workflow", "run", "--work"), "--work-dir"),
    "a flag of launch": (("everstep", "launch", "--nproc"), "--nproc-per-node"),
    "a choice": (("everstep", "workflow", "lint", "--format", "sa"), "sarif"),
    "a run": (("everstep", "workflow", "get", "fir"), "first"),
    "a pipeline's flag": (("python", PIPELINE[1], "--iter"), "--iterations"),
}


def completion(folder: Path) -> Iterator[Line]:
    """By bash itself; the scripts for zsh and fish call the same."""
    script = f'PATH="{Path(EVERSTEP).parent}:$PATH"; source <(everstep completion bash); COMP_WORDS=("$@"); '
    script += 'COMP_CWORD=$(($# - 1)); _everstep_complete "$1"; echo "${COMPREPLY[*]}"'
    for what, (words, expected_word) in COMPLETED.items():
        answer = ask(folder, ["bash", "-c", script, "bash", *words])
        yield Line(f"bash completes {what}", expected_word, answer.last, answer.last == expected_word)


def report(folder: Path) -> Iterator[Line]:
    """The page of a run that succeeded."""
    answer = ask(folder, train(folder, "shown"))
    page = (folder / "runs/shown/report.html").read_text()
    text = re.sub(r"\s+", " ", re.sub("<(style|script).*?</\\1>|<[^>]+>", " ", page, flags=re.DOTALL))
    top = text[: text.find("Training: train")]
    missing = [word for word in ("perplexity", "/models/", "from_pretrained", "train it further") if word not in top]
    yield Line(
        "the report: perplexity, model and what to do next at the top",
        "all",
        f"missing: {missing or 'nothing'}",
        answer.code == 0 and not missing,
    )
    raw = re.findall(r"[{\[]\"\w+\":", text.replace("&#34;", '"'))
    yield Line(
        "the report: no raw JSON; no step Running",
        "none",
        f"{len(raw)}, {text.count('Running')}",
        not raw and "Running" not in text,
    )
    again = ask(folder, train(folder, "shown"))
    goodput = re.search(r"report\.html[^\n]*", again.text)
    yield Line(
        "goodput when nothing is left to do is not 0 %",
        "not 0 %",
        goodput[0] if goodput else again.last,
        again.code == 0 and "goodput 0 %" not in again.text,
    )


def measure(folder: Path) -> Iterator[Line]:
    """All lines of this part."""
    yield from mistakes(folder)
    yield from verbs(folder)
    yield from working_folders(folder)
    yield from completion(folder)
    yield from report(folder)
