"""Ways to log in to a cluster that a kube config knows: exec plugins, certificates, another name, a proxy."""

import base64
import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import kubernetes
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from everstep.runtime.submission import ApiError, TargetError, choose
from everstep.runtime.submission.custom_resource import CustomResource
from everstep.runtime.submission.kube_config import read_access
from tests.submission.clusters import Cluster, KubeApi, Served
from tests.submission.conftest import Environment

EXEC = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "sh"}


def environment_of(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Environment:
    """Leads to a kube config with that cluster and that user."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "drill",
        "contexts": [{"name": "drill", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}],
    }  # fmt: skip
    path = folder / "kube.config"
    path.write_text(json.dumps(config))
    return {"HOME": str(folder), "KUBECONFIG": str(path)}


@pytest.fixture
def url(cluster: Cluster) -> Iterator[str]:
    """The cluster's API, without TLS."""
    with Served(KubeApi, cluster) as url:
        yield url


def plugin(folder: Path, **status: str) -> dict[str, Any]:
    """A user who logs in by a program, which prints the file `credential` and leaves a line in `calls` each time."""
    write_credential(folder, **status)
    script = f"echo asked >> {folder}/calls; cat {folder}/credential"
    return {"exec": {**EXEC, "args": ["-c", script]}}


def write_credential(folder: Path, **status: str) -> None:
    """What such a program prints from now on."""
    credential = {"apiVersion": EXEC["apiVersion"], "kind": "ExecCredential", "status": status}
    (folder / "credential").write_text(json.dumps(credential))


def test_a_program_logs_in_once_while_its_token_is_valid(cluster: Cluster, url: str, tmp_path: Path) -> None:
    user = plugin(tmp_path, token=cluster.token, expirationTimestamp="2099-01-01T00:00:00Z")
    route = CustomResource(environment_of(tmp_path, {"server": url}, user), "")
    assert route.serves_argo()
    assert route.pods("a=b") == []
    assert (tmp_path / "calls").read_text().split() == ["asked"]


def test_a_program_logs_in_again_when_its_token_has_expired(cluster: Cluster, url: str, tmp_path: Path) -> None:
    user = plugin(tmp_path, token=cluster.token, expirationTimestamp="2001-01-01T00:00:00Z")
    route = CustomResource(environment_of(tmp_path, {"server": url}, user), "")
    assert route.serves_argo()
    assert route.pods("a=b") == []
    assert len((tmp_path / "calls").read_text().split()) >= 3


def test_a_program_logs_in_again_when_its_token_is_refused(cluster: Cluster, url: str, tmp_path: Path) -> None:
    """One without expirationTimestamp, which counts until then."""
    user = plugin(tmp_path, token=cluster.token)
    route = CustomResource(environment_of(tmp_path, {"server": url}, user), "")
    assert route.serves_argo()
    cluster.token = "renewed"
    write_credential(tmp_path, token=cluster.token)
    assert route.pods("a=b") == []
    assert len((tmp_path / "calls").read_text().split()) == 2
    cluster.token = "another"
    with pytest.raises(ApiError, match="401"):
        route.pods("a=b")
    assert len((tmp_path / "calls").read_text().split()) == 3


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now, day = datetime.now(UTC), timedelta(days=1)
    builder = x509.CertificateBuilder(
        subject, subject, secret.public_key(), x509.random_serial_number(), now - day, now + day
    ).add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
    key, file = folder / f"{name}.key", folder / f"{name}.crt"
    plain = serialization.NoEncryption()
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    file.write_bytes(builder.sign(secret, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return file, key


@pytest.fixture
def secure(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The cluster's API with TLS; it wants a client's certificate, and calls itself `api.example`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate(tmp_path, "api.example"))
    context.load_verify_locations(certificate(tmp_path, "me")[0])
    context.verify_mode = ssl.CERT_REQUIRED
    with Served(KubeApi, cluster, context) as url:
        yield url.replace("http:", "https:")


def test_a_clients_certificate_logs_in_to_a_server_of_another_name(
    secure: str, cluster: Cluster, tmp_path: Path
) -> None:
    there = {"server": secure, "certificate-authority": f"{tmp_path}/api.example.crt", "tls-server-name": "api.example"}
    user = {
        "client-certificate": f"{tmp_path}/me.crt", "client-key": f"{tmp_path}/me.key", "token": cluster.token,
    }  # fmt: skip
    assert CustomResource(environment_of(tmp_path, there, user), "").serves_argo()


def test_a_server_that_is_not_trusted_is_one_line(secure: str, cluster: Cluster, tmp_path: Path) -> None:
    environment = environment_of(tmp_path, {"server": secure}, {"token": cluster.token})
    with pytest.raises(TargetError, match=r"kube context drill cannot be reached at https.*certificate"):
        choose("argo", environment)
    assert cluster.asked == []


def test_a_certificate_that_is_not_there_is_named(secure: str, tmp_path: Path) -> None:
    environment = environment_of(tmp_path, {"server": secure, "certificate-authority": f"{tmp_path}/gone"}, {})
    with pytest.raises(ApiError, match="gone"):
        CustomResource(environment, "")


def write_config(path: Path, current: str = "", **parts: dict[str, dict[str, Any]]) -> Path:
    """A kube config of `clusters`, `contexts` and `users` by name."""
    lists = {
        kind: [{"name": name, kind[:-1]: value} for name, value in entries_by_name.items()]
        for kind, entries_by_name in parts.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    context_fields = {"current-context": current} if current else {}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **context_fields, **lists}))
    return path


def test_of_several_files_the_first_counts_and_paths_lead_from_their_file(tmp_path: Path) -> None:
    """As kubectl merges them."""
    first = write_config(tmp_path / "a/config", "one", contexts={"one": {"cluster": "c", "user": "u"}})
    second = write_config(
        tmp_path / "b/config", "two",
        contexts={"one": {"cluster": "other", "user": "other"}, "two": {"cluster": "c", "user": "u"}},
        clusters={"c": {"server": "http://b.example"}}, users={"u": {"tokenFile": "token", "token": "t"}},
    )  # fmt: skip
    third = write_config(tmp_path / "c/config", clusters={"c": {"server": "http://c.example"}})
    (tmp_path / "b/token").write_text("of-b\n")
    access, context = read_access({"KUBECONFIG": f"{first}:/nowhere:{second}:{third}"}, "")
    assert (access.url, access.namespace, context) == ("http://b.example", "default", "one")
    assert access.authorization() == "Bearer of-b"
    (tmp_path / "b/token").write_text("renewed")
    assert access.authorization() == "Bearer renewed"


def test_a_plugin_is_told_what_it_is_for(tmp_path: Path) -> None:
    kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    (tmp_path / "bin").mkdir()
    plugin = tmp_path / "bin/plugin"
    plugin.write_text(
        f"#!/bin/sh\necho $KUBERNETES_EXEC_INFO > info; echo '{json.dumps({**kind, 'status': {'token': 't'}})}'"
    )
    plugin.chmod(0o755)
    expected = {
        "command": "bin/plugin", "apiVersion": kind["apiVersion"],
        "provideClusterInfo": True, "interactiveMode": "Never",
    }  # fmt: skip
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    environment = environment_of(tmp_path, {"server": "http://x", "extensions": [extension]}, {"exec": expected})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert read_access(environment | {"PATH": "/bin:/usr/bin"}, "")[0].authorization() == "Bearer t"
    assert json.loads((tmp_path / "info").read_text()) == {
        **kind, "spec": {"interactive": False, "cluster": {"server": "http://x", "config": {"audience": "a"}}},
    }  # fmt: skip


def pem(folder: Path, name: str) -> dict[str, str]:
    """A certificate and its key as a plugin prints them."""
    return {
        "clientCertificateData": (folder / f"{name}.crt").read_text(),
        "clientKeyData": (folder / f"{name}.key").read_text(),
    }


def test_a_plugins_certificate_logs_in(secure: str, cluster: Cluster, tmp_path: Path) -> None:
    user = plugin(tmp_path, token=cluster.token, **pem(tmp_path, "me"))
    there = {"server": secure, "certificate-authority": "api.example.crt", "tls-server-name": "api.example"}
    assert CustomResource(environment_of(tmp_path, there, user), "").serves_argo()


def test_a_plugins_next_certificate_takes_the_place_of_one_that_has_expired(
    secure: str, cluster: Cluster, tmp_path: Path
) -> None:
    certificate(tmp_path, "nobody")
    login = {"token": cluster.token, "expirationTimestamp": "2001-01-01T00:00:00Z"}
    user = plugin(tmp_path, **login, **pem(tmp_path, "nobody"))
    there = {"server": secure, "certificate-authority": "api.example.crt", "tls-server-name": "api.example"}
    environment = environment_of(tmp_path, there, user)
    route = CustomResource(environment, "")
    write_credential(tmp_path, **login, **pem(tmp_path, "me"))
    assert route.serves_argo()
    assert read_access(environment, "")[0].changes_certificate, "no connection with the old one is used again"


def test_a_user_who_acts_as_another_says_so_with_each_request(cluster: Cluster, tmp_path: Path) -> None:
    headers: list[tuple[str, str]] = []

    class Noting(KubeApi):
        def answer(self, path: list[str], query: dict[str, str], body: dict[str, Any]) -> None:
            headers.extend((name, text) for name, text in self.headers.items() if name.startswith("Impersonate"))
            super().answer(path, query, body)

    user = {
        "token": cluster.token, "as": "ann", "as-uid": "7", "as-groups": ["dev", "ml"],
        "as-user-extra": {"acme.com/scopes": ["view", "edit"]},
    }  # fmt: skip
    with Served(Noting, cluster) as url:
        assert CustomResource(environment_of(tmp_path, {"server": url}, user), "").serves_argo()
    assert headers == [
        ("Impersonate-User", "ann"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ml"),
        ("Impersonate-Extra-acme.com%2Fscopes", "view"),
        ("Impersonate-Extra-acme.com%2Fscopes", "edit"),
    ]


def jwt(expires: int) -> str:
    """A JSON Web Token that nobody signed."""
    return "e30." + base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).decode().rstrip("=") + ".x"


def oidc(**config: str) -> dict[str, Any]:
    """A user who logs in by what was once built into kubectl."""
    return {"auth-provider": {"name": "oidc", "config": config}}


@pytest.mark.parametrize(
    ("user", "why"),
    [
        (
            oidc(**{"id-token": jwt(1_000_000_000)}),
            "user u: the OIDC token expired at 2001-09-09 01:46 UTC; any kube",
        ),
        ({"auth-provider": {"name": "gcp"}}, r"user u: auth-provider gcp cannot be used here; use its exec plugin"),
        ({"tokenFile": "gone"}, r"No such file or directory: '.*/gone'"),
        ({"client-certificate-data": "%"}, "is not base64"),
        (
            {"client-certificate-data": "YQ=="},
            "user u: a client certificate needs both client-certificate and",
        ),
        ({"token": 7}, r"Expected `str`, got `int` - at `\$\.users\[0\]\.user\.token`"),
        ({"exec": {**EXEC, "args": ["-c", "echo no >&2; exit 3"]}}, r"user u: sh ended with exit code 3\. no;"),
        ({"exec": {**EXEC, "args": ["-c", "echo {}"]}}, "user u: sh printed no ExecCredential: .*apiVersion"),
        ({"exec": {**EXEC, "command": "gone-x", "installHint": "get\nit"}}, "user u: gone-x: No such file.*; get it;"),
        ({"exec": {**EXEC, "apiVersion": "v0"}}, "user u: exec plugins of v0 are not known"),
        ({"as-groups": ["dev"]}, "user u: as-uid, as-groups and as-user-extra need `as`, the user to act as"),
        ({"exec": {**EXEC, "interactiveMode": "Always"}}, "user u: sh asks for input, and there is no terminal"),
    ],
)
def test_who_cannot_log_in_reads_why_in_one_line(
    user: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ApiError, match=why) as raised:
        read_access(environment_of(tmp_path, {"server": "https://x"}, user), "")
    assert "\n" not in str(raised.value)
    assert "kube.config" in str(raised.value)


def test_an_oidc_token_logs_in_while_it_is_valid(tmp_path: Path) -> None:
    token = jwt(4_000_000_000)
    user = oidc(**{"id-token": token})
    access, _ = read_access(environment_of(tmp_path, {"server": "http://x"}, user), "")
    assert access.authorization() == f"Bearer {token}"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "there is no current-context"),
        ("current-context: gone", r"there is no context 'gone' \(there are: none\)"),
        ("a: [", "kube.config: "),
        ("contexts: 3", "Expected `array`, got `int`"),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: b}}], clusters: [{name: c}]}",
            r"there is no cluster 'b' \(there are: c\)",
        ),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: c}}], clusters: [{name: c, cluster: null}]}",
            "cluster c: server '' is not an http:// or https:// URL",
        ),
    ],
)
def test_a_file_that_leads_nowhere_says_why(content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "kube.config").write_text(content)
    with pytest.raises(ApiError, match=why):
        read_access({"KUBECONFIG": f"{tmp_path}/kube.config"}, "")


