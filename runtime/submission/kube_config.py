"""Where the Kubernetes API is and how to log in to it: kubectl's search for a configuration.

KUBECONFIG, ~/.kube/config, then the pod's own service account. We read the files ourselves: the official client weighs
126 MB, and it goes on without a login when a plugin fails. Rules: kubernetes.io, "Organizing Cluster Access Using
kubeconfig Files" and "kubeconfig (v1)".
"""

import os
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from everstep.runtime.platform.kubernetes.api import Access, KubeError
from everstep.runtime.submission.kube_login import (
    Certificate,
    LoginError,
    User,
    impersonation_of,
    log_in,
    read_file_or_data,
)
from everstep.runtime.submission.route import ApiError, Trouble

NOT_FOUND = (
    "cannot find an Argo: set ARGO_SERVER (and ARGO_TOKEN), or KUBECONFIG to a kube config (there is no "
    "~/.kube/config, and this is not a pod)"
)
S = TypeVar("S")


class Cluster(msgspec.Struct, rename="kebab", frozen=True):
    """Where an API server is, and whom to trust there."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""


class Context(msgspec.Struct, frozen=True):
    """A cluster, a user and a namespace together."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedEntry(msgspec.Struct, frozen=True):
    name: str


class _NamedCluster(_NamedEntry, frozen=True):
    cluster: dict[str, Any] = {}


class _NamedContext(_NamedEntry, frozen=True):
    context: Context = Context()


class _NamedUser(_NamedEntry, frozen=True):
    user: User = User()


class _File(msgspec.Struct, rename="kebab", frozen=True):
    current_context: str = ""
    clusters: list[_NamedCluster] = []
    contexts: list[_NamedContext] = []
    users: list[_NamedUser] = []


@dataclass
class KubeConfig:
    """All files together: of each name the first file's entry counts, and the first file's current context."""

    current_context: str = ""
    clusters: dict[str, tuple[dict[str, Any], Path]] = field(default_factory=dict)
    """Each with the folder of its file, from which its relative paths lead."""
    contexts: dict[str, Context] = field(default_factory=dict)
    users: dict[str, tuple[User, Path]] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Iterable[Path]) -> "KubeConfig":
        """Raises ApiError for a file that is not a kube config."""
        merged_config = cls()
        for path in files:
            file, folder = _read_file(path), path.absolute().parent
            merged_config.current_context = merged_config.current_context or file.current_context
            for cluster in file.clusters:
                merged_config.clusters.setdefault(cluster.name, (cluster.cluster, folder))
            for context in file.contexts:
                merged_config.contexts.setdefault(context.name, context.context)
            for user in file.users:
                merged_config.users.setdefault(user.name, (user.user, folder))
        return merged_config

    def access(self, environment: Mapping[str, str], namespace: str) -> Access:
        """The current context's way to the API. Raises LoginError, or OSError for a file that it names."""
        if not self.current_context:
            raise LoginError("there is no current-context: choose one by `kubectl config use-context NAME`")
        context = _find_entry("context", self.current_context, self.contexts)
        fields, folder = _find_entry("cluster", context.cluster, self.clusters)
        cluster = msgspec.convert(fields, Cluster)
        if urlsplit(cluster.server).scheme not in ("http", "https"):
            raise LoginError(f"cluster {context.cluster}: server {cluster.server!r} is not an http:// or https:// URL")
        user, users_folder = _find_entry("user", context.user, self.users) if context.user else (User(), folder)
        login = log_in(context.user, user, users_folder, environment, fields)
        tls = _tls_context(cluster, folder, login.certificate)
        access = Access(
            cluster.server.rstrip("/"),
            namespace or context.namespace or "default",
            login.authorization,
            tls,
            cluster.tls_server_name,
            _proxy_of(context.cluster, cluster, environment),
            impersonation=impersonation_of(context.user, user),
        )
        if login.plugin is None:
            return access
        if isinstance(tls, ssl.SSLContext):
            login.plugin.load = partial(_load_certificate, tls)
        return replace(access, renew=login.plugin.renew, changes_certificate=login.plugin.certificate is not None)


