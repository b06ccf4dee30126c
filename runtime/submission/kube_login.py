"""What a kube config's user logs in with: a token, a certificate, a password, a program (exec plugin), an OIDC token.

Rules: kubernetes.io, "kubeconfig (v1)" and "Authenticating", section "client-go credential plugins".
"""

import base64
import binascii
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from everstep.runtime.platform.kubernetes.api import KubeError, bearer_from

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_CLUSTER_CONFIG = "client.authentication.k8s.io/exec"
"""The cluster's extension that a plugin receives."""


class LoginError(Exception):
    """A user of a kube config cannot log in: who and why, in one line."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of a plugin's environment."""

    name: str
    value: str


class Exec(msgspec.Struct, rename="camel", frozen=True):
    """A program that prints an ExecCredential."""

    command: str
    api_version: str
    args: list[str] = []
    env: list[Variable] = []
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"
    install_hint: str = ""


class AuthProvider(msgspec.Struct, frozen=True):
    """A way to log in that was once built into kubectl."""

    name: str
    config: dict[str, str] = {}


class User(msgspec.Struct, rename="kebab", frozen=True):
    """How one user logs in."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: Exec | None = None
    auth_provider: AuthProvider | None = None
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}


class Status(msgspec.Struct, rename="camel", frozen=True):
    """What a plugin tells: a token, a certificate, or both."""

    token: str = ""
    client_certificate_data: str = ""
    """PEM, as the key."""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class ExecCredential(msgspec.Struct, rename="camel", frozen=True):
    """What a plugin prints."""

    api_version: str
    kind: str
    status: Status


@dataclass(frozen=True)
class Certificate:
    """A client's certificate and its key, both PEM."""

    public: bytes
    key: bytes


@dataclass(frozen=True)
class KubeLogin:
    """What goes with a request."""

    authorization: Callable[[], str] = str
    """The header of that name; "": none. Raises KubeError when a new login fails."""
    certificate: Certificate | None = None
    plugin: "Plugin | None" = None
    """The program that both are from."""


def log_in(
    name: str, user: User, folder: Path, environment: Mapping[str, str], cluster: Mapping[str, Any]
) -> KubeLogin:
    """The login of the user `name`, whose relative paths lead from `folder`. Runs a plugin, if that is the way.

    A plugin that asks for it receives `cluster`. Raises LoginError, or OSError for a file.
    """
    certificate = _certificate_of(name, user, folder)
    if user.auth_provider:
        return KubeLogin(_authorization_by_provider(name, user.auth_provider), certificate)
    if user.token_file:
        bearer = bearer_from(folder / user.token_file)
        bearer()  # Fails now rather than at the first request.
        return KubeLogin(bearer, certificate)
    if user.token:
        return KubeLogin(lambda: f"Bearer {user.token}", certificate)
    if user.exec:
        plugin = Plugin(name, user.exec, folder, environment, cluster)
        return KubeLogin(plugin.authorization, plugin.certificate or certificate, plugin)
    if user.username:
        basic = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        return KubeLogin(lambda: f"Basic {basic}", certificate)
    return KubeLogin(certificate=certificate)


def impersonation_of(name: str, user: User) -> tuple[tuple[str, str], ...]:
    """The headers that say whom the user `name` acts as ("Authenticating", section "User impersonation").

    Raises LoginError.
    """
    more = [("Impersonate-Uid", user.as_uid)] if user.as_uid else []
    more += [("Impersonate-Group", group) for group in user.as_groups]
    for key, values in user.as_user_extra.items():
        more += [(f"Impersonate-Extra-{quote(key, safe='')}", value) for value in values]
    if more and not user.as_user:
        raise LoginError(f"user {name}: as-uid, as-groups and as-user-extra need `as`, the user to act as")
    return (("Impersonate-User", user.as_user), *more) if user.as_user else ()


def _certificate_of(name: str, user: User, folder: Path) -> Certificate | None:
    public = read_file_or_data(user.client_certificate, user.client_certificate_data, folder)
    key = read_file_or_data(user.client_key, user.client_key_data, folder)
    if bool(public) != bool(key):
        raise LoginError(f"user {name}: a client certificate needs both client-certificate and client-key")
    return Certificate(public, key) if public else None


def read_file_or_data(file: str, data: str, folder: Path) -> bytes:
    """A field of two spellings; the data counts where both are given. Raises OSError, or LoginError for no base64."""
    if not data:
        return (folder / file).read_bytes() if file else b""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise LoginError(f"a certificate or key is not base64: {error}") from None


