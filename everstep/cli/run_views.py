"""Views of runs, here or on a cluster, formatted as the `argo` command does: `argo get`, `argo list`, `argo logs`."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from everstep.errors import BadInput
from everstep.runtime.display.terminal import as_text
from everstep.runtime.display.times import long_duration, short_duration, unix_time

FOLLOW_EVERY_S = 0.3
FILES = ("manifest.json", "workflow.json")
"""A run begins with the first file; the second is written before any of its pods starts."""
NEWEST = "@latest"
"""Names the newest run, as for `argo`."""


def run_folders(runs: Path) -> list[Path]:
    """The folders of all runs, the oldest first. Raises BadInput."""
    return [folder for folder, _ in _runs_by_age(runs)]


def find_run_folders(runs: Path) -> Iterator[Path]:
    """The folders of all runs, in any order."""
    if runs.is_dir():
        with os.scandir(runs) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir()]
        yield from filter(_has_run, folders)


def _has_run(folder: Path) -> bool:
    try:
        return any((folder / file).is_file() for file in FILES)
    except PermissionError:  # Another user's private folder.
        return False


def _runs_by_age(runs: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    """Folder and head of all runs, the oldest first. Raises BadInput."""
    if runs.exists() and not runs.is_dir():
        raise BadInput(f"--runs {runs}: not a folder")
    runs_with_status = [(folder, read_head(folder)) for folder in find_run_folders(runs)]
    return sorted(runs_with_status, key=lambda run: (_creation_time(run[1]), run[0].name))


def run_folder(runs: Path, name: str) -> Path:
    """The folder of a run that has at least a manifest. Raises BadInput when there is none."""
    folder = runs / name
    if name == NEWEST and (folders := run_folders(runs)):
        return folders[-1]
    if Path(name).name != name or not any((folder / file).exists() for file in FILES):
        raise BadInput(f"{folder}: no such run; `everstep workflow list --runs {runs}` shows them")
    return folder


class _Spec(TypedDict, total=False):
    priority: Any


class _Status(TypedDict, total=False):
    phase: str
    message: str
    startedAt: str
    finishedAt: str


class _Head(TypedDict):
    metadata: dict[str, Any]
    spec: _Spec
    status: _Status


_decode_head = msgspec.json.Decoder(_Head).decode


def read_head(folder: Path) -> Mapping[str, Any]:
    """The run as Argo's object, without what a list of runs does not show: templates and nodes.

    A run with a message is read whole, as its nodes may tell more. Raises BadInput for a file that is not JSON.
    """
    try:
        head = _decode_head((folder / "workflow.json").read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return read_workflow(folder)
    return read_workflow(folder) if head["status"].get("message") else head


def read_workflow(folder: Path) -> dict[str, Any]:
    """The run as Argo's object; Pending and without nodes if its launcher has only written the manifest.

    Raises BadInput for a file that is not JSON.
    """
    try:
        return json.loads((folder / "workflow.json").read_text())
    except ValueError as error:
        raise BadInput(f"{folder / 'workflow.json'}: not JSON: {error}; resuming the run rewrites it") from None
    except FileNotFoundError:
        manifest_path = folder / "manifest.json"
        manifest, at = json.loads(manifest_path.read_text()), datetime.fromtimestamp(manifest_path.stat().st_mtime, UTC)
        metadata = {key: value for key, value in (manifest.get("metadata") or {}).items() if key != "generateName"}
        head = {"name": folder.name, "creationTimestamp": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
        return {**manifest, "metadata": {**metadata, **head}, "status": {"phase": "Pending", "nodes": {}}}


def run_view(workflow: Mapping[str, Any], now: float) -> str:
    """What `argo get` prints: the run's own lines, then its steps as a tree."""
    from everstep.runtime.submission import tree
    from everstep.runtime.workflow.run.view import MARKS

    lines = [f"{name + ':':<20} {as_text(str(value))}".rstrip() for name, value in _facts(workflow, now)]
    table = [("STEP", "TEMPLATE", "PODNAME", "DURATION", "MESSAGE")]
    for row in tree.folded_rows(workflow):
        waits = row.kind == "Suspend" and not row.phase.fulfilled
        mark = "ǁ" if waits else MARKS[row.phase][0]
        duration = short_duration((row.finished or now) - row.started) if row.pod and row.started else ""
        reference = (tree.workflow_nodes(workflow)[row.id].get("templateRef") or {}).get("name")
        template = f"{reference}/{row.template}" if reference else row.template
        title = as_text(f" {row.branch}{mark} {row.title}")
        table.append((title, template, row.pod, duration, as_text(row.message)))
    return "\n".join([*lines, "", *align_columns(table, 2)])


