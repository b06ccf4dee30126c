"""http artifacts of a server that asks for a certificate of the client's."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from everstep.runtime.workflow.artifacts import remote
from everstep.runtime.workflow.manifest.library import Library


class Identity(NamedTuple):
    """A certificate that signs itself, and its key; PEM."""

    certificate: str
    key: str


def identity(name: str) -> Identity:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signed = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Identity(signed.public_bytes(serialization.Encoding.PEM).decode(), key.private_bytes(*form).decode())


ANN, SOMEBODY = identity("ann"), identity("somebody")


class Names(http.server.BaseHTTPRequestHandler):
    """Answers with the name in the client's certificate."""

    def do_GET(self) -> None:
        certificate: Any = self.connection.getpeercert()  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(dict(part[0] for part in certificate["subject"])["commonName"].encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: handshakes fail on purpose."""


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server that lets in only Ann, and that this machine trusts."""
    own, pem = identity("server"), tmp_path / "server.pem"
    pem.write_text(own.certificate + own.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.load_verify_locations(cadata=ANN.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    server = Server(("127.0.0.1", 0), Names)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def download(url: str, to: Path, identity: Identity) -> None:
    """With that certificate, from Secrets."""
    secret = {"kind": "Secret", "metadata": {"name": "me"}, "stringData": identity._asdict()}
    names = {f"client{kind}Secret": {"name": "me", "key": field}
             for kind, field in (("Cert", "certificate"), ("Key", "key"))}  # fmt: skip
    remote.download({"url": url, "auth": {"clientCert": names}}, Library.from_objects([secret]), to)


def test_the_certificate_is_shown(address: str, tmp_path: Path) -> None:
    download(address, tmp_path / "got", ANN)
    assert (tmp_path / "got").read_text() == "ann"


def test_without_one_or_with_another_s_it_is_one_line(address: str, tmp_path: Path) -> None:
    for attempt in (lambda: remote.download({"url": address}, Library(), tmp_path / "got"),
                    lambda: download(address, tmp_path / "got", SOMEBODY)):  # fmt: skip
        with pytest.raises(remote.RemoteError) as raised:
            attempt()
        assert str(raised.value).startswith(f'Get "{address}": ')
        assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "identity", [Identity("", ""), Identity("no PEM", "none"), Identity(ANN.certificate, SOMEBODY.key)]
)
def test_what_is_no_certificate_with_its_key_is_one_line_before_anything_is_asked(
    identity: Identity, tmp_path: Path
) -> None:
    with pytest.raises(remote.RemoteError, match=r"^the client's certificate cannot be used: ") as raised:
        download("https://127.0.0.1:1/", tmp_path / "got", identity)
    assert len(str(raised.value).splitlines()) == 1