class Plugin:
    """Asks a program for a credential, again when that has expired or is refused."""

    def __init__(
        self, user: str, plugin: Exec, folder: Path, environment: Mapping[str, str], cluster: Mapping[str, Any]
    ) -> None:
        """Runs the program once. Raises LoginError."""
        if plugin.api_version not in EXEC_VERSIONS:
            raise LoginError(f"user {user}: exec plugins of {plugin.api_version} are not known ({EXEC_VERSIONS[0]} is)")
        self._user = user
        self._plugin = plugin
        # A path is relative to the file; a bare name is searched for in PATH.
        self._command = str(folder / plugin.command) if "/" in plugin.command else plugin.command
        self._environment = {**environment, **{variable.name: variable.value for variable in plugin.env}}
        self._cluster = cluster
        self.load: Callable[[Certificate], None] = lambda _: None
        """Gets each further certificate; raises LoginError."""
        self._status = self._run()

    @property
    def certificate(self) -> Certificate | None:
        """The newest."""
        status = self._status
        if not status.client_certificate_data:
            return None
        return Certificate(status.client_certificate_data.encode(), status.client_key_data.encode())

    def authorization(self) -> str:
        """The header's value. Raises KubeError when a new login fails."""
        expires = self._status.expiration_timestamp
        if expires and expires <= datetime.now(UTC):
            self.renew()
        return f"Bearer {self._status.token}" if self._status.token else ""

    def renew(self) -> bool:
        """Run the program again; returns True. Raises KubeError."""
        try:
            self._status = self._run()
            if self.certificate:
                self.load(self.certificate)
        except LoginError as error:
            raise KubeError(str(error), HTTPStatus.UNAUTHORIZED.value) from None
        return True

    def _run(self) -> Status:
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if self._plugin.interactive_mode == "Always" and not terminal:
            raise LoginError(f"user {self._user}: {self._plugin.command} asks for input, and there is no terminal")
        interactive = terminal and self._plugin.interactive_mode != "Never"
        environment = {**self._environment, "KUBERNETES_EXEC_INFO": json.dumps(self._request(interactive))}
        try:
            process = subprocess.run(
                [self._command, *self._plugin.args],
                env=environment,
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if interactive else subprocess.PIPE,
                check=False,
            )
        except OSError as error:
            hint = f"; {' '.join(self._plugin.install_hint.split())}" if self._plugin.install_hint else ""
            raise LoginError(f"user {self._user}: {self._command}: {error.strerror}{hint}") from None
        if process.returncode:
            stderr_text = " ".join((process.stderr or b"").decode(errors="replace").split())
            raise LoginError(
                f"user {self._user}: {self._plugin.command} ended with exit code {process.returncode}. {stderr_text}"
            )
        return self._read(process.stdout)

    def _request(self, interactive: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._plugin.provide_cluster_info:
            more = {
                extension.get("name"): extension.get("extension") for extension in self._cluster.get("extensions", [])
            }
            spec["cluster"] = {key: value for key, value in self._cluster.items() if key != "extensions"}
            spec["cluster"] |= {"config": more[_CLUSTER_CONFIG]} if _CLUSTER_CONFIG in more else {}
        return {"apiVersion": self._plugin.api_version, "kind": "ExecCredential", "spec": spec}

    def _read(self, output: bytes) -> Status:
        name = f"user {self._user}: {self._plugin.command}"
        try:
            credential = msgspec.json.decode(output, type=ExecCredential)
        except msgspec.DecodeError as error:
            raise LoginError(f"{name} printed no ExecCredential: {error}") from None
        if (credential.api_version, credential.kind) != (self._plugin.api_version, "ExecCredential"):
            raise LoginError(
                f"{name} printed {credential.api_version} {credential.kind}, not {self._plugin.api_version}"
            )
        status = credential.status
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise LoginError(f"{name} printed a certificate without its key, or a key alone")
        if not status.token and not status.client_key_data:
            raise LoginError(f"{name} printed neither a token nor a certificate")
        if status.expiration_timestamp and status.expiration_timestamp.tzinfo is None:
            raise LoginError(f"{name}: its expirationTimestamp has no time zone")
        return status


def _authorization_by_provider(user: str, provider: AuthProvider) -> Callable[[], str]:
    """An OIDC token while it is valid: only kubectl renews it, since it has to write the new one into the file."""
    token = provider.config.get("id-token", "")
    if provider.name != "oidc" or not token:
        raise LoginError(
            f"user {user}: auth-provider {provider.name} cannot be used here; use its exec plugin "
            "(`kubelogin`, `gke-gcloud-auth-plugin`)"
        )
    expires = _expiry_of(token)
    if expires and expires <= datetime.now(UTC):
        raise LoginError(
            f"user {user}: the OIDC token expired at {expires:%Y-%m-%d %H:%M} UTC; any kubectl command renews it, "
            "as does the exec plugin `kubelogin` by itself"
        )
    return lambda: f"Bearer {token}"


def _expiry_of(token: str) -> datetime | None:
    """A JWT's `exp` (RFC 7519, section 4.1.4); None: it has none, or is no JWT."""
    try:
        claims = token.split(".")[1]
        return datetime.fromtimestamp(
            json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"], UTC
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None
