"""From a node to its pod and back: requests to the runner, and the results of pods that have ended."""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.runtime.net import web
from everstep.runtime.platform import STEP_LABEL
from everstep.runtime.workflow.artifacts import artifacts, repository
from everstep.runtime.workflow.artifacts.archives import DEFAULT_LIMITS, UnpackLimits
from everstep.runtime.workflow.artifacts.inside import BadPathError
from everstep.runtime.workflow.engine import containers
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import PodEnded
from everstep.runtime.workflow.engine.nodes import Node, log_name, node_id, pod_name
from everstep.runtime.workflow.engine.template_call import LOCATIONS
from everstep.runtime.workflow.expressions import ExpressionError, evaluate
from everstep.runtime.workflow.expressions.tags import substitute
from everstep.runtime.workflow.expressions.values import go_json
from everstep.runtime.workflow.local_pods import http_template, progress, volumes
from everstep.runtime.workflow.local_pods.clock import Clock
from everstep.runtime.workflow.local_pods.inherited_variables import inherited_variables
from everstep.runtime.workflow.local_pods.interpreter import search_path
from everstep.runtime.workflow.local_pods.pod import (
    NOT_STARTED,
    SCRIPT_PATH,
    UNWRITABLE_ERRNOS,
    Folders,
    Pod,
    PodError,
    check_command,
)
from everstep.runtime.workflow.local_pods.pod_outputs import collect
from everstep.runtime.workflow.local_pods.sandbox import Sandbox
from everstep.runtime.workflow.local_pods.spawner import RESULT_BYTES
from everstep.runtime.workflow.manifest.durations import parse_seconds
from everstep.runtime.workflow.manifest.environment import (
    ContainerCommand,
    container_command,
    expand_references,
    pod_facts,
)
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library


@dataclass(frozen=True)
class PodSettings:
    """What the person who runs a manifest sets for all of its pods."""

    path: tuple[Path, ...] = ()
    """Folders of programs."""
    variables: tuple[str, ...] = ()
    """Names of more launcher variables that pods inherit."""
    limits: UnpackLimits = DEFAULT_LIMITS
    sandbox: Sandbox | None = None
    work_dir: Path | None = None
    """Where containers begin that name no workingDir; None: at `/`."""


