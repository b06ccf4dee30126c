"""Words of a launcher's command that only the pod knows: each worker's shell fills them in, as the pod's would."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.convert import Conversion, convert
from everstep.convert.shell import split_words
from everstep.runtime.agent.environment import worker_command
from everstep.steps.train.config import Config
from everstep.steps.train.script import COMMAND
from tests.convert.stand_ins import HEAD, POD
from tests.examples import examples

ENV: list[dict[str, Any]] = [
    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    {"name": "LR", "value": "1e-3"},
    {"name": "LOG", "value": "/logs/$(POD_NAME)"},
]
IN_THE_POD = {"POD_NAME": "x-worker-0", "TOKEN": "two words", "RANK": "5", "GROUP_RANK": "2", "LOCAL_RANK": "1"}
"""Of one worker, besides what the pod's own env adds."""
SHOW = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n"


def converted(command: list[str]) -> Conversion:
    pod = POD.replace("[python, t.py]", json.dumps(command)).replace("image: i,", f"image: i, env: {json.dumps(ENV)},")
    return convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f")


def arguments_in_a_worker(conversion: Conversion, folder: Path) -> list[str]:
    """What the script t.py gets from one worker of the converted job."""
    (folder / "t.py").write_text(SHOW)
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    words = worker_command(shlex.split(conversion.arguments["script_args"]), local_rank=1)
    variables = IN_THE_POD | {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])}
    variables |= {"LOG": "/logs/x-worker-0", "LR": "1e-3"}
    variables["EVERSTEP_AGENT"] = str(folder / "link")
    started = [sys.executable, str(Config(script=COMMAND).script_path()), *words]
    ended = subprocess.run(started, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["torchrun", "--nnodes=2", "t.py", "--name=$(POD_NAME)", "a b"], ["--name=x-worker-0", "a b"]),
        (["torchrun", "t.py", "--key", "$(TOKEN)", "--lr=$(LR)", "$(NO)", "$$"], ["--key", "two words", "--lr=1e-3",
         "$(NO)", "$"]),
        (["torchrun", "t.py", "--log", "$(LOG)"], ["--log", "/logs/x-worker-0"]),
        (["sh", "-c", "torchrun --max-restarts=2 t.py --key $TOKEN '$TOKEN' \"$TOKEN\""],
         ["--key", "two", "words", "$TOKEN", "two words"]),
        (["sh", "-c", "torchrun t.py --key \"$(TOKEN)\" $LR"], ["--key", "two words", "1e-3"]),
        (["sh", "-c", "torchrun t.py --name '$(POD_NAME)' 'a '\"b $(TOKEN)\""],
         ["--name", "x-worker-0", "a b two words"]),
        (["bash", "-ec", "cd /src\nexport A=1\ntorchrun --nnodes=2 t.py \\\n --name $POD_NAME-$A"],
         ["--name", "x-worker-0-1"]),
        (["bash", "-c", "torchrun t.py \"$@\" $1", "--", "--lr", "a b"], ["--lr", "a b", "--lr"]),
        (["sh", "-c", "torchrun t.py --missing=${MISSING:-none} ${TOKEN:+yes}"], ["--missing=none", "yes"]),
        (["bash", "-c", "torchrun t.py *.txt {1..3}"], ["b.txt", "c d.txt", "1", "2", "3"]),
        (["sh", "-c", "torchrun --nnodes=2 t.py --run \"it's $(echo a b)-$LR\" `echo c` $(echo d e) '$(x)'"],
         ["--run", "it's a b-1e-3", "c", "d", "e", "$(x)"]),
        (["python", "-m", "torch.distributed.launch", "t.py", "$(POD_NAME)"], ["--local-rank=1", "x-worker-0"]),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_launchers_words_are_filled_in_in_the_pod_at_start(
    command: list[str], expected: list[str], tmp_path: Path
) -> None:
    for name in ("b.txt", "c d.txt"):
        (tmp_path / name).touch()
    conversion = converted(command)
    assert conversion.arguments["script"] == COMMAND
    assert arguments_in_a_worker(conversion, tmp_path) == expected
    assert not [note for note in conversion.notes if "the command's" in note or "unchanged" in note]


def test_the_launchers_flags_and_variables_are_the_steps_although_a_shell_fills_in_the_rest() -> None:
    conversion = converted(["sh", "-c", "cd /w && A=1 torchrun --nnodes=1:3 --max-restarts=2 t.py $TOKEN"])
    arguments = conversion.arguments
    role = arguments["job_spec"]["replicaSpecs"]["worker"]
    assert (role["minReplicas"], role["replicas"], arguments["max_restarts"]) == (1, 3, 2)
    (container,) = role["template"]["spec"]["containers"]
    assert container["workingDir"] == "/w"
    assert [entry for entry in container["env"] if "valueFrom" in entry] == ENV[:2], "its nodes have them"
    assert {"name": "A", "value": "1"} in container["env"]


