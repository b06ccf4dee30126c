"""Which commands start a script, and what a worker runs of the others."""

import json
import shlex
from typing import Any

import pytest

from everstep.convert import Conversion, convert
from everstep.convert.launcher import Place, parse_launch
from everstep.convert.launchers.torchrun import TORCHRUN
from everstep.runtime.agent.environment import worker_command
from everstep.runtime.launch.flags import Parser
from everstep.runtime.launch.torchrun import SwitchAction
from everstep.steps.train.script import COMMAND
from tests.convert.stand_ins import HEAD, POD


@pytest.mark.parametrize(
    ("command", "script", "flags"),
    [
        (["torchrun", "--nproc-per-node=2", "a.py", "x"], "a.py", {"nproc_per_node": "2"}),
        (["python3", "-u", "a.py"], "a.py", {}),
        (["python", "-m", "torch.distributed.run", "--nnodes", "1:2", "a.py"], "a.py", {"nnodes": "1:2"}),
        (["sh", "-c", "cd /w && A=1 B=2 torchrun --standalone a.py"], "a.py", {"standalone": "true"}),
        (["bash", "-lc", "dlrover-run --nnodes=3:$WORKER_NUM \\\n a.py"], "a.py", {"nnodes": "3:4"}),
    ],
)  # fmt: skip
def test_lines_that_start_a_script(command: list[str], script: str, flags: dict[str, str]) -> None:
    launch = parse_launch(command, {"WORKER_NUM": "4"})
    assert launch
    assert (launch.script, launch.flags) == (script, flags)


@pytest.mark.parametrize(
    "command",
    [[], ["nginx"], ["sleep", "infinity"], ["python", "-m", "trainer"], ["sh", "-c", "python a.py | tee log"],
     ["sh", "-c", "python 'a.py"], ["sh", "-c", "python a.py $X"], ["sh", "-c", "X=1 python a.py $X"],
     ["bash", "-c", "torchrun a.py\necho done"], ["bash", "--norc", "torchrun a.py"],
     ["sh", "-c", "./prepare.sh && python a.py"], ["sh", "-c", "torchrun a.py &"],
     ["sh", "-c", "torchrun --nnodes=$(cat n) a.py"],
     ["sh", "-c", "if test -f a; then export A=1; fi; torchrun a.py"], ["sh", "-c", "f() { x; }\ntorchrun a.py"],
     ["sh", "-c", "test -f x ||\n torchrun a.py"],
     ["sh", "-c", "cat > a.py <<END\ntorchrun a.py\nEND"],
     ["python", "-c", "pass", "a.py"], ["horovodrun", "-np", "3", "python", "a.py"]],
)  # fmt: skip
def test_lines_that_are_run_as_they_are(command: list[str]) -> None:
    assert parse_launch(command, {"N": "1"}) is None


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("export BATCH=32 && torchrun a.py --batch $BATCH", ["--batch", "32"]),
        ("export S=a.py && torchrun $S", []),
        ("A=1 && export A && torchrun a.py ${A}0", ["10"]),
        ("A=1 && export B=$A && python a.py $B $NODES", ["1", "4"]),
        ("export A='--x 1' B= && torchrun a.py $A \"$A\" $B \"$B\"", ["--x", "1", "--x 1", ""]),
        ("python a.py 'two  blanks' \"a\nline\" b\\\nc  d\n", ["two  blanks", "a\nline", "bc", "d"]),
        ("torchrun a.py \"it's\" \\\n 'x'", ["it's", "x"]),
        ("torchrun --node-rank=$RANK --nnodes=$NODES a.py", []),
        ("python a.py '$N' \\$N", ["$N", "$N"]),
        ('python a.py "\\$N" "a\\`b" "\\\\\\$N"', ["$N", "a`b", "\\$N"]),
        ("torchrun a.py --note 'a && b; c | d' \"e;f > g\" h#i", ["--note", "a && b; c | d", "e;f > g", "h#i"]),
    ],
)  # fmt: skip
def test_words_are_those_that_the_shell_would_give(line: str, arguments: list[str]) -> None:
    launch = parse_launch(["bash", "-e", "-c", line], {"NODES": "4"})
    assert launch
    assert (launch.script, list(launch.script_arguments), launch.unknown) == ("a.py", arguments, ())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["python", "t.py", "--lr=$(LR)", "$(TWICE)", "$(NO)", "$$x"],
            "python t.py --lr=1e-3 '1e-3 1e-3' '$(NO)' '$x'",
        ),
        (
            ["python", "t.py", "a b", "", "--rank=$(RANK)/$(WORLD_SIZE)", "$(TOKEN)"],
            "sh -c 'exec python t.py '\"'\"'a b'\"'\"' '\"'\"''\"'\"' --rank=\"$RANK\"/\"$WORLD_SIZE\" \"$TOKEN\"'",
        ),
        (["sh", "-c", "python t.py $(RANK) $(date)"], "sh -c 'python t.py ${RANK} $(date)'"),
        (["torchrun", "--node-rank=$(RANK)", "--nnodes=$(MANY)", "t.py", "$(LR)"], "python t.py 1e-3"),
    ],
)
def test_variables_that_kubernetes_fills_in_are_filled_in(command: list[str], expected: str) -> None:
    values = {"LR": "1e-3", "TWICE": "$(LR) $(LR)", "MANY": "1"}
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    env.append({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})
    pod = POD.replace("[python, t.py]", json.dumps(command)).replace("image: i,", f"image: i, env: {json.dumps(env)},")
    arguments = convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f").arguments
    if arguments["script"] == COMMAND:
        assert json.loads(*shlex.split(arguments["script_args"]))["worker"] == expected
    else:
        assert f"python {arguments['script']} {arguments['script_args']}" == expected


