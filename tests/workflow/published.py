"""The published examples of Argo Workflows 4.0.2: how each ends on Argo. Written from reading them, before any was run.

The key is a file, with `#NAME` where it has several Workflows; `FILE@NAME` is a WorkflowTemplate that is submitted by
its name (`argo submit --from`). `CLUSTER` says of the others which service they need that no laptop has.
"""

from typing import NamedTuple

from everstep.runtime.workflow.run.control_requests import ControlRequest


class ExpectedEnd(NamedTuple):
    """How an example ends, and what the test does for it."""

    phase: str
    asks: tuple[ControlRequest, ...] = ()
    """What a person does when a step waits for one."""
    real_time: bool = False
    """Its sleeps are not shortened: deadlines stand against them."""
    why: str = ""


S, F = "Succeeded", "Failed"
APPROVED = (ControlRequest("set", "displayName=approval", parameters={"approve": "YES"}), ControlRequest("resume"))
SAID = (ControlRequest("set", "displayName=approve", parameters={"message": "hello"}), ControlRequest("resume"))
LATE = "a deadline ends what sleeps longer"
DICE = "the first throw of its dice is bad, and it has no second"

WELL = """
archive-location arguments-parameters-from-configmap arguments-parameters artifact-disable-archive artifact-gc-workflow
artifact-passing-subpath artifact-passing artifact-path-placeholders artifact-repository-ref
artifacts-workflowtemplate@artifacts coinflip-recursive coinflip colored-logs conditional-artifacts
conditional-parameters conditionals-complex conditionals continue-on-fail cron-backfill@job cron-backfill#backfill-v2
daemon-nginx daemon-step dag-coinflip dag-conditional-artifacts dag-conditional-parameters dag-custom-metrics
dag-daemon-retry-strategy dag-daemon-task dag-diamond-steps dag-diamond dag-enhanced-depends
dag-inline-clusterworkflowtemplate@dag-inline dag-inline-workflow dag-inline-workflowtemplate@dag-inline dag-multiroot
dag-nested dag-targets default-pdb-support dns-config exit-code-output-variable exit-handler-dag-level
exit-handler-step-level exit-handler-with-artifacts exit-handler-with-param expression-destructure-json-complex
expression-destructure-json expression-reusing-verbose-snippets expression-tag-template-workflow
fibonacci-seq-conditional-param forever gc-ttl global-outputs
global-parameters-from-configmap-referenced-as-local-variable global-parameters-from-configmap global-parameters
handle-large-output-results hello-world http-hello-world http-success-condition image-pull-secrets init-container
input-artifact-raw key-only-artifact label-value-from-workflow life-cycle-hooks-tmpl-level life-cycle-hooks-wf-level
loops-dag loops-maps loops-param-argument loops-param-result loops-sequence loops map-reduce memoize-simple
nested-workflow node-selector output-parameter parallelism-limit parallelism-nested-dag parallelism-nested-workflow
parallelism-nested parallelism-template-limit parameter-aggregation-dag parameter-aggregation-script
parameter-aggregation pod-metadata-wf-field pod-metadata pod-spec-from-previous-step pod-spec-patch-wf-tmpl
pod-spec-patch pod-spec-yaml-patch recursive-for-loop retry-backoff retry-container-to-completion retry-container
retry-on-error retry-script retry-with-steps scripts-bash scripts-javascript scripts-python secrets sidecar-nginx
sidecar status-reference steps-daemon-retry-strategy steps-inline-workflow steps synchronization-mutex-tmpl-level
synchronization-mutex-wf-level synchronization-tmpl-level synchronization-wf-level template-defaults template-on-exit
title-and-description-with-markdown volumes-emptydir volumes-existing volumes-pvc withsequence-nested-result
cluster-workflow-template/cluster-wftmpl-dag
cluster-workflow-template/clustertemplates@cluster-workflow-template-submittable
cluster-workflow-template/mixed-cluster-namespaced-wftmpl-steps
cluster-workflow-template/workflow-template-ref-with-entrypoint-arg-passing
cluster-workflow-template/workflow-template-ref container-set-template/graph-workflow
container-set-template/outputs-result-workflow container-set-template/parallel-workflow
container-set-template/sequence-workflow container-set-template/workspace-workflow
workflow-event-binding/github-path-filter-workflowtemplate@github-path-filter workflow-template/dag
workflow-template/hello-world workflow-template/retry-with-steps workflow-template/steps
workflow-template/templates@workflow-template-submittable workflow-template/workflow-archive-logs
workflow-template/workflow-template-ref-with-entrypoint-arg-passing workflow-template/workflow-template-ref
"""
OTHERWISE = {
    "custom-metrics": ExpectedEnd(F, why=DICE),
    "dag-continue-on-fail": ExpectedEnd(
        F, why="G is omitted since E has failed; an omitted leaf is as bad as its cause"
    ),
    "dag-disable-failFast": ExpectedEnd(F, why="C fails at each try; B, D and E still run"),
    "dag-task-level-timeout": ExpectedEnd(F, real_time=True, why=LATE),
    "exit-handler-slack": ExpectedEnd(F, why="its address is a blank to be filled in: the exit handler fails"),
    "exit-handlers": ExpectedEnd(F, why="it fails on purpose; its exit handler runs"),
    "intermediate-parameters": ExpectedEnd(S, APPROVED),
    "loops-arbitrary-sequential-steps": ExpectedEnd(F, why="the fourth item fails, and failFast stops the rest"),
    "pod-gc-strategy-with-label-selector": ExpectedEnd(F, why="one step fails on purpose"),
    "pod-gc-strategy": ExpectedEnd(F, why="one step fails on purpose"),
    "resubmit": ExpectedEnd(F, why=DICE),
    "retry-conditional": ExpectedEnd(F, why="its exit codes are 1 and 2; 1 is not tried again"),
    "step-level-timeout": ExpectedEnd(
        F, real_time=True, why="both exceed their timeouts as failures; sleep1 allows errors"
    ),
    "suspend-template-outputs": ExpectedEnd(S, SAID),
    "suspend-template": ExpectedEnd(S, (ControlRequest("resume"),)),
    "timeouts-step": ExpectedEnd(F, real_time=True, why=LATE),
    "timeouts-workflow": ExpectedEnd(F, real_time=True, why=LATE),
}
EXPECTED = {name: ExpectedEnd(S) for name in WELL.split()} | OTHERWISE
_BUCKET, _API, _GIT = "a bucket or store of somebody", "a Kubernetes API server (resource)", "repositories on GitHub"
_CRON, _EVENT, _DATABASE = "a scheduler (CronWorkflow)", "an event source", "a database for locks"
CLUSTER = {
    "arguments-artifacts": "a Kubernetes API server (kubectl)",
    "artifact-passing-explicit-plugin": "an artifact plugin",
    "artifactory-artifact": "an Artifactory",
    "buildkit-template": _GIT,
    "ci-output-artifact": _GIT,
    "ci-workflowtemplate": _GIT,
    "ci": _GIT,
    "cron-backfill#backfill-v1": _API,
    "cron-when": _CRON,
    "cron-workflow-multiple-schedules": _CRON,
    "cron-workflow": _CRON,
    "daemoned-stateful-set-with-service": _API,
    "dag-inline-cronworkflow": _CRON,
    "data-transformations": _BUCKET,
    "fun-with-gifs": _BUCKET,
    "hdfs-artifact": "an HDFS",
    "hello-hybrid": "a Windows node",
    "hello-windows": "a Windows node",
    "influxdb-ci": _GIT,
    "input-artifact-azure": _BUCKET,
    "input-artifact-gcs": _BUCKET,
    "input-artifact-git": _GIT,
    "input-artifact-http": "a Kubernetes API server (kubectl)",
    "input-artifact-oss": _BUCKET,
    "input-artifact-s3": _BUCKET,
    "k8s-jobs": _API,
    "k8s-orchestration": _API,
    "k8s-owner-reference": _API,
    "k8s-patch-json-pod": _API,
    "k8s-patch-json-workflow": _API,
    "k8s-patch-merge-pod": _API,
    "k8s-patch-pod": _API,
    "k8s-resource-log-selector": _API,
    "k8s-set-owner-reference": _API,
    "k8s-wait-wf": _API,
    "output-artifact-azure": _BUCKET,
    "output-artifact-gcs": _BUCKET,
    "output-artifact-s3": _BUCKET,
    "resource-delete-with-flags": _API,
    "resource-flags": _API,
    "sidecar-dind": "a privileged Docker",
    "synchronization-db-mutex-tmpl-level": _DATABASE,
    "synchronization-db-mutex-wf-level": _DATABASE,
    "synchronization-db-tmpl-level": _DATABASE,
    "synchronization-db-wf-level": _DATABASE,
    "webhdfs-input-output-artifacts": "a WebHDFS",
    "work-avoidance": _BUCKET,
    "workflow-of-workflows": _API,
    "workflow-event-binding/event-consumer-workfloweventbinding": _EVENT,
    "workflow-event-binding/event-consumer-workflowtemplate": _EVENT,
    "workflow-event-binding/github-path-filter-workfloweventbinding": _EVENT,
}
OBJECTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: artifact-repositories}
data:
  my-key: |
    s3: {keyFormat: "mine/{{workflow.name}}/{{pod.name}}"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: my-config}