@pytest.mark.parametrize(
    ("server", "cluster", "environment", "proxy"),
    [
        ("https://x", {}, {"HTTPS_PROXY": "http://p"}, "http://p"),
        ("http://x", {}, {"HTTPS_PROXY": "http://p"}, ""),
        ("https://x", {}, {"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
        ("https://x.y", {}, {"https_proxy": "http://p", "no_proxy": ".y"}, ""),
        ("https://10.1.2.3", {}, {"https_proxy": "http://p", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://x", {"proxy-url": "http://own"}, {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, "http://own"),
    ],
)
def test_the_way_leads_through_the_proxy_that_is_named(
    server: str, cluster: dict[str, str], environment: dict[str, str], proxy: str, tmp_path: Path
) -> None:
    config = environment_of(tmp_path, {"server": server, **cluster}, {"token": "t"})
    assert read_access({**environment, **config}, "")[0].proxy == proxy


@pytest.mark.parametrize(
    ("cluster", "environment"),
    [
        ({"proxy-url": "socks5://p:1080"}, {}),
        ({"proxy-url": "p:3128"}, {}),
        ({}, {"HTTPS_PROXY": "socks5://p:1080"}),
    ],
)
def test_a_proxy_of_another_kind_is_refused_in_one_line(
    cluster: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    config = environment_of(tmp_path, {"server": "https://x", **cluster}, {"token": "t"})
    with pytest.raises(ApiError, match=r"cluster c: proxy '.*': only http:// and https:// proxies can be used"):
        read_access({**environment, **config}, "")


def test_the_servers_url_may_end_with_a_slash(tmp_path: Path) -> None:
    environment = environment_of(tmp_path, {"server": "https://x/k8s/"}, {"token": "t"})
    assert read_access(environment, "")[0].url == "https://x/k8s"


names = st.sampled_from(["a", "b", "c"])
servers = st.fixed_dictionaries({"server": st.sampled_from(["http://one", "http://two"])})
logins = st.one_of(
    st.fixed_dictionaries({"token": st.sampled_from(["s", "t"])}),
    st.fixed_dictionaries({"username": st.just("me"), "password": st.sampled_from(["x", "y"])}),
    st.fixed_dictionaries({"tokenFile": st.sampled_from(["f", "g"])}),
    st.just({}),
)
contexts = st.fixed_dictionaries({"cluster": names, "user": names}, optional={"namespace": st.just("ml")})
files = st.lists(
    st.fixed_dictionaries(
        {
            "clusters": st.dictionaries(names, servers),
            "users": st.dictionaries(names, logins),
            "contexts": st.dictionaries(names, contexts),
        }
    ),
    min_size=1,
    max_size=3,
)


@hypothesis.given(files=files, current=names)
def test_files_are_read_as_the_official_client_reads_them(
    files: list[dict[str, Any]], current: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Where it finds a context, and that a user: it goes on without one that is not there, kubectl does not.

    Of two current contexts it takes the last, kubectl the first: only one file has one.
    """
    folder = tmp_path_factory.mktemp("files")
    paths = [
        write_config(folder / f"{number}/config", current if number == 0 else "", **file)
        for number, file in enumerate(files)
    ]
    for path in paths:
        for name in "fg":
            (path.parent / name).write_text(f"{path.parent.name}-{name}")
    kube_config_paths = ":".join(map(str, paths))
    settings = kubernetes.client.Configuration()
    try:
        _, context = kubernetes.config.list_kube_config_contexts(config_file=kube_config_paths)
        kubernetes.config.load_kube_config(
            config_file=kube_config_paths, client_configuration=settings, persist_config=False
        )
    except kubernetes.config.ConfigException:
        context = None
    if context is None or not any(context["context"]["user"] in file["users"] for file in files):
        with pytest.raises(ApiError):
            read_access({"KUBECONFIG": kube_config_paths}, "")
        return
    access, name = read_access({"KUBECONFIG": kube_config_paths}, "")
    assert (name, access.url) == (current, settings.host)
    assert access.namespace == context["context"].get("namespace", "default")
    assert access.authorization() == (settings.get_api_key_with_prefix("BearerToken") or "")