def _facts(workflow: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
    """The lines above the tree."""
    from everstep.runtime.workflow.run.own_errors import workflow_message

    metadata, spec, status = workflow["metadata"], workflow["spec"], workflow["status"]
    yield "Name", metadata["name"]
    yield "Namespace", metadata.get("namespace") or "default"
    yield "ServiceAccount", spec.get("serviceAccountName") or "unset"
    yield "Status", status["phase"]
    if message := workflow_message(status):
        yield "Message", message
    began, end_s = unix_time(status.get("startedAt")), unix_time(status.get("finishedAt"))
    for name, at in (("Created", _creation_time(workflow)), ("Started", began), ("Finished", end_s)):
        if at:
            yield name, f"{datetime.fromtimestamp(at, UTC):%a %b %d %H:%M:%S %z} ({long_duration(now - at)} ago)"
    yield "Duration", long_duration((end_s or now) - began if began else 0)
    yield "Progress", status.get("progress") or ""
    for title, holder in (("Parameters", spec.get("arguments")), ("Output Parameters", status.get("outputs"))):
        entries = [
            parameter for parameter in (holder or {}).get("parameters") or () if parameter.get("value") is not None
        ]
        if entries:
            yield title, ""
            yield from ((f"  {entry['name']}", str(entry["value"])) for entry in entries)


def workflows(runs: Path) -> list[Mapping[str, Any]]:
    """The heads of this machine's runs. Raises BadInput for no folder, and for a run that cannot be read."""
    return [workflow for _, workflow in _runs_by_age(runs)]


def list_view(workflows: Sequence[Mapping[str, Any]], now: float) -> str:
    """What `argo list` prints, with the newest run last."""
    if not workflows:
        return "No workflows found"
    table = [("NAME", "STATUS", "AGE", "DURATION", "PRIORITY", "MESSAGE")]
    for workflow in workflows:
        status, began = workflow["status"], unix_time(workflow["status"].get("startedAt"))
        duration = (unix_time(status.get("finishedAt")) or now) - began if began else 0
        age, message = short_duration(now - _creation_time(workflow)), as_text(_message(status))
        priority = str(workflow["spec"].get("priority") or 0)
        table.append((workflow["metadata"]["name"], status["phase"], age, short_duration(duration), priority, message))
    return "\n".join(align_columns(table, 3))


def _message(status: Mapping[str, Any]) -> str:
    if not status.get("message"):
        return ""
    from everstep.runtime.workflow.run.own_errors import workflow_message

    return workflow_message(status)


def _creation_time(workflow: Mapping[str, Any]) -> float:
    """When the run was created."""
    return unix_time(workflow["status"].get("startedAt") or workflow["metadata"].get("creationTimestamp"))


def log_lines(folder: Path, selector: str, follow: bool) -> Iterator[str]:
    """Lines as `argo logs` prints them, `POD: LINE`; of a training's nodes `STEP/NODE: LINE`. `selector` selects a pod,
    or steps and nodes whose name begins with it.

    `follow`: go on until the run has ended.
    """
    from everstep.runtime.system.rotate import read_on
    from everstep.runtime.workflow.run.run_folder import launcher_pid

    read: dict[Path, int] = {}
    while True:
        over = launcher_pid(folder) is None
        for path, pod in _pod_logs(folder, selector):
            before, text, begin = read_on(path, read.get(path))
            text = text if over or not follow else text[: text.rfind(b"\n") + 1]
            read[path] = begin + len(text)
            for line in (before + text).decode(errors="replace").splitlines():
                yield f"{as_text(pod)}: {as_text(line)}"
        if over or not follow:
            break
        time.sleep(FOLLOW_EVERY_S)
    if not read and selector:
        raise BadInput(f"{folder.name}: no pod of that name has a log, and no step or node begins with {selector!r}")


def _pod_logs(folder: Path, selector: str) -> Iterator[tuple[Path, str]]:
    """(log, pod) of the selected pods, in the order in which they started, then (log, STEP/NODE) of the trainings'
    nodes."""
    workflow = read_workflow(folder)
    nodes = [node for node in workflow["status"]["nodes"].values() if node.get("log")]
    for node in sorted(nodes, key=lambda node: (node.get("startedAt") or "", node["name"])):
        path = folder / "logs" / Path(node["log"]).name
        names = (node["displayName"], path.stem)
        if path.exists() and (node["podName"] == selector or any(name.startswith(selector) for name in names)):
            yield path, node["podName"]
    for title, path in node_logs(folder, workflow).items():
        if is_node_selected(title, selector):
            yield path, title


def node_logs(folder: Path, workflow: Mapping[str, Any]) -> dict[str, Path]:
    """The logs of the trainings' nodes, by STEP/NODE."""
    own = f"{workflow['metadata'].get('uid', '')}-"
    paths = sorted((folder / "logs").glob("*/*.log"))
    return {f"{path.parent.name.removeprefix(own)}/{path.stem}": path for path in paths}


def is_node_selected(title: str, selector: str) -> bool:
    """Whether `selector` is the beginning of a node's name, or of STEP/NODE, which `title` is."""
    return (title if "/" in selector else title.rpartition("/")[2]).startswith(selector)


def align_columns(table: list[tuple[str, ...]], gap: int) -> list[str]:
    """The rows (all of one length) as lines, each column as wide as its widest cell."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]) - 1)]
    return [
        "".join(cell.ljust(width + gap) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in table
    ]
