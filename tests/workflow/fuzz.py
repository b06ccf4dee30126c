"""Hostile manifests, parameters and outputs of pods: one line says what is wrong, or the run has an end.

`run_case(seed)` makes a case of a recorded manifest, has it read, linted, run by the engine in virtual time (now and
then by the executor, with pods of which only the files are made), written as status and log and folded again. What may
come of it is named in `EXPECTED`; everything else, and what takes longer or more memory than is allowed, is a finding.
"""

import asyncio
import json
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from everstep.runtime.workflow import ManifestError, RunOptions, execute, parse
from everstep.runtime.workflow.engine import events
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.nodes import log_name
from everstep.runtime.workflow.expressions import ExpressionError, evaluate
from everstep.runtime.workflow.expressions.builtins import BUILTINS, PREDICATES
from everstep.runtime.workflow.expressions.govaluate import should_run
from everstep.runtime.workflow.expressions.sprig import SPRIG
from everstep.runtime.workflow.expressions.tags import FUNCTIONS
from everstep.runtime.workflow.lint.lint import findings
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.parse import with_arguments
from everstep.runtime.workflow.manifest.schema import KINDS
from everstep.runtime.workflow.manifest.yaml_source import Document, ReadError, read_text
from everstep.runtime.workflow.run import status

GOLDEN = Path(__file__).with_name("golden")
EXPECTED = (ManifestError, ReadError, ExpressionError)
LIMIT_S, PATIENCE_S = 10.0, 120.0
"""Of a case: seconds of the processor, and on a machine that others use, too."""
EVENTS = 60
"""After so many, a run is stopped: not every one has an end of its own."""
NODES = 3_000
"""A run of more is not followed to its end: it would take too long for so many cases."""


class FindingError(Exception):
    """A case that came to something else."""


TEXTS = [
    "", " ", "\n", "0", "-0", "1", "-1", "1e3", "1e400", "1.50", "nan", "inf", "0x", "0x10", "99999999999999999999",
    "1" * 5000, "9223372036854775807", "-9223372036854775808", "1h1h", "-5s", "1e9h", "10", "9" * 30 + "h", "true",
    "null", "~", "{{", "}}", "{{}}", "{{=", "{{=}}", "{{=1", "{{item}}", "{{item.a}}", "{{inputs.parameters.x}}",
    "{{workflow.name}}", "{{workflow.parameters}}", "{{inputs.parameters}}", "{{retries}}", "{{=item}}",
    "{{=inputs.parameters.x}}", "{{steps.a.outputs.result}}", "{{tasks.a.outputs.parameters.x}}", "{{{{item}}}}",
    "{{a{{b}}}}", "{{" * 3000, "{{=" + "(" * 3000 + "1" + ")" * 3000 + "}}", "{{=repeat('a', 900000)}}",
    "{{=sprig.until(900000)}}", "{{=10 ** 10 ** 9}}", "{{=sprig.regexMatch('^(a+)+$', sprig.repeat(9999, 'a'))}}",
    "{{=toJson(workflow)}}", "{{=map(1..900000, {string(#)})}}", "{{=reduce(1..2000, [#acc, #acc])}}",
    "{{=reduce(1..99, #acc + #acc, 'a')}}", "[" * 3000, "[" * 3000 + "]" * 3000, "{\"a\":" * 3000,
    "[" + "1" * 5000 + "]", "[1e400, NaN]", "[null, 1.5, \"x\"]", "[[], {}, \"\\ud800\", \"\\u0000\"]",
    "[{\"a\": {\"b\": [1]}}]", "{\"a\": 1}", "\"x\"", "[\"{{item}}\"]", json.dumps(list(range(3000))), "a" * 300_000,
    "\0", "\x1b[31m", "\u2028", "\u00b2", "\u0663", "\u0130", "\U0001f600" * 90, "it's", "\"", "\\", "'", "`",
    "../../x", "/etc/passwd", "a/b", "a.b", "a-b", "-", ".", "#", "a && b", "a.Succeeded || !b", "(" * 3000,
    "!" * 3000, "a" + " && a" * 3000, "1 << 99", "1 % 0 == 1", "x in ('a', b)", "'a' =~ '('", "2 ** 9999 > 1", "%d",
    "%s", "%999999999d", "%.999999999d", "%c", "%", "%q%d%%", "10Gi", "1" * 3000 + "x", "3m", "Always", "Failed",
]  # fmt: skip
"""What is put into fields, parameters and outputs."""
NAMES = [*(f"sprig.{name}" for name in SPRIG), *BUILTINS, *PREDICATES]
OPERATORS = [
    "+",
    "-",
    "*",
    "/",
    "%",
    "**",
    "==",
    "<",
    "in",
    "contains",
    "matches",
    "&&",
    "||",
    "??",
    "..",
    "|",
    "^",
    "?:",
]
KNOWN = {"a": 3, "b": "text", "l": [1, "b", None, [2.5]], "m": {"k": {"x": 1}}, "inputs.parameters.x": "7"}


