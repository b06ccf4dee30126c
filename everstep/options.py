"""The flags that every pipeline has besides its own: where and how it runs."""

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from everstep.errors import BadInput
from everstep.flags import Flag

PullPolicy = Literal["", "Always", "IfNotPresent", "Never"]
"""imagePullPolicy of Kubernetes; empty: it chooses."""


@dataclass(frozen=True)
class Submission:
    """How and where to run; the same flags for every pipeline."""

    target: Literal["auto", "local", "argo"] = "auto"
    """local: on this machine. argo: on Argo Workflows, through the Argo Server of ARGO_SERVER (ARGO_TOKEN) or the
    current kube context. auto: argo if ARGO_SERVER is set or the context's cluster serves argoproj.io, else local."""
    output: Annotated[Literal["", "yaml"], Flag("-o")] = ""
    """yaml: print the manifest that would run, and do nothing else."""
    name: str = ""
    """Name of the run; an unfinished run of that name continues (Argo: is watched). Empty: generated."""
    store: str = "runs/store"
    """Keeps data, checkpoints and journals; runs share it. A directory, or s3://bucket/prefix (Argo needs that)."""
    runs: str = "runs"
    """Directory of the run folders."""
    env: tuple[str, ...] = ()
    """Local: one more variable of this shell to pass to pods (docs/pod-isolation.md); NAME* matches several."""
    work_dir: Annotated[str, Flag(metavar="DIR")] = ""
    """Local: where your own containers without a workingDir start; empty: at /, as in most images."""
    sandbox: bool = False
    """Local: isolate the steps' processes: they see no home and no other process, write only to their own folders and
    the store, and have no privileges."""
    no_network: bool = False
    """With --sandbox: no network either."""
    watch: bool = False
    """Argo: show the run until it ends (the default). Ctrl-C leaves it running."""
    detach: bool = False
    """Argo: submit, and do not wait."""
    logs: bool = False
    """Argo: print every line of the steps' logs, instead of each step's newest line."""
    namespace: Annotated[str, Flag("-n")] = ""
    """Argo: namespace; empty: ARGO_NAMESPACE, else the kube context's or the server's own."""
    service_account: str = ""
    """Argo: service account NAME of the pods; the train step uses NAME-train, Spark's driver on k8s:// NAME-spark.
    Empty: the namespace's default."""
    image: str = ""
    """Argo: image of the steps."""
    code: Annotated[str, Flag(metavar="DIR")] = ""
    """Argo: the project's folder. It is uploaded with the script, which starts in it. Files that .gitignore names stay
    here."""
    image_pull_secret: tuple[str, ...] = ()
    """Argo: Secret with the registry's credentials; may be given several times."""
    image_pull_policy: PullPolicy = ""
    """Argo: when nodes pull the image of the steps; empty: with the tag latest always, else if they lack it."""
    store_secret: str = "everstep-store"
    """Argo: Secret with the store's AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (AWS_REGION,
    AWS_SESSION_TOKEN); empty: the pods get these variables by other means."""

    def check(self, target: str, reason: str) -> None:
        """Raise BadInput for flags that have no effect on this target, or contradict each other."""
        if not self.store:
            raise BadInput("--store is empty: give a directory, or s3://bucket/prefix")
        if not self.runs or "://" in self.runs:
            raise BadInput(f"--runs {self.runs!r}: give a directory on this machine; --store may be in S3")
        if self.watch and self.detach:
            raise BadInput("--watch and --detach: give only one of them")
        if self.detach and self.logs:
            raise BadInput("--logs and --detach: logs can only be printed while waiting")
        if self.no_network and not self.sandbox:
            raise BadInput("--no-network: needs --sandbox, too")
        if self.work_dir and not os.path.isdir(self.work_dir):
            raise BadInput(f"--work-dir {self.work_dir}: not a folder")
        if target != "local" and self.work_dir:
            raise BadInput(f"--work-dir: only for local runs, and the target is {target} ({reason}): give a workingDir")
        if target != "local" and self.sandbox:
            raise BadInput(
                f"--sandbox: only for target local; pods of a cluster are isolated anyway (target {target}, {reason})"
            )
        if target == "local":
            plain = Submission()
            names = ("watch", "detach", "logs", "namespace", "service_account", "image", "code", "image_pull_secret",
                     "image_pull_policy", "store_secret")  # fmt: skip
            flags = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) != getattr(plain, name)]
            if flags:
                cluster = "set ARGO_SERVER, or KUBECONFIG to a cluster with Argo"
                there = "give --target argo" if reason == "--target local" else cluster
                raise BadInput(
                    f"{', '.join(flags)}: only for Argo, and the target is local ({reason}): run without, or {there}"
                )
        elif self.env:
            raise BadInput(f"--env: only for local runs, and the target is argo ({reason}): templates name Secrets")
        elif not self.store.startswith("s3://"):
            raise BadInput(
                f"target argo ({reason}): pods on different nodes share no folder: give --store s3://bucket/prefix "
                "(or --target local)"
            )
