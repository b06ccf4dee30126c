"""Where the Kubernetes API is and how to log in to it: kubectl's search for a configuration.

KUBECONFIG, ~/.kube/config, then the pod's own service account. The official client reads the files, because it knows
the ways to log in (exec plugins, OIDC, client certificates); it sends no request but those that a login needs.
"""

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.runtime.platform.kubernetes.api import Access, KubeError
from everstep.runtime.submission.route import ApiError, Trouble

if TYPE_CHECKING:
    from kubernetes.client import Configuration

NOT_FOUND = (
    "cannot find an Argo: set ARGO_SERVER (and ARGO_TOKEN), or KUBECONFIG to a kube config (there is no "
    "~/.kube/config, and this is not a pod)"
)


def config_files(environment: Mapping[str, str]) -> list[Path]:
    """Those that KUBECONFIG names and that are there, else ~/.kube/config, as kubectl searches."""
    named = environment.get("KUBECONFIG", "")
    home = Path(environment.get("HOME") or "/")
    paths = [Path(one) for one in named.split(os.pathsep) if one] or [home / ".kube" / "config"]
    return [path for path in paths if path.is_file()]


def read_access(environment: Mapping[str, str], namespace: str) -> tuple[Access, str]:
    """The way to the API, and the name of the context ("": this pod's own account).

    `namespace`: "" for the context's or the pod's own. Raises ApiError when there is no way, or none that can be read.
    """
    if files := config_files(environment):
        return _read_files(files, namespace)
    try:
        own = Access.of_this_pod(environment)
    except KubeError:
        raise ApiError(Trouble.OTHER, NOT_FOUND) from None
    return Access(own.url, namespace or own.namespace, own.authorization, own.tls), ""


def _read_files(files: list[Path], namespace: str) -> tuple[Access, str]:
    from kubernetes import client, config
    from kubernetes.client.rest import should_bypass_proxies

    paths, settings = os.pathsep.join(map(str, files)), client.Configuration()
    try:
        _, current = config.list_kube_config_contexts(config_file=paths)
        config.load_kube_config(config_file=paths, client_configuration=settings)
        tls = _tls_context(settings)
    except (config.ConfigException, OSError) as error:
        named = ", ".join(map(str, files))
        raise ApiError(Trouble.OTHER, f"{named}: {error}; `kubectl config get-contexts` shows it") from None
    bypassed = should_bypass_proxies(settings.host, settings.no_proxy or "")
    access = Access(
        settings.host,
        namespace or current["context"].get("namespace") or "default",
        _authorization(settings),
        tls,
        settings.tls_server_name or "",
        "" if bypassed else settings.proxy or "",
    )
    return access, current["name"]


def _authorization(settings: "Configuration") -> "Callable[[], str]":
    """The header's value, asked of the configuration each time: it renews a token that has expired."""
    return lambda: settings.get_api_key_with_prefix("BearerToken") or ""


def _tls_context(settings: "Configuration") -> ssl.SSLContext | bool:
    """Raises OSError (of which ssl.SSLError is one) for a file that cannot be used."""
    if not settings.host.startswith("https"):
        return True
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if not settings.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context