def expression(rng: random.Random, depth: int = 4) -> str:
    """Of expr-lang, mostly."""
    if depth == 0 or rng.random() < 0.2:
        plain = [
            "1", "0", "-1", "1.5", "9223372036854775807", "1000000", "'x'", "'(a+)+$'", "''", "true", "nil", "[]",
            "{}", "a", "b", "l", "m", "#", "#acc", "m.k.x", "l[0]", "inputs.parameters.x", "'[1,[2]]'", "'$..a'",
            "unknown",
        ]  # fmt: skip
        return rng.choice(plain)

    def inner() -> str:
        return expression(rng, depth - 1)

    kind = rng.randrange(9)
    if kind <= 3:
        name = rng.choice(NAMES)
        return f"{name}({', '.join(inner() for _ in range(rng.randrange(4)))})"
    if kind <= 5:
        return f"{inner()} {rng.choice(OPERATORS)} {inner()}"
    pieces = {
        6: lambda: f"[{inner()}, {inner()}]",
        7: lambda: f"{{'k': {inner()}}}",
        8: lambda: rng.choice([f"({inner()})", f"{inner()}[{inner()}]", f"{inner()}[{inner()}:]",
                               f"let q = {inner()}; q",
                               f"{inner()} ? {inner()} : {inner()}", f"!{inner()}", f"-{inner()}",
                               f"{inner()} | {rng.choice(NAMES)}()"]),
    }  # fmt: skip
    return pieces[kind]()


def condition(rng: random.Random) -> str:
    """Of govaluate, mostly."""
    words = [
        "a", "1", "'x'", "(", ")", "==", "!=", "&&", "||", "!", "-", "~", "<<", ">>", "**", "%", "in", "=~", "?",
        ":", ",", "true", "0x1f", "1e5", "[a b]", "'2020-01-01'", "99999999999999999999", "+", "/", "^", "&", "??",
        "'('",
    ]  # fmt: skip
    return " ".join(rng.choice(words) for _ in range(rng.randrange(1, 12)))


def text(rng: random.Random) -> str:
    """Some text."""
    kind = rng.randrange(8)
    if kind == 0:
        return "{{=" + expression(rng) + "}}"
    if kind == 1:
        return condition(rng)
    if kind == 2:
        return rng.choice(TEXTS) + rng.choice(TEXTS)
    return rng.choice(TEXTS)


def value(rng: random.Random, depth: int = 2) -> Any:
    """Something to put into a manifest."""
    kind = rng.randrange(10)
    if kind < 5:
        return text(rng)
    if kind == 5:
        return rng.choice([0, 1, -1, 2**31, 2**63 - 1, 2**64, 10**400, 1.5, 1e300, True, False, None])
    if kind == 6 or depth == 0:
        return rng.choice([[], {}, [""], {"": ""}, None])
    if kind == 7:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        fields = rng.choice(list(KINDS.values()))
        some = rng.sample(list(fields), min(len(fields), rng.randrange(1, 4)))
        return {field: value(rng, depth - 1) for field in some}
    return {text(rng)[:200]: value(rng, depth - 1)}