def test_a_note_is_one_line_whatever_the_command_is() -> None:
    line = ["bash", "-c", "echo 'a\nb'\ncd /w && torchrun --other='a\nb' t.py"]
    pod = POD.replace("[python, t.py]", json.dumps(line))
    notes = convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f").notes
    assert r"f: the command's `echo 'a\nb'` is left out; nearest: the image, or `env`" in notes
    assert not any("\n" in note for note in notes)


def folders_of(command: list[str], **folders: str) -> tuple[str, dict[str, str]]:
    """The script, and each role's folder."""
    pod = POD.replace("[python, t.py]", json.dumps(command))
    roles = [f"{name}: {{{pod.replace('image: i,', f'image: i, workingDir: {at},')}}}" for name, at in folders.items()]
    arguments = convert(f"{HEAD}  replicaSpecs: {{{', '.join(roles)}}}", "f").arguments
    entries = arguments["job_spec"]["replicaSpecs"]
    return arguments["script"], {
        name: entry["template"]["spec"]["containers"][0]["workingDir"] for name, entry in entries.items()
    }


def test_each_role_keeps_its_folder() -> None:
    each = {"chief": "/a", "worker": "/b"}
    assert folders_of(["torchrun", "t.py"], **each) == (COMMAND, each)
    assert folders_of(["torchrun", "/t.py"], **each) == ("/t.py", each)
    assert folders_of(["sh", "-c", "cd c && torchrun /t.py"], **each) == ("/t.py", {"chief": "/a/c", "worker": "/b/c"})
    assert folders_of(["sh", "-c", "cd /c && python t.py"], **each) == ("/c/t.py", dict.fromkeys(each, "/c"))


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["torchrun", "--nnodes=2", "-m", "pkg.train", "--lr", "1"], ("python", "-m", "pkg.train", "--lr", "1")),
        (["python", "-m", "torch.distributed.run", "--module", "--nnodes", "2", "pkg"], ("python", "-m", "pkg")),
        (["torchrun", "--nnodes=2", "--no-python", "./train", "a"], ("./train", "a")),
        (["torchrun", "--nnodes=2", "train"], ("python", "train")),
    ],
)  # fmt: skip
def test_a_launchers_module_or_program_is_what_each_worker_runs(command: list[str], program: tuple[str, ...]) -> None:
    launch = parse_launch(command, {})
    assert launch
    assert (launch.program, launch.script, launch.flags) == (program, "", {"nnodes": "2"})
    text = f"{HEAD}  replicaSpecs: {{worker: {{replicas: 3, {POD.replace('[python, t.py]', json.dumps(command))}}}}}"
    arguments = convert(text, "f").arguments
    assert (arguments["script"], arguments["nodes"]) == (COMMAND, 2)
    assert json.loads(*shlex.split(arguments["script_args"])) == {"worker": shlex.join(program)}


