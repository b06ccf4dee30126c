"""Ways to log in to a cluster that a kube config knows: exec plugins, certificates, another name, a proxy."""

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from everstep.runtime.submission import ApiError, TargetError, choose
from everstep.runtime.submission.custom_resource import CustomResource
from tests.submission.clusters import Cluster, KubeApi, Served
from tests.submission.conftest import Environment


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


def plugin(folder: Path, token: str, expires: str) -> dict[str, Any]:
    """A user who logs in by a program, which leaves a line in `calls` each time."""
    status = {"token": token, "expirationTimestamp": expires}
    kind = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": status}
    script = f"echo asked >> {folder}/calls; echo '{json.dumps(kind)}'"
    return {"exec": {"apiVersion": kind["apiVersion"], "command": "sh", "args": ["-c", script]}}


def test_a_program_logs_in_once_while_its_token_is_valid(cluster: Cluster, url: str, tmp_path: Path) -> None:
    user = plugin(tmp_path, cluster.token, "2099-01-01T00:00:00Z")
    route = CustomResource(environment_of(tmp_path, {"server": url}, user), "")
    assert route.serves_argo()
    assert route.pods("a=b") == []
    assert (tmp_path / "calls").read_text().split() == ["asked"]


def test_a_program_logs_in_again_when_its_token_has_expired(cluster: Cluster, url: str, tmp_path: Path) -> None:
    user = plugin(tmp_path, cluster.token, "2001-01-01T00:00:00Z")
    route = CustomResource(environment_of(tmp_path, {"server": url}, user), "")
    assert route.serves_argo()
    assert route.pods("a=b") == []
    assert len((tmp_path / "calls").read_text().split()) >= 3


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