@pytest.mark.parametrize(
    "command",
    [["torchrun", "t.py", "$(RANK)"], ["sh", "-c", "torchrun t.py ${RANK}"], ["sh", "-c", "torchrun t.py ${RANK:-0}"],
     ["bash", "-c", 'torchrun t.py "${NODE_RANK:-${RANK:-0}}"'], ["sh", "-c", "torchrun t.py '$(RANK)'"]],
)  # fmt: skip
def test_a_rank_in_a_launchers_words_is_the_nodes_as_where_the_launcher_stood(
    command: list[str], tmp_path: Path
) -> None:
    assert arguments_in_a_worker(converted(command), tmp_path) == ["2"]


def test_words_that_need_what_is_left_out_are_listed() -> None:
    conversion = converted(["bash", "-c", "N=$(date +%s)\ntorchrun t.py --run $N --name $POD_NAME"])
    assert "f: the command's `N=$(date +%s)` is left out; nearest: the image, or `env`" in conversion.notes
    told = "f: the command's `$N` needs what is left out; nearest: the variable in `env`"
    assert [note for note in conversion.notes if "needs what" in note] == [told]
    notes = converted(["bash", "-c", "N=$(date +%s)\ntorchrun t.py --run ${N:-0}"]).notes
    assert [note for note in notes if "needs what" in note] == [told.replace("$N", "${N:-0}")]


def test_a_quote_in_a_file_that_the_shell_writes_begins_none(tmp_path: Path) -> None:
    writes = "# isn't it\ncat > own.txt << E\nit's $(POD_NAME)\nE\n"
    conversion = converted(["bash", "-c", f"{writes}torchrun t.py $(POD_NAME) '$(TOKEN)'"])
    assert arguments_in_a_worker(conversion, tmp_path) == ["x-worker-0", "two words"]
    assert (tmp_path / "own.txt").read_text() == "it's x-worker-0\n"


@pytest.mark.parametrize(("quote", "marks"), [("'", ""), ('"', ""), ("'", "-")])
def test_a_file_whose_text_the_shell_takes_as_it_stands_has_what_only_the_pod_knows(
    quote: str, marks: str, tmp_path: Path
) -> None:
    lines = ["$HOME ${LR} `x` $(date) \\", '\\$ it\'s "$(POD_NAME)" $(LR)', "$(TOKEN)"]
    writes = f"cat <<{marks} {quote}E{quote} > '$(POD_NAME)'.txt\n" + "".join(f"{line}\n" for line in [*lines, "E"])
    conversion = converted(["bash", "-c", f"{writes}torchrun t.py"])
    assert arguments_in_a_worker(conversion, tmp_path) == []
    expected = [lines[0], '\\$ it\'s "x-worker-0" 1e-3', "two words"]
    assert (tmp_path / "x-worker-0.txt").read_text().splitlines() == expected


def test_words_behind_a_shells_text_are_filled_in_too_by_a_shell_around_it(tmp_path: Path) -> None:
    conversion = converted(["bash", "-c", 'python t.py "$@"', "--", "a b", "$(POD_NAME)"])
    assert arguments_in_a_worker(conversion, tmp_path) == ["a b", "x-worker-0"]
    notes = converted(["bash", "-c", 'torchrun t.py "$@"', "--", "$(POD_NAME)"]).notes
    assert [note for note in notes if "in which `torchrun` starts processes of its own, each alone" in note]


def slots_of(env: list[dict[str, Any]]) -> tuple[int, str]:
    """The workers of a node of a job with these variables, whose launcher asks $NUM_TRAINERS, and what is listed."""
    command = json.dumps(["bash", "-c", "dlrover-run --nproc_per_node=$NUM_TRAINERS --nnodes=1:$NODE_NUM t.py"])
    pod = POD.replace("[python, t.py]", command).replace("image: i,", f"image: i, env: {json.dumps(env)},")
    conversion = convert(f"{HEAD}  replicaSpecs: {{worker: {{replicas: 2, {pod}}}}}", "f")
    role = conversion.arguments["job_spec"]["replicaSpecs"]["worker"]
    assert (role["minReplicas"], role["replicas"]) == (1, 2)
    return role["slots"], "\n".join(conversion.notes)


def test_a_pods_own_variable_goes_before_what_its_job_would_have_there() -> None:
    assert slots_of([{"name": "NUM_TRAINERS", "value": "8"}])[0] == 8
    assert slots_of([{"name": "OTHER", "value": "8"}])[0] == 1
    elsewhere = {"configMapKeyRef": {"name": "c", "key": "k"}}
    slots, notes = slots_of([{"name": "NUM_TRAINERS", "valueFrom": elsewhere}])
    assert slots == 1
    assert "f: the launcher's --nproc_per_node=$NUM_TRAINERS: no counterpart" in notes


WRITES = """\
pip() { :; }
pip install x
read -r -d '' SCRIPT << 'EOM'
import json, sys
it = "isn't"
if it: print(json.dumps(sys.argv[1:]))
EOM
printf "%s" "$SCRIPT" > "own.py"
torchrun --max-restarts=2 "own.py" --name $POD_NAME
"""