data: {template: "2", workflow: "1"}
---
apiVersion: v1
kind: Secret
metadata: {name: my-secret}
stringData: {mypassword: swordfish}
"""
"""What the examples ask to be made first, besides the objects among them."""
IMAGES = {
    "argoproj/argosay": "argosay",
    "influxdb": "influxd",
    "nginx": "nginx",
    "remuslazar/gnuplot": "gnuplot",
    "alpine": "true",
}
SAY = """#!/bin/bash
case "${1:-}" in
  "") echo hello argo;;
  echo) if [ $# = 3 ]; then mkdir -p "$(dirname "$3")"; echo "$2" > "$3"; else echo "${2:-hello argo}"; fi;;
  cat) cat "$2";;
  *) exit 1;;
esac
"""
SERVE = """#!PYTHON
import http.server, os, socket, sys
class Server(http.server.ThreadingHTTPServer):
    allow_reuse_port = True
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        left = int(self.headers.get("content-length") or 0)
        self.rfile.read(left)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"welcome\\n")
    do_POST = do_GET
Server(("127.0.0.1", @PORT), Handler).serve_forever()
"""
PROGRAMS = {
    "argosay": SAY,
    "cowsay": '#!/bin/sh\necho "< $* >"\n',
    "sh": '#!/bin/bash\nexec /bin/bash "$@"\n',
    "sleep": '#!/bin/bash\nexec /bin/sleep "$(awk "BEGIN {print ${1%s} / 20}")"\n',
    "apk": "#!/bin/sh\nexit 0\n",
    "nginx": SERVE.replace("@PORT", "80"),
    "influxd": SERVE.replace("@PORT", "8086"),
    "gnuplot": "#!/bin/sh\necho drawn > /out/assets/global-temp.png\n",
}
"""Stand-ins for what images bring. The images' own sh is busybox's: it knows `[[`, `>&` and RANDOM, as bash does."""
DICE_OF = """
import fcntl, os, random
def _thrown():
    with open(os.path.join(os.environ["EVERSTEP_RUN_DIR"], "dice"), "a") as dice:
        fcntl.flock(dice, fcntl.LOCK_EX)
        dice.write(".")
        dice.flush()
        return dice.tell() % 2
if "ARGO_NODE_ID" in os.environ:
    random.choice = lambda all: all[-1 if _thrown() else 0]
    random.randint = lambda low, high: high if _thrown() else low
"""
"""Chance, so that each run is the same: the first throw of a run is the last face, the second the first, and so on."""
