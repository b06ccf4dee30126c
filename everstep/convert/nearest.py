"""For a field without a counterpart: what comes nearest to it in Everstep or Argo."""

from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_NEAREST = {
    "dlrover-master": "the train step's own pod is the master",
    "autoScale": "everstep scale RUN --nodes N",
    "priority": "--priority-class, or priority in a job spec",
    "plugin": "not needed: workers find each other by RANK, WORLD_SIZE, MASTER_ADDR; hosts need no ssh",
    "frameworkType": "the roles launcher and another one for horovod; chief, worker, ps, evaluator for tensorflow",
    "tensorflow": "frameworkType: tensorflow in a job spec",
    "mpi": "frameworkType: horovod in a job spec",
    "namespace": "-n of kubectl and argo, --namespace of a pipeline",
    "dependsOn": "waitsFor in a job spec",
    "minSuccess": "completePolicy in a job spec",
    "claims": "devices by the name of a resource, such as nvidia.com/gpu",
    "resourceLimits": "resources in a job spec",
    "envs": "env of a role's template in a job spec",
    "restartTimeout": "restartTimeout in a job spec",
    "enableDynamicSharding": "everstep.shards in the script",
    "enableElasticScheduling": "everstep scale RUN --nodes N",
    "nprocPerNode": "slots in a job spec",
    "nproc_per_node": "--workers-per-node",
    "nnodes": "--nodes and --min-nodes",
    "plugins": "RANK, WORLD_SIZE, MASTER_ADDR, by which workers find each other; there is no /etc/volcano, and no ssh",
    "initContainers": "waitsFor in a job spec; else initContainers of the Argo template",
    "restartPolicy": "retryStrategy of the step, restartPolicy in a job spec",
    "schedulerName": "--gang volcano, koordinator, coscheduling or kueue",
    "serviceAccountName": "--service-account",
    "hostNetwork": "hostNetwork of the Workflow's spec",
    "policies": "restartPolicy, faultTolerantPolicy and completePolicy in a job spec",
    "ttlSecondsAfterFinished": "ttlStrategy of the Workflow's spec",
    "activeDeadlineSeconds": "activeDeadlineSeconds of the Argo template",
    "schedulingPolicy": "--gang and --queue",
    "suspend": "spec.suspend of the Workflow",
    "metrics": "everstep scale RUN --nodes N",
    "runtimeRef": "the image and command that stand in the job itself",
    "initializer": "the corpus and model steps of a pipeline",
    "podTemplateOverrides": "the Argo template's own fields",
    "headGroupSpec": "the train step's own pod",
    "rayStartParams": "not needed: no Ray is started",
    "rayVersion": "not needed: no Ray is started",
    "enableInTreeAutoscaling": "everstep scale RUN --nodes N",
    "autoscalerOptions": "everstep scale RUN --nodes N",
    "runtimeEnvYAML": "env of the Argo template, packages in the image",
    "shutdownAfterJobFinishes": "podGC of the Workflow's spec",
    "sidecar": "none: a node has one container; what another one does belongs in its command, or in its image",
    "topologySpreadConstraints": "not needed: nodes are spread over machines and zones, where there is room",
    "hostIPC": "not needed: the workers of a node are in one pod",
    "maxRetry": "restartLimit in a job spec",
    "volumes": "volumes and volumeMounts of a role's template in a job spec",
    "livenessProbe": "hang in a job spec",
    "ports": "not needed: pods of a job reach each other",
    "managedBy": "the controller's instance id",
}


def nearest(path: FieldPath, otherwise: str = "none; edit the Workflow") -> str:
    """Of the innermost part of the path that is known here."""
    answers = (_NEAREST[part] for part in reversed(path) if isinstance(part, str) and part in _NEAREST)
    return next(answers, otherwise)
