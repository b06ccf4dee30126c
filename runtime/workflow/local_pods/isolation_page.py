"""docs/pod-isolation.md, made of the code's variables and limits by this module."""

from everstep.runtime.workflow.artifacts.archives import DEFAULT_LIMITS, UNPACKED_VARIABLE
from everstep.runtime.workflow.local_pods.inherited_variables import INHERITED_GROUPS, STORE_VARIABLES

DOCS = """\
# What pods of a local run can see and do

Made from `runtime/workflow/local_pods/inherited_variables.py` by
`python -m everstep.runtime.workflow.local_pods.isolation_page > docs/pod-isolation.md`; a test keeps it true.

A local run is not a sandbox: pods are processes of the user who runs them, and can do whatever that user can. The
following rules prevent harm from mistakes and careless manifests. They do not stop a malicious program.

## Variables
A pod gets the variables of its template, those that Argo gives every pod, and these variables of the launcher:

| variables | reason |
|---|---|
{variables}

`--env NAME` of `everstep workflow run` and of every pipeline adds one (`--env WANDB_API_KEY`, `--env 'AWS_*'`).

## Paths
Every file that a manifest names must lie within one folder: keys of artifacts in `runs/artifacts`, claims in
`runs/NAME/claims`, a volume's `subPath` and files in the volume, members of an archive in their own folder. Paths are
checked after all tags are replaced, with every link followed. `..`, an absolute path and a link that leads out are
errors of that step. The first `/` of a key is ignored, as in a bucket. Outputs are taken only from files that the pod
itself could see. Secrets as volumes are files of mode 0400 in folders of mode 0700, unless the manifest gives a mode.
They are removed when their pod has ended, or, if the launcher was killed, when the resumed run has ended. What `--with`
provided stays in `runs/NAME/beside.json`, of mode 0600, because the run may be resumed.

## Working directory
A container starts in `/` of its pod's own root, as in most images, or in its `workingDir`: `result.txt` is
`/result.txt`, and no file appears in your folder. With `--work-dir DIR`, a flag of `everstep workflow run` and of
pipelines, all containers start in that folder of this machine; `resume` and `retry` keep it. Everstep's own steps start
in your current folder, because their flags name your files. If the kernel has no mount namespaces, all containers do,
and the run says so.

## /tmp
A pod has its own `/tmp`, empty at first. If the pod's command, script or variables name something in a folder of this
machine's `/tmp`, the pod also sees that whole folder: `python /tmp/x/script.py` runs and finds the files beside it. So
pods that name the same folder share it, even if it already existed. Name a folder that no other program uses, or
declare the file as an output. Another user's folder can be read, but not written. A sandbox shows none of them.

## Archives
Argo's rules apply: a tar is gzipped; `..` in a member's name, and a link that leads out of the archive, fail the step.
Devices and pipes are skipped. An archive that would unpack to more than this is refused, and no part of it is kept:

| limit | | how to raise it |
|---|---|---|
| bytes, whatever the archive's size | {bytes} | `{unpacked}=BYTES` in the launcher's environment |
| bytes, relative to the archive's size (the larger of the two limits counts) | {ratio} x | the same |
| files, links and folders | {members} | pack them into an archive inside the archive |
| bytes of a name or extended header of a tar | {header} | |

## Addresses
Only `http` and `https` are allowed. A redirected request keeps its headers only on the same host and port (or on https
after http). A step fails with one line if an answer is shorter than its stated length, if the connection misbehaves in
another way, if less than 1 KiB of an artifact arrives in a minute, or if the artifact is larger than half of the free
disk space. `activeDeadlineSeconds` and stopping the run end a running request. An answer to an http template has at
most 16 MiB and must arrive within `timeoutSeconds` (30). A bucket at another endpoint than your environment's is
accessed only with the manifest's own keys (`accessKeySecret`, `secretKeySecret`); yours are never sent there.
"""


def render() -> str:
    """docs/pod-isolation.md."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in group.names)} | {group.why} |"
        for group in (*INHERITED_GROUPS, STORE_VARIABLES)
    ]
    return DOCS.format(
        variables="\n".join(rows), bytes=f"{DEFAULT_LIMITS.unpacked_bytes:,}", ratio=DEFAULT_LIMITS.ratio,
        unpacked=UNPACKED_VARIABLE,
        members=f"{DEFAULT_LIMITS.members:,}", header=f"{DEFAULT_LIMITS.header_bytes:,}",
    )  # fmt: skip


if __name__ == "__main__":
    print(render(), end="")