def test_files_that_the_shell_writes_first_are_written_once_for_a_nodes_workers(tmp_path: Path) -> None:
    conversion = converted(["bash", "-c", WRITES.replace("pip() { :; }\npip", "export PIP=1; true")])
    assert conversion.arguments["max_restarts"] == 2
    assert arguments_in_a_worker(conversion, tmp_path) == ["--name", "x-worker-0"]
    (command,) = json.loads(shlex.split(conversion.arguments["script_args"])[0]).values()
    *once, text, shell, _, launch = shlex.split(command)
    assert (once, shell) == (["python", "-m", "everstep.prepare_once"], "bash")
    assert "own.py" in text, "the worker of each rank runs what is left"
    assert launch == 'exec python "own.py" --name $POD_NAME'
    assert [note for note in conversion.notes if "done again when the workers start again" in note]
    assert not [note for note in conversion.notes if "unchanged" in note or "left out" in note]


def test_files_for_a_script_without_a_launcher_are_written_once_too(tmp_path: Path) -> None:
    text = "D=$(mktemp -d)\ncat > $D/own.py << E\nimport sys; print('[\"$$$$\", \"' + sys.argv[1] + '\"]')\nE\n"
    conversion = converted(["bash", "-ec", f"{text}python -u $D/own.py $$RANK", "--"])
    process, rank = arguments_in_a_worker(conversion, tmp_path)
    assert process.isdecimal(), "the text's $$ is a shell's"
    assert rank == "2", "its pod's"


@pytest.mark.parametrize(
    "writes",
    ["printf '%s\\n' 'import json, sys' 'print(json.dumps(sys.argv[1:]))' > own.py && ",
     "echo 'import json, sys' > 'own.py'; echo 'print(json.dumps(sys.argv[1:]))' >>own.py\n",
     "mkdir -p a && cd a && echo 'import json, sys; print(json.dumps(sys.argv[1:]))' 2>&1 >own.py &&\n"],
)  # fmt: skip
def test_files_that_the_shell_writes_as_a_commands_output_are_written_first(writes: str, tmp_path: Path) -> None:
    conversion = converted(["sh", "-c", f"{writes}torchrun --max-restarts=2 own.py --name $POD_NAME"])
    assert conversion.arguments["max_restarts"] == 2
    assert arguments_in_a_worker(conversion, tmp_path) == ["--name", "x-worker-0"]
    assert not [note for note in conversion.notes if "unchanged" in note or "left out" in note]


@pytest.mark.parametrize(
    "writes",
    ["nvidia-smi >/dev/null", "nvidia-smi > /dev/null 2>&1", "nvidia-smi 2>errors", "echo begins >&2", "echo '>' x"],
)
def test_a_command_whose_output_goes_into_no_file_is_left_out(writes: str) -> None:
    notes = converted(["sh", "-c", f"{writes}\ntorchrun t.py"]).notes
    assert [note for note in notes if f"`{writes}` is left out" in note], notes


@pytest.mark.parametrize(
    "line",
    [WRITES, "cat << A\nx\nA\n! torchrun t.py", "cat << A\nx\nB\ntorchrun t.py", "cat << A || \nx\nA\ntorchrun t.py",
     "cat << A\nA\nif x; then\ntorchrun t.py\nfi"],
)  # fmt: skip
def test_a_text_that_decides_which_of_its_commands_run_is_run_unchanged(line: str) -> None:
    assert [note for note in converted(["bash", "-c", line]).notes if "unchanged" in note]


def test_variables_of_a_whole_secret_are_filled_in_too(tmp_path: Path) -> None:
    text = f"{HEAD}  replicaSpecs: {{worker: {{{POD}}}}}".replace("python, t.py", 'torchrun, t.py, "$(TOKEN)", "$(no)"')
    whole = text.replace("image: i,", "image: i, envFrom: [{secretRef: {name: s}}],")
    assert arguments_in_a_worker(convert(whole, "f"), tmp_path) == ["two words", "$(no)"]
    assert convert(text, "f").arguments["script_args"] == "'$(TOKEN)' '$(no)'", "Kubernetes leaves it, too"


def test_a_command_that_runs_unchanged_keeps_what_its_shell_writes_with_two_dollars(tmp_path: Path) -> None:
    line = ["bash", "-c", 'local_rank=7; python t.py $local_rank ${local_rank} "$$$$" || exit 3']
    conversion = converted(line)
    local, braced, process = arguments_in_a_worker(conversion, tmp_path)
    assert (local, braced) == ("7", "7")
    assert process.isdecimal()
    assert int(process) != os.getpid()


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from([*"ab =$*'\"\\\n\t", "'a b'", '"a b"']), max_size=14).map("".join))
def test_words_with_their_quotes_are_those_without(text: str) -> None:
    try:
        words = shlex.split(text)
    except ValueError:
        return
    assert [" ".join(shlex.split(word)) for word in split_words(text)] == words