@cache
def recorded_manifests() -> list[list[Any]]:
    """The documents of every recorded manifest."""
    return [[document.value for document in read_text(path.read_text())] for path in sorted(GOLDEN.glob("*/*.yaml"))]


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in it."""
    for key, inner in list(
        node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    ):
        yield node, key
        yield from places(inner)


def mutate(rng: random.Random, documents: list[Any]) -> None:
    """Change one thing."""
    every = list(places(documents))
    holder, key = rng.choice(every)
    kind = rng.randrange(8)
    if kind < 4:
        leaves = [leaf for leaf in every if not isinstance(leaf[0][leaf[1]], dict | list)] or every
        holder, key = rng.choice(leaves)
        holder[key] = text(rng)
    elif kind == 4:
        holder[key] = value(rng)
    elif kind == 5 and isinstance(holder, dict):
        holder[rng.choice([field for fields in KINDS.values() for field in fields])] = value(rng)
    elif kind == 6:
        other, place = rng.choice(every)
        holder[key] = json.loads(json.dumps(other[place]))
    elif isinstance(holder, dict):
        del holder[key]
    else:
        holder.append(value(rng))


def manifest_text(rng: random.Random) -> str:
    """A file: of changed documents, or changed as a text."""
    documents = json.loads(json.dumps(rng.choice(recorded_manifests())))
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        mutate(rng, documents)
    manifest = "\n---\n".join(json.dumps(document) for document in documents)
    if rng.random() < 0.1:
        at = rng.randrange(len(manifest))
        hostile = [
            "[" * 5000,
            "{" * 5000,
            "&a [*a]",
            "*a",
            "\t",
            "\0",
            "!!python/object:os.system {}",
            "<<: 1",
            ": ",
            "]" * 9,
            "\ud800",
        ]
        manifest = manifest[:at] + rng.choice(hostile) + manifest[at + rng.randrange(3) :]
    if rng.random() < 0.02:
        manifest = (
            "l0: &l0 [x, x, x]\n"
            + "".join(f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}, *l{n - 1}]\n" for n in range(1, 30))
            + manifest
        )
    return manifest


def pod_end(rng: random.Random, engine: Engine, name: str, now: float) -> events.PodEnded:
    """A pod's end, with hostile outputs."""
    node = engine.state.nodes[name]
    outputs = node.spec.get("outputs") or {}
    values_by_name = {
        str(parameter["name"]): text(rng) for parameter in list_at(outputs, "parameters") if rng.random() < 0.9
    }
    keys = {str(artifact["name"]): text(rng) for artifact in list_at(outputs, "artifacts") if rng.random() < 0.9}
    code = rng.choice([0, 0, 0, 0, 0, 1, 64, 137, None])
    return events.PodEnded(now, name, code, values_by_name, keys, rng.choice(["", "", "", text(rng)]), "", text(rng))


def drive(rng: random.Random, engine: Engine) -> list[events.Event | float]:
    """Let the engine run in virtual time. Returns what it was told, and the times at which it was told nothing."""
    event_list: list[events.Event | float] = []
    now = engine.state.created

    def tell(event: events.Event) -> None:
        event_list.append(msgspec.json.decode(msgspec.json.encode(event), type=events.Event))
        engine.handle(event)

    while not engine.state.finished and len(engine.state.nodes) < NODES:
        now += 1.0
        if len(event_list) > EVENTS:
            tell(events.ShutdownAsked(now, "Terminate"))
        if engine.state.gates:
            tell(events.GateOpened(now, next(iter(engine.state.gates))))
        elif pending := engine.pending_pods():
            tell(events.PodStarted(now, pending[0].name, 7, 7))
        elif running := engine.running_pods():
            tell(pod_end(rng, engine, rng.choice(running).name, now))
        else:
            due = engine.next_deadline()
            if len(event_list) > EVENTS or due is None:
                tell(events.ShutdownAsked(now, "Terminate"))
                if (
                    due is None
                    and not engine.state.finished
                    and not engine.state.open_nodes()
                    and not engine.state.gates
                ):
                    raise FindingError("nothing of it runs or waits, and it does not end")
                break
            now = max(now, due)
            engine.advance(now)
            event_list.append(now)
    return event_list


class Files:
    """A runner whose pods are only the files that they leave."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def start(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Every pod has ended at once."""
        for request in requests:
            json.dumps(request).encode()
            for name in ("/tmp/o", "/tmp/x", "/tmp/out", "/tmp/result"):
                place = Path(request["root"] + name)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text(self._rng), errors="replace")
            Path(request["log"]).write_text("log")
            Path(request["claim"]).write_text(f"{os.getpid()} 1\n")
            Path(request["exit"] + ".stdout").write_text(text(self._rng), errors="replace")
            Path(request["exit"]).write_text(self._rng.choice(["0\n", "0\n", "0\n", "1\n", "x"]))
        return {str(request["claim"]): "started" for request in requests}

    async def wait_until_gone(self, pid: int, began: int) -> None:
        """It is."""

    def send_signal(self, pid: int, began: int, signum: signal.Signals) -> None:
        """Nobody is there to hear it."""

    def close(self) -> None:
        """Nothing to do."""


