"""Here, or on an Argo: which, and why."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from everstep.runtime.submission.route import ApiError, Route


class TargetError(ValueError):
    """The wanted target does not exist. One line: what, and how to fix it."""


class Target(NamedTuple):
    """Where a pipeline runs."""

    route: Route | None
    """None: on this machine."""
    reason: str

    @property
    def name(self) -> str:
        """`local` or `argo`."""
        return "argo" if self.route else "local"


def choose(target: Literal["auto", "local", "argo"], environment: Mapping[str, str], namespace: str = "") -> Target:
    """ARGO_SERVER first, then a kube context whose cluster serves argoproj.io, else this machine.

    `namespace`: "" for ARGO_NAMESPACE, else the context's or the server's own. Raises TargetError when `argo` is wanted
    and there is no way to one, and when ARGO_SERVER is set and does not answer.
    """
    if target == "local":
        return Target(None, "--target local")
    namespace = namespace or environment.get("ARGO_NAMESPACE", "")
    try:
        if environment.get("ARGO_SERVER", "").strip():
            from everstep.runtime.submission.argo_server import ArgoServer

            return Target(ArgoServer(environment, namespace), "ARGO_SERVER")
        return (
            _require_context(environment, namespace) if target == "argo" else _context_or_local(environment, namespace)
        )
    except ApiError as error:
        raise TargetError(f"target argo: {error}") from None


def _require_context(environment: Mapping[str, str], namespace: str) -> Target:
    from everstep.runtime.submission.custom_resource import CustomResource

    route = CustomResource(environment, namespace)
    if not route.serves_argo():
        raise TargetError(
            f"target argo: {route.where} does not know Workflows (no argoproj.io); install Argo Workflows there, "
            "set ARGO_SERVER, or use --target local"
        )
    return Target(route, route.where)


def _context_or_local(environment: Mapping[str, str], namespace: str) -> Target:
    if not _has_configuration(environment):
        return Target(None, "no ARGO_SERVER, no kube config")
    from everstep.runtime.submission.custom_resource import CustomResource

    try:
        route = CustomResource(environment, namespace)
        if route.serves_argo():
            return Target(route, f"{route.where} serves argoproj.io")
        return Target(None, f"no ARGO_SERVER, {route.where} has no Argo")
    except ApiError as error:
        return Target(None, f"no ARGO_SERVER, the kube config cannot be used: {error.trouble}")


def _has_configuration(environment: Mapping[str, str]) -> bool:
    """Whether there is a kube configuration at all."""
    from everstep.runtime.submission.kube_config import config_files

    return bool(config_files(environment) or environment.get("KUBERNETES_SERVICE_HOST"))