@pytest.mark.parametrize(("command", "is_told"), [("torchrun --max-restarts=2", False), ("python", True)])
def test_a_script_on_a_volume_is_started_by_the_nodes_alone(command: str, is_told: bool) -> None:
    line = ["sh", "-c", f"cd /code/src && A=1 {command} t.py --x"]
    mounted = "image: i, volumeMounts: [{name: code, mountPath: /code}],"
    pod = POD.replace("[python, t.py]", json.dumps(line)).replace("image: i,", mounted)
    conversion = convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f")
    commands = json.loads(*shlex.split(conversion.arguments["script_args"]))
    assert conversion.arguments["script"] == COMMAND
    assert shlex.split(commands["worker"]) == (line if is_told else ["python", "t.py", "--x"])
    assert is_told == ("unchanged" in "".join(conversion.notes))
    as_a_file = pod.replace("mountPath: /code", "mountPath: /code/src/t.py")
    assert convert(f"{HEAD}  replicaSpecs: {{worker: {{{as_a_file}}}}}", "f").arguments["script"] == COMMAND
    beside = pod.replace("mountPath: /code", "mountPath: /code/sr")
    assert convert(f"{HEAD}  replicaSpecs: {{worker: {{{beside}}}}}", "f").arguments["script"] == "/code/src/t.py"


@pytest.mark.parametrize(
    ("flags", "arguments"), [([], ("--local-rank=${local_rank}", "--x")), (["--use-env"], ("--x",))]
)
def test_the_launcher_that_passes_a_local_rank_is_taken_at_its_word(
    flags: list[str], arguments: tuple[str, ...]
) -> None:
    command = ["python", "-m", "torch.distributed.launch", "--nproc_per_node=2", *flags, "t.py", "--x"]
    launch = parse_launch(command, {})
    assert launch
    assert (launch.script, launch.script_arguments) == ("t.py", arguments)
    assert launch.flags == {"nproc_per_node": "2"}
    pod = POD.replace("[python, t.py]", json.dumps(command))
    converted = convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f").arguments
    words = shlex.split(converted["script_args"])
    assert worker_command(words, local_rank=1) == tuple(word.replace("${local_rank}", "1") for word in arguments)


def test_no_worker_starts_a_launcher_where_roles_have_each_their_own() -> None:
    chief, worker = (POD.replace("[python, t.py]", f"[torchrun, --max-restarts=2, {name}.py]") for name in "ab")
    conversion = convert(f"{HEAD}  replicaSpecs: {{chief: {{{chief}}}, worker: {{{worker}}}}}", "f")
    commands = json.loads(*shlex.split(conversion.arguments["script_args"]))
    assert commands == {"chief": "python a.py", "worker": "python b.py"}
    assert conversion.arguments["max_restarts"] == 2


def of_roles(**roles: tuple[int, str]) -> Conversion:
    """An ElasticJob of these roles, each with its nodes and the words of its command."""
    pods = {name: POD.replace("[python, t.py]", json.dumps(line.split())) for name, (_, line) in roles.items()}
    entries = (f"{name}: {{replicas: {nodes}, {pods[name]}}}" for name, (nodes, _) in roles.items())
    return convert(f"{HEAD}  replicaSpecs: {{{', '.join(entries)}}}", "f")


def sizes_of(conversion: Conversion) -> dict[str, tuple[int, int, int]]:
    roles = conversion.arguments["job_spec"]["replicaSpecs"]
    return {name: (role["minReplicas"], role["replicas"], role["slots"]) for name, role in roles.items()}


def test_a_launchers_nodes_and_workers_are_those_of_its_own_role() -> None:
    launched = "dlrover-run --nnodes=2:4 --nproc_per_node=8 train.py"
    conversion = of_roles(worker=(4, launched), evaluator=(1, "python eval.py"))
    assert sizes_of(conversion) == {"worker": (2, 4, 8), "evaluator": (1, 1, 1)}
    assert not [note for note in conversion.notes if "launcher's" in note]


