"""Recorded answers of Argo that this executor gives otherwise: what it does instead, and why.

`refused`: the manifest is refused before anything runs. `endless`: Argo never ends; here it is refused, or the node is
an Error that says so. Else the first kind of difference, as `golden_cases` names it.
"""

_CLUSTER = "only a cluster's API server knows that; here it is told before anything runs"
_ENDLESS = "on Argo nothing ever ends it; here it is told"

DIFFERENT: dict[str, tuple[str, str]] = {
    "flow/outputs-error-of-nested-dag-hangs": (
        "phase",
        "on Argo the outer DAG stays Running for ever; here it goes on",
    ),
    "flow/recursion-for-ever-fails": ("refused", "Argo goes 100 deep and fails; here it is told before anything runs"),
    "flow/items-map-null-value-fails": ("refused", "Argo takes it and fails it at once as an invalid spec"),
    "mistakes/expr-missing-output-key": ("phase", _ENDLESS),
    "mistakes/service-account-unknown": ("phase", "there are no service accounts on one machine"),
    "mistakes/unknown-field-letter-case": ("refused", "argo lint refuses it too; the HTTP API does not look at case"),
    "pods/art-directory-archive-modes": ("outputs", "Argo clears the umask of every container; here the user's stays"),
    "flow/skipped-result-hangs": ("endless", _ENDLESS),
    "flow/steps-same-group-reference-hangs": ("endless", _ENDLESS),
    "flow/withparam-empty-all-parameters-hangs": ("endless", _ENDLESS),
    "flow/withparam-empty-result": ("endless", _ENDLESS),
    "mistakes/parallelism-zero": ("endless", _ENDLESS),
    "mistakes/reference-to-non-ancestor-in-expression": ("endless", _ENDLESS),
    "mistakes/reference-to-non-ancestor-in-when": ("endless", _ENDLESS),
    "mistakes/reference-to-non-ancestor-inside-text": ("endless", _ENDLESS),
    "mistakes/reference-to-same-step-group": ("endless", _ENDLESS),
    "mistakes/artifact-path-duplicate-script": ("refused", _CLUSTER),
    "mistakes/artifact-two-locations": ("refused", "the second location is a real bucket; keep one"),
    "mistakes/env-name-bad": ("refused", _CLUSTER),
    "mistakes/image-pull-policy-unknown": ("refused", _CLUSTER),
    "mistakes/resource-limit-below-request": ("refused", _CLUSTER),
    "mistakes/secret-key-missing": (
        "refused",
        "on Argo the pod waits for the Secret until a deadline; here it is told",
    ),
    "mistakes/template-label-bad-value": ("refused", _CLUSTER),
    "mistakes/volume-claim-template-without-name": ("refused", _CLUSTER),
    "mistakes/volume-mount-unknown-volume": ("refused", _CLUSTER),
    "mistakes/volume-name-bad": ("refused", _CLUSTER),
    "pods/env-missing-configmap": (
        "refused",
        "on Argo the pod waits for the ConfigMap until a deadline; here it is told",
    ),
}
_NOT_BEGUN = "recorded before the container had begun, so without its exit code; five that had begun have it"
DIFFERENT |= {
    "pods/deadline-of-template": ("outputs", _NOT_BEGUN),
    "pods/deadline-of-template-with-retry": ("phase", f"{_NOT_BEGUN}; its expression asks for that"),
    "flow41/sequence-int64": ("phase", "on Argo the counter overflows and nothing ever ends; here there are two items"),
    "mistakes41/pod-resources-limit-below-request": ("refused", _CLUSTER),
    "pods41/deadline-workflow-onexit": ("message", "the kubelet's words or the controller's, whichever comes first"),
}
OF_CLUSTER = [
    "mistakes/init-container-named-init",
    "mistakes/memoize-without-cache",
    "mistakes/mutex-without-name",
    "mistakes/sidecar-duplicate-name",
    "mistakes/sidecar-named-main",
    "mistakes/sidecar-without-name",
]
DIFFERENT |= dict.fromkeys(OF_CLUSTER, ("refused", _CLUSTER))
MACHINE = {
    "pods/command-not-found": "asks for /etc/hostname not to be executable, which is so on most machines only",
}
"""Cases whose answer depends on the machine."""