async def execute_it(rng: random.Random, manifest: dict[str, Any], library: Library) -> None:
    """By the executor, for some seconds; then somebody stops it."""
    from everstep.runtime.workflow.run.control_requests import ControlRequest, submit_request

    with tempfile.TemporaryDirectory(prefix="everstep-fuzz-") as folder:
        options = RunOptions(name="w", runs=Path(folder), library=library)
        run = asyncio.create_task(execute(manifest, options, runner=Files(rng)))
        finished_tasks, _ = await asyncio.wait([run], timeout=2.0)
        if not finished_tasks and (Path(folder) / "w/events.jsonl").exists():
            submit_request(Path(folder, "w"), ControlRequest("terminate"))
        await run


def with_executor(source: Any) -> bool:
    """Can it run without a network, a clock and a service?"""
    words = json.dumps(source)
    return not any(
        word in words for word in ("http", "s3", "git", "suspend", "daemon", "synchron", "hostPath", "memoize")
    )


def run_case(seed: int) -> str:
    """What came of it, in a word. Raises whatever is not expected."""
    rng = random.Random(seed)
    if rng.random() < 0.15:
        return random_expression(rng)
    yaml_text = manifest_text(rng)
    try:
        documents = read_text(yaml_text, "w.yaml")
        workflows = [
            document
            for document in documents
            if isinstance(document.value, dict) and document.value.get("kind") == "Workflow"
        ]
        if not workflows:
            return "no workflow"
        library = library_of([document.value for document in documents if document is not workflows[0]])
        source = with_arguments(workflows[0].value, {"x": text(rng), "n": text(rng)} if rng.random() < 0.3 else {})
        raised_findings = findings(Document(source, "w.yaml", workflows[0].lines), library)
        json.dumps([finding.text_with_place for finding in raised_findings])
        manifest = parse(source, library)
    except EXPECTED as error:
        one_line(error)
        return "refused"
    if rng.random() < 0.1 and with_executor(source):
        asyncio.run(execute_it(rng, source, library))
        return "executed"
    created = events.RunCreated(1_000_000.0, "w", "11111111-2222-3333-4444-555555555555")
    engine = Engine(manifest, created)
    event_list = drive(rng, engine)
    if len(engine.state.nodes) < NODES:
        with tempfile.TemporaryDirectory(prefix="everstep-fuzz-") as folder:
            status.StatusWriter(engine, Path(folder)).write()
            msgspec.json.decode(Path(folder, "workflow.json").read_bytes())
        for node in engine.state.nodes.values():
            assert len(os.fsencode(f"{log_name(engine.state.name, node)}.log")) <= 255
    again = Engine(parse(source, library), created)
    for event in event_list:
        again.advance(event) if isinstance(event, int | float) else again.handle(event)
    if [(n.name, n.phase) for n in again.state.nodes.values()] != [
        (n.name, n.phase) for n in engine.state.nodes.values()
    ]:
        raise FindingError("the log gives another state")
    return engine.phase.value


def library_of(objects: list[Any]) -> Library:
    """Of what can be one."""
    whole = [
        object_
        for object_ in objects
        if isinstance(object_, dict) and isinstance(object_.get("metadata"), dict) and object_.get("kind")
    ]
    return Library.from_objects(whole)


def random_expression(rng: random.Random) -> str:
    """An expression by itself."""
    try:
        if rng.random() < 0.3:
            should_run(condition(rng))
        else:
            evaluate(expression(rng, 6), KNOWN, FUNCTIONS)
    except ExpressionError:
        return "no value"
    return "value"


def one_line(error: Exception) -> None:
    """What is told of a manifest is one line."""
    if isinstance(error, ManifestError | ReadError) and "\n" in str(error).strip():
        raise FindingError(f"more than one line: {error}")


def run_limited(seed: int, case: Callable[[int], str] = run_case, limit_s: float = LIMIT_S) -> str:
    """The case, within its time. Raises FindingError with the seed for everything that may not be."""

    def on_timeout(*_: Any) -> None:
        raise TimeoutError(f"longer than {limit_s} s")

    recorded_manifests()
    before = [signal.signal(number, on_timeout) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        return case(seed)
    except Exception as error:
        raise FindingError(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)
