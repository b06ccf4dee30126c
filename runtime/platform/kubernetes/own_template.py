"""A role's own template over the pod spec that all nodes get from the train step's pod. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from everstep.runtime.job.pod_template import CONTAINER, SPEC, container_of
from everstep.runtime.platform.kubernetes.pods import Pod

_BY_NAME = {"env": "name", "volumeMounts": "mountPath", "volumes": "name"}
"""Lists whose entries replace those of the same key; others replace the whole list."""
_Entry = Mapping[str, Any]
_AGENTS = ("command", "args")
_CLUSTERS_DNS = {"dnsPolicy": "ClusterFirstWithHostNet"}
"""With the machine's network, ClusterFirst would be the machine's own DNS, which knows no Service, such as the store's
(Kubernetes, "DNS for Services and Pods")."""


def with_own_template(spec: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The pod spec as that role's pods have it."""
    first, *others = spec["containers"]
    container = {name: value for name, value in container_of(own).items() if name in CONTAINER and name not in _AGENTS}
    more = {name: value for name, value in (own.get("spec") or {}).items() if name in SPEC}
    if more.get("hostNetwork"):
        more = {**_CLUSTERS_DNS, **more}
    changed_spec = {**_merge_container(spec, more), "containers": [_merge_container(first, container), *others]}
    mounted_volumes = {
        mount["name"] for entry in changed_spec["containers"] for mount in entry.get("volumeMounts") or ()
    }
    return {
        **changed_spec,
        "volumes": [volume for volume in changed_spec.get("volumes") or () if volume["name"] in mounted_volumes],
    }


def with_own_metadata(pod: Pod, own: Mapping[str, Any]) -> Pod:
    """The pod with its role's labels and annotations; ours are stronger."""
    metadata = own.get("metadata") or {}
    both = {
        name: {**{key: str(value) for key, value in (metadata.get(name) or {}).items()}, **pod["metadata"][name]}
        for name in ("labels", "annotations")
    }
    return {**pod, "metadata": {**pod["metadata"], **both}}


def _merge_container(below: _Entry, above: _Entry) -> dict[str, Any]:
    keys_by_list = {name: key for name, key in _BY_NAME.items() if name in above}
    lists = {name: _by_key(below.get(name) or (), above[name] or (), key) for name, key in keys_by_list.items()}
    return {**below, **above, **lists}


def _by_key(below: Iterable[_Entry], above: Iterable[_Entry], key: str) -> list[_Entry]:
    return list({entry.get(key): entry for entry in (*below, *above)}.values())