def test_a_number_of_nodes_that_roles_have_together_is_no_roles_own() -> None:
    exact = of_roles(main=(1, "torchrun --nnodes=4 a.py"), worker=(3, "torchrun --nnodes=4 b.py"), eval=(1, "python c"))
    assert sizes_of(exact) == {"main": (1, 1, 1), "worker": (3, 3, 1), "eval": (1, 1, 1)}
    assert not [note for note in exact.notes if "--nnodes" in note]
    elastic = of_roles(main=(1, "torchrun --nnodes=2:4 a.py"), worker=(3, "torchrun --nnodes=2:4 b.py"))
    assert sizes_of(elastic) == {"main": (1, 1, 1), "worker": (3, 3, 1)}
    told = "the launcher's --nnodes=2:4: it counts nodes of several roles; nearest: minReplicas of each in a job spec"
    assert [f"f: {role}: {told}" in elastic.notes for role in ("main", "worker")] == [True, True]


def test_where_launchers_differ_in_what_is_the_whole_jobs_the_first_roles_counts_and_the_others_are_told() -> None:
    line = "torchrun --max-restarts={} --rdzv-conf=join_timeout={} {}.py"
    conversion = of_roles(chief=(1, line.format(2, 300, "a")), worker=(2, line.format(3, 600, "b")))
    assert conversion.arguments["max_restarts"] == 2
    assert conversion.arguments["job_spec"]["patience"] == {"joinTimeout": 300}
    assert [note for note in conversion.notes if "that of every role" in note] == [
        "f: worker: the launcher's max_restarts 3: no counterpart; nearest: 2, that of every role",
        "f: worker: the launcher's joinTimeout 600.0: no counterpart; nearest: 300.0, that of every role",
    ]


def test_every_switch_of_our_own_launcher_is_known_as_one() -> None:
    switches = {action.dest for action in Parser({})._actions if isinstance(action, SwitchAction)}
    assert {"virtual_local_rank", "network_check"} <= switches <= TORCHRUN.switches


@pytest.mark.parametrize(
    "switch",
    ["auto_config", "auto-tunning", "save_at_breakpoint", "comm-perf-test", "numa_affinity", "run-path",
     "virtual-local-rank"],
)  # fmt: skip
def test_a_switch_takes_no_word_with_it(switch: str) -> None:
    launch = parse_launch(["dlrover-run", "--max-restarts=4", f"--{switch}", "train.py", "data.json"], {})
    assert launch
    assert (launch.script, launch.script_arguments) == ("train.py", ("data.json",))


def test_a_flag_before_another_flag_is_a_switch_and_before_a_negative_number_none() -> None:
    launch = parse_launch(["torchrun", "--own-switch", "--own-number", "-1", "--own-text=-x", "t.py"], {})
    assert launch
    assert launch.flags == {"own_switch": "true", "own_number": "-1", "own_text": "-x"}
    assert launch.script == "t.py"


def test_auto_config_is_all_nodes_each_with_a_worker_for_each_device_and_from_four_nodes_on_a_check() -> None:
    command = ["dlrover-run", "--auto-config", "--nnodes=1:2", "--nproc_per_node=2", "t.py"]
    for place, flags in (
        (Place(4, 8), {"nproc_per_node": "8", "network_check": "true"}),
        (Place(3, 8), {"nproc_per_node": "8"}),
        (Place(3), {"nproc_per_node": "2"}),
    ):
        launch = parse_launch(command, {}, place)
        assert launch
        assert launch.flags == flags


@pytest.mark.parametrize(
    ("line", "folder", "variables", "others"),
    [
        ("cd /w && A=1 B=2 torchrun a.py", "/w", {"A": "1", "B": "2"}, ()),
        ("cd /w && cd ../v && torchrun a.py", "/v", {}, ()),
        ("cd w && torchrun a.py", "", {}, ("cd w",)),
        ("export A='1 2' B= && export C=$D && torchrun a.py", "", {"A": "1 2", "B": ""}, ("export C=$D",)),
        ("export A=1 && echo A && torchrun a.py", "", {"A": "1"}, ("echo A",)),
        ("export A=$NODE_NUM && torchrun a.py", "", {"A": "4"}, ()),
        ("NODE_RANK=$RANK DLROVER_MASTER_ADDR=$MASTER_ADDR:$MASTER_PORT dlrover-run a.py", "", {}, ()),
        ("(bash chaos.sh cpu-overload &) && cd /w && dlrover-run a.py", "/w", {}, ("(bash chaos.sh cpu-overload &)",)),
        ("cd /w && # x\n export A=1 &&\n\n torchrun a.py", "/w", {"A": "1"}, ()),
        ("cd /w && export A=1\ntorchrun a.py", "/w", {"A": "1"}, ()),
        ("cd /w && pip install x | tee log\ntorchrun a.py", "/w", {}, ("pip install x | tee log",)),
        ("pip install x; export A=1 && torchrun a.py", "", {"A": "1"}, ("pip install x",)),
        ("set -e\nset -euo pipefail\n# don't\ncd /w # a; b\nA=1 exec env B=2 torchrun \\\n a.py", "/w",
         {"A": "1", "B": "2"}, ()),
        ("echo 'a && b; c'; A=$(x; y) && torchrun a.py", "", {}, ("echo 'a && b; c'", "A=$(x; y)")),
        ("x && export A=1; y && export B=2 && torchrun a.py", "", {"B": "2"}, ("x && export A=1", "y")),
    ],
)  # fmt: skip
def test_what_the_shell_does_first(line: str, folder: str, variables: dict[str, str], others: tuple[str, ...]) -> None:
    launch = parse_launch(["sh", "-c", line], {"NODE_NUM": "4"})
    assert launch
    start = launch.start
    assert (launch.script, start.folder, dict(start.variables), start.others) == ("a.py", folder, variables, others)