class PodLauncher:
    """The pods of one run."""

    def __init__(self, engine: Engine, folder: Path, clock: Clock, settings: PodSettings) -> None:
        self._sandbox = settings.sandbox
        self._clock = clock
        own = search_path(folder / "bin")
        self._path = os.pathsep.join([*map(str, settings.path), own, os.environ.get("PATH", "")])
        self._brought = settings.path
        self._variables = settings.variables
        self._engine = engine
        self._folder = folder
        self._folders = Folders(Path.cwd(), settings.work_dir and settings.work_dir.absolute())
        manifest = engine.state.manifest
        s3 = {} if engine.state.finished else manifest.library.artifact_repository(manifest.spec)
        self._repository = repository.Repository(folder.parent / "artifacts", manifest.library, s3, settings.limits)

    def pod(self, node: Node) -> Pod:
        """The folder and log of a node's pod. A node of a later life of the run has another folder."""
        logs = self._folder / "logs" / f"{log_name(self._engine.state.name, node)}.log"
        return Pod(progress.pod_folder(self._engine, node, self._folder), logs)

    async def run_data_template(self, node: Node) -> PodEnded:
        """Run a data template: list the paths of its source and transform them."""
        data: dict[str, Any] = node.spec["data"]
        try:
            keys: Any = await asyncio.to_thread(self._repository.list_keys, data["source"]["artifactPaths"])
            if not keys and not data.get("transformation"):
                keys = None  # Go's empty list, as its JSON says it.
        except artifacts.ArtifactError as error:
            return self._data_failure(node, f"source: unable to source artifact paths: {error}")
        for number, step in enumerate(list_at(data, "transformation")):
            try:
                keys = evaluate(str(step.get("expression") or "data"), {"data": keys})
            except ExpressionError as error:
                return self._data_failure(node, f"transformation: error processing data step {number}: {error}")
        return PodEnded(self._clock.now(), node.name, 0, result=go_json(keys))

    def _data_failure(self, node: Node, why: str) -> PodEnded:
        message = f"unable to process data template: unable to process data {why}"
        return PodEnded(self._clock.now(), node.name, 64, said=message)

    async def load_inputs(self, node: Node, ending: web.Ending) -> None:
        """Load a pod's input artifacts; `ending` may end the downloads. Raises ArtifactError."""
        pod = self.pod(node)
        for entry in node.inputs["artifacts"]:
            if entry.get("path") and any(entry.get(place) for place in LOCATIONS):
                await asyncio.to_thread(self._repository.load, entry, pod.artifact_path(entry), ending)

    def start_request(self, node: Node) -> dict[str, Any]:
        """The request with which the runner starts the pod.

        Raises PodError, MissingObjectError, and OSError where nothing can be written any more.
        """
        try:
            return self._start_request(node, self.pod(node))
        except BadPathError as error:
            raise PodError(str(error)) from None
        except OSError as error:
            if isinstance(error, PodError) or error.errno in UNWRITABLE_ERRNOS:
                raise
            raise PodError(f"{error.filename2 or error.filename or 'pod'}: {error.strerror or error}") from None

    def _start_request(self, node: Node, pod: Pod) -> dict[str, Any]:
        if node.spec.get("http"):
            command = ContainerCommand(
                http_template.prepare_command(
                    node.spec["http"], self._engine.state.manifest.library, pod.handoff_folder, pod.report_file
                ),
                inherited_variables(os.environ, self._variables),
            )
            return pod.start_request(node.spec, command, self._folders)
        several = containers.has_several_containers(node.spec)
        pod_mounts = self._pod_mounts(node, pod)
        command_request = (
            self._prepare_podrun(node, pod, pod_mounts)
            if several
            else self._container_command(node, self._main_container(node))
        )
        if not several and node.spec.get("script"):
            command_request = command_request._replace(command=[*command_request.command, SCRIPT_PATH])
        captures = node.captures and not several
        return pod.start_request(
            node.spec,
            command_request,
            self._folders,
            captures,
            pod_mounts.merged_mounts,
            pod_mounts.staged_paths,
            self._sandbox,
        )

    def _main_container(self, node: Node) -> Mapping[str, Any]:
        return node.spec.get("container") or node.spec["script"]

    def _prepare_podrun(self, node: Node, pod: Pod, pod_mounts: volumes.PodMounts) -> ContainerCommand:
        """Write the spec of several containers; returns the command of the program that runs them."""
        groups = containers.pod_containers(node.spec)
        strategy = (node.spec.get("containerSet") or {}).get("retryStrategy") or {}
        staged_paths = pod_mounts.staged_paths
        own = {
            name: {path: (staged_paths[mount.source], mount.read_only) for path, mount in some.items()}
            for name, some in pod_mounts.own.items()
        }
        spec: dict[str, Any] = {
            kind: [{**self._container_spec(node, container), "mounts": own[container["name"]]} for container in some]
            for kind, some in groups.items()
        }
        spec["retries"] = int(strategy.get("retries") or 0)
        spec["shut_in"] = self._sandbox is not None
        spec["wait_s"] = parse_seconds(strategy.get("duration") or 0)
        spec["capture"] = str(pod.stdout_of_several) if node.captures else ""
        spec["capture_bytes"] = RESULT_BYTES
        pod.handoff_folder.mkdir(parents=True, exist_ok=True)
        pod.spec_file.touch(0o600)
        pod.spec_file.write_text(json.dumps(spec))
        program = str(Path(__file__).with_name("podrun.py"))
        command = [sys.executable, "-I", "-S", program, str(pod.spec_file), str(pod.report_file)]
        return ContainerCommand(command, inherited_variables(os.environ, self._variables))

    def _container_spec(self, node: Node, container: Mapping[str, Any]) -> dict[str, Any]:
        command = self._container_command(node, container)
        check_command(command.command[0], command.environment.get("PATH"))
        script = [SCRIPT_PATH] if node.spec.get("script") and container.get("name") == "main" else []
        return {
            "name": container["name"],
            "command": [*command.command, *script],
            "environment": command.environment,
            "cwd": self._folders.begin(container, command.command),
            "dependencies": list_at(container, "dependencies"),
        }

    def _container_command(self, node: Node, container: Mapping[str, Any]) -> ContainerCommand:
        """Command and variables of a container: the launcher's own, Argo's, the container's."""
        engine = self._engine
        command = self._find_brought_program(
            container_command(container, engine.state.manifest.library, self._pod_facts(node))
        )
        name = str(container.get("name") or "main")
        is_step = name == "main" and STEP_LABEL in ((node.spec.get("metadata") or {}).get("labels") or {})
        return command._replace(environment={
            **inherited_variables(os.environ, self._variables, command.command, is_step=is_step),
            "PATH": self._path,
            "EVERSTEP_RUN_DIR": str(self._folder),
            "ARGO_CONTAINER_NAME": name,
            "ARGO_DEADLINE": "0001-01-01T00:00:00Z",
            "ARGO_INCLUDE_SCRIPT_OUTPUT": str(node.captures).lower(),
            "ARGO_NODE_ID": node_id(engine.state.name, node.name),
            "ARGO_PROGRESS_FILE": progress.PROGRESS_FILE,
            "ARGO_PROGRESS_FILE_TICK_DURATION": "3s",
            "ARGO_PROGRESS_PATCH_TICK_DURATION": "1m0s",
            "ARGO_WORKFLOW_NAME": engine.state.name,
            **command.environment,
        })  # fmt: skip

    def _pod_facts(self, node: Node) -> dict[str, str]:
        """What fieldRef reads of the pod, with the labels and annotations that Argo gives every pod."""
        engine = self._engine
        scope = engine.variables.global_scope(node.started)
        every, own = engine.state.manifest.spec.get("podMetadata") or {}, node.spec.get("metadata") or {}
        labels = {"workflows.argoproj.io/completed": "false", "workflows.argoproj.io/workflow": engine.state.name}
        annotations = {
            "workflows.argoproj.io/node-id": node_id(engine.state.name, node.name),
            "workflows.argoproj.io/node-name": node.name,
        }
        uid = uuid.uuid5(uuid.UUID(engine.state.uid), f"{node.name} {node.life}")
        return pod_facts(
            pod_name(engine.state.name, node.name, node.pod_template), scope["workflow.namespace"],
            scope["workflow.serviceAccountName"], str(uid),
            {**labels, **(every.get("labels") or {}), **(own.get("labels") or {})},
            {**annotations, **(every.get("annotations") or {}), **(own.get("annotations") or {})},
        )  # fmt: skip

    def _find_brought_program(self, command: ContainerCommand) -> ContainerCommand:
        """Replace an absolute program path that only the image has by a program of that name from `path`."""
        if not command.command:
            raise PodError("its container has no command, and what its image would run is not known here; give one")
        program = Path(command.command[0])
        if program.is_absolute() and not program.exists():
            places = [folder / program.name for folder in self._brought]
            own = next((place for place in places if place.exists()), program)
            return command._replace(command=[str(own), *command.command[1:]])
        return command

    def _pod_mounts(self, node: Node, pod: Pod) -> volumes.PodMounts:
        """Resolve the volumes that a pod's containers mount."""
        spec = self._engine.state.manifest.spec
        own = substitute(spec.get("volumes") or [], self._engine.variables.global_scope(node.started))
        if self._sandbox and any(volume.get("hostPath") for volume in [*own, *(node.spec.get("volumes") or [])]):
            raise PodError("a volume of kind hostPath leaves the sandbox")
        all_volumes = [*volumes.claim_volumes(spec, self._engine.state.name), *own, *(node.spec.get("volumes") or [])]
        library, facts = self._engine.state.manifest.library, self._pod_facts(node)
        every = [
            {
                **container,
                "volumeMounts": [
                    _expand_sub_path(mount, container, library, facts) for mount in list_at(container, "volumeMounts")
                ],
            }
            for some in containers.pod_containers(node.spec).values()
            for container in some
        ]
        return volumes.resolve_mounts(every, all_volumes, pod.folder, self._folder / "claims", library, facts)

    async def collect_end(self, node: Node) -> PodEnded:
        """The end of a pod whose process is gone, with its outputs. Its Secrets are removed."""
        pod = self.pod(node)
        try:
            return await self._collect_end(node, pod)
        finally:
            pod.forget_secrets()

    async def _collect_end(self, node: Node, pod: Pod) -> PodEnded:
        if node.spec.get("http"):
            outcome = http_template.read_outcome(node.spec["http"], pod.report_file)
            return PodEnded(
                self._clock.now(), node.name, None, error=outcome.error, said=outcome.failed, result=outcome.result
            )
        outputs = node.spec.get("outputs") or {}
        code = pod.exit_code()
        name = pod_name(self._engine.state.name, node.name, node.pod_template)
        scope = {**self._engine.variables.global_scope(node.started), "pod.name": name}
        prefix = substitute(str(self._repository.s3.get("keyFormat") or repository.KEY_FORMAT), scope)
        keys = {str(e["name"]): artifacts.artifact_key(e, prefix) for e in list_at(outputs, "artifacts")}
        if keys:
            pod_outputs = await asyncio.to_thread(collect, pod.folder, outputs, keys, self._repository)
        else:
            pod_outputs = collect(pod.folder, outputs, keys, self._repository)
        if pod_outputs.said and code == 0:
            code = NOT_STARTED
        # A killed launcher may have missed the end: the exit file's time tells when it was.
        at = self._clock.now() if code is None else self._clock.file_time(pod.exit_file.stat().st_mtime, node.started)
        return PodEnded(
            at, node.name, code, pod_outputs.parameters, pod_outputs.artifacts,
            pod_outputs.missing if code is not None else "", pod_outputs.said, pod.result() if node.captures else None,
            pod.container_exits(),
        )  # fmt: skip

    def remove_leftovers(self) -> None:
        """After the workflow has ended: remove its own volume claims, and Secrets of pods whose end was missed."""
        for folder in (self._folder / "pods").glob("*"):
            Pod(folder, folder).forget_secrets()
        volumes.remove_claims(self._engine.state.manifest.spec, self._engine.state.name, self._folder / "claims")


def _expand_sub_path(
    mount: Mapping[str, Any], container: Mapping[str, Any], library: Library, facts: Mapping[str, str]
) -> Mapping[str, Any]:
    """A volume mount whose subPathExpr reads the container's variables."""
    if not mount.get("subPathExpr"):
        return mount
    return {
        **mount,
        "subPath": expand_references(
            str(mount["subPathExpr"]), container_command(container, library, facts).environment
        ),
    }
