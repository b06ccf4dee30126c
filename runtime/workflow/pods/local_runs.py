"""docs/local-runs.md, made of the code's variables and limits by this module."""

from everstep.runtime.workflow.artifacts.archives import DEFAULT_LIMITS, UNPACKED_VARIABLE
from everstep.runtime.workflow.pods.inherited import INHERITED_GROUPS, STORE_VARIABLES

DOCS = """\
# What a local run gives its pods, and what it keeps from them

Made from `runtime/workflow/pods/inherited.py` by
`python -m everstep.runtime.workflow.pods.local_runs > docs/local-runs.md`; a test keeps it true.

A local run is no sandbox: pods are processes of whoever runs them, and may do on this machine what that person may do.
What follows keeps mistakes and careless manifests from doing harm; it holds no program that means it.

## Variables
A pod has the variables that its template gives it, those that Argo gives every pod, and of the launcher's own these:

| variables | because |
|---|---|
{variables}

`--env NAME`, of `everstep workflow run` and of every pipeline, adds one (`--env WANDB_API_KEY`, `--env 'AWS_*'`).

## Paths
What a manifest calls a file lies inside of one folder: keys of artifacts in `runs/artifacts`, claims in
`runs/NAME/claims`, a volume's `subPath` and files in the volume, members of an archive in a folder of their own. It is
looked at after all tags are replaced, with every link followed. `..`, an absolute path and a link that leads out are
errors of that step; a key's first `/` does not count, as in a bucket. Of a pod's outputs only what the pod itself could
see is taken. Secrets as volumes are files of mode 0400 in folders of mode 0700, unless the manifest gives them a mode.
They go when their pod has ended; if its launcher was killed, when the run was taken up and has ended. What `--with`
brought stays in `runs/NAME/beside.json`, of mode 0600: the run may be taken up.

## /tmp
A pod has a `/tmp` of its own, empty at first. A folder of this machine's `/tmp` is in it, too, whole, if the pod's
command, script or variables name something in it: `python /tmp/x/script.py` runs, and finds what lies beside it. So
pods that name the same folder share it, and a folder that happened to be there: name one that no other program uses, or
declare the file as an output. A folder of another user's may be read there, not written. In a sandbox none is shown.

## Archives
Argo's rules: a tar is gzipped; `..` in a member's name, and a link that leads out of the archive, end the step. Devices
and pipes are left out. An archive that would unpack to more than this is refused, and nothing of it stays:

| limit | | how to raise it |
|---|---|---|
| bytes, whatever its size | {bytes} | `{unpacked}=BYTES` of who runs it |
| bytes, times its own size (the larger of the two counts) | {ratio} x | the same |
| files, links and folders | {members} | archive them again inside of it |
| bytes of a name or extended header of a tar | {header} | |

## Addresses
Only `http` and `https`. A header of a request goes along to another place only if that is on the same host and port (or
on https after http). An answer that is shorter than its length, and whatever else the wire does, ends that step in one
line; so does an artifact of which less than 1 KiB comes in a minute, or that is larger than half of what is left on the
disk. `activeDeadlineSeconds` and a stop end a request that is under way. The answer to an http template is at most
16 MiB, and it has `timeoutSeconds` (30) for all of it. A bucket at an endpoint that is not the one of your environment
is asked only with keys of the manifest's own (`accessKeySecret`, `secretKeySecret`): yours go to nobody else.
"""


def render() -> str:
    """docs/local-runs.md."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in one.names)} | {one.why} |"
        for one in (*INHERITED_GROUPS, STORE_VARIABLES)
    ]
    return DOCS.format(
        variables="\n".join(rows), bytes=f"{DEFAULT_LIMITS.unpacked_bytes:,}", ratio=DEFAULT_LIMITS.ratio,
        unpacked=UNPACKED_VARIABLE,
        members=f"{DEFAULT_LIMITS.members:,}", header=f"{DEFAULT_LIMITS.header_bytes:,}",
    )  # fmt: skip


if __name__ == "__main__":
    print(render(), end="")