@pytest.mark.parametrize("output", ["2>&1 | tee -a /log/x", "> log 2>&1", "|& tee log", "2>&1"])
def test_where_a_launchers_output_goes_is_listed(output: str) -> None:
    pod = POD.replace("[python, t.py]", json.dumps(["bash", "-c", f"torchrun t.py --x 1 {output}"]))
    conversion = convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f")
    assert (conversion.arguments["script"], conversion.arguments["script_args"]) == ("t.py", "--x 1")
    assert f"f: the command's `{output}` is left out; nearest: everstep workflow logs" in conversion.notes


@pytest.mark.parametrize(
    ("command", "starter"),
    [
        (["tool", "--dry-run", "deepspeed", "--x"], ""),
        (["sh", "-c", "torchrun a.py; echo done"], "torchrun"),
        (["bash", "-c", "if x; then /opt/bin/torchrun \\\n a.py; fi"], "torchrun"),
        (["python", "-m", "pkg", "&&", "python", "-m", "torch.distributed.run", "a.py"], "torch.distributed.run"),
        (["sh", "-c", "accelerate launch a.py; echo done"], "accelerate launch"),
        (["sh", "-c", "x || deepspeed a.py --deepspeed ds.json"], "deepspeed"),
        (["mpirun", "-np", "2", "python", "a.py"], "mpirun"),
        (["python", "-m", "a", "--deepspeed", "ds.json"], ""),
        (["python", "-m", "a", "torchrun"], ""),
        (["python", "-m", "a", "--strategy", "deepspeed", "--x"], ""),
        (["bash", "-lc", "A=1 mpirun -np 2 python a.py; echo done"], "mpirun"),
        (["sh", "-c", "pip install deepspeed x && python -m p"], ""),
        (["uv", "run", "torchrun", "t.py"], "torchrun"),
    ],
)  # fmt: skip
def test_what_starts_processes_in_each_worker_is_told(command: list[str], starter: str) -> None:
    pod = POD.replace("[python, t.py]", json.dumps(command))
    notes = convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f").notes
    more = f", in which `{starter}` starts processes of its own, each alone; nearest: " if starter else ""
    (note,) = (note for note in notes if "unchanged" in note)
    assert note.startswith(f"f: worker: each worker runs its command unchanged{more}")
    assert starter or note.endswith("unchanged")


def test_its_folder_and_variables_are_the_pods_and_the_rest_is_listed() -> None:
    line = "pip install x && cd src && export A=1 && B=2 torchrun t.py"
    command = POD.replace("[python, t.py]", json.dumps(["bash", "-c", line]))
    pod = command.replace("image: i,", "image: i, workingDir: /w, env: [{name: A, value: old}, {name: C, value: c}],")
    conversion = convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f")
    assert conversion.arguments["script"] == "/w/src/t.py"
    template = conversion.arguments["job_spec"]["replicaSpecs"]["worker"]["template"]
    (container,) = template["spec"]["containers"]
    assert container == {
        "workingDir": "/w/src",
        "env": [{"name": name, "value": value} for name, value in (("C", "c"), ("A", "1"), ("B", "2"))],
    }
    assert "f: the command's `pip install x` is left out; nearest: the image, or `env`" in conversion.notes