def config_files(environment: Mapping[str, str]) -> list[Path]:
    """Those that KUBECONFIG names and that are there, else ~/.kube/config, as kubectl searches."""
    config_paths = environment.get("KUBECONFIG", "")
    home = Path(environment.get("HOME") or "/")
    paths = [Path(part) for part in config_paths.split(os.pathsep) if part] or [home / ".kube" / "config"]
    return [path for path in paths if path.is_file()]


def read_access(environment: Mapping[str, str], namespace: str) -> tuple[Access, str]:
    """The way to the API, and the name of the context ("": this pod's own account).

    `namespace`: "" for the context's or the pod's own. Raises ApiError when there is no way, or none that can be read.
    """
    if files := config_files(environment):
        config = KubeConfig.read(files)
        try:
            return config.access(environment, namespace), config.current_context
        except (LoginError, msgspec.ValidationError, OSError) as error:
            raise _unusable(files, error) from None
    try:
        own = Access.of_this_pod(environment)
    except KubeError:
        raise ApiError(Trouble.OTHER, NOT_FOUND) from None
    return Access(own.url, namespace or own.namespace, own.authorization, own.tls), ""


def _unusable(files: Iterable[Path], why: Exception) -> ApiError:
    file_names = ", ".join(map(str, files))
    return ApiError(Trouble.OTHER, f"{file_names}: {why}; `kubectl config get-contexts` shows it")


def _read_file(path: Path) -> _File:
    try:
        content = yaml.safe_load(path.read_text())
        return msgspec.convert(_without_nulls(content or {}), _File)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError, OSError) as error:
        raise _unusable([path], error) from None


def _without_nulls(value: Any) -> Any:
    """Kubernetes reads a field without a value as one that is not there."""
    match value:
        case dict():
            return {key: _without_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [_without_nulls(item) for item in value]
        case _:
            return value


def _find_entry(kind: str, name: str, entries: Mapping[str, S]) -> S:
    if name in entries:
        return entries[name]
    raise LoginError(f"there is no {kind} {name!r} (there are: {', '.join(sorted(entries)) or 'none'})")


def _tls_context(cluster: Cluster, folder: Path, certificate: Certificate | None) -> ssl.SSLContext | bool:
    """Raises OSError for a file that cannot be read, LoginError for an invalid certificate."""
    if not cluster.server.startswith("https"):
        return True
    authority_data = read_file_or_data(cluster.certificate_authority, cluster.certificate_authority_data, folder)
    try:
        context = ssl.create_default_context(cadata=authority_data.decode() if authority_data else None)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise LoginError(f"the certificate authority of {cluster.server} is not PEM: {error}") from None
    if cluster.insecure_skip_tls_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        _load_certificate(context, certificate)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """ssl loads files alone: they exist for that moment, in a folder that nobody else can read."""
    with tempfile.TemporaryDirectory() as folder:
        public, key = Path(folder) / "certificate", Path(folder) / "key"
        public.write_bytes(certificate.public)
        key.write_bytes(certificate.key)
        try:
            context.load_cert_chain(public, key)
        except ssl.SSLError as error:
            raise LoginError(f"the client certificate and its key do not fit: {error}") from None


def _proxy_of(name: str, cluster: Cluster, environment: Mapping[str, str]) -> str:
    """The cluster's own proxy, else what HTTPS_PROXY or HTTP_PROXY names; "": none. Raises LoginError."""
    proxy = cluster.proxy_url or _proxy_around(environment, cluster.server)
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise LoginError(f"cluster {name}: proxy {proxy!r}: only http:// and https:// proxies can be used")
    return proxy


def _proxy_around(environment: Mapping[str, str], url: str) -> str:
    """What HTTPS_PROXY or HTTP_PROXY names, with or without http://, unless NO_PROXY excepts the server."""
    from requests.utils import should_bypass_proxies

    name = f"{urlsplit(url).scheme}_proxy"
    proxy = environment.get(name) or environment.get(name.upper(), "")
    excepted = environment.get("no_proxy") or environment.get("NO_PROXY", "")
    if not proxy or should_bypass_proxies(url, excepted):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"
