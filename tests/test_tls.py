"""TLS of a job: whoever has its token is believed, and nobody else; what is wrong is told in one line."""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from everstep.runtime.launch.probe import Answer, probe_endpoint
from everstep.runtime.net.tls import NAME, Credentials, credentials_of, mismatch_reason
from everstep.runtime.net.tls_transport import SPEAKS_TLS, TlsProtocol, TlsTransport
from everstep.runtime.net.token_gate import TokenGate, listen, server_of
from tests.credentials import credentials

SECONDS = 60.0


class Pair:
    """A server and a client that speak through memory."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        from_server, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(to_server, from_server, server_side=True)
        self.client = client.wrap_bio(to_client, from_client)
        self._ends = ((self.client, from_client, to_server), (self.server, from_server, to_client))

    def shake_hands(self) -> None:
        """Raises SSLError, the one that an end meets first."""
        ends_left = {self.client, self.server}
        while ends_left:
            for end, sender, heard in self._ends:
                try:
                    end.do_handshake()
                    ends_left.discard(end)
                except ssl.SSLWantReadError:
                    pass
                heard.write(sender.read())


def meet(server: Credentials, client: Credentials) -> Pair:
    assert server.server is not None
    assert client.client is not None
    pair = Pair(server.server, client.client)
    pair.shake_hands()
    return pair


def test_two_processes_with_the_same_token_trust_each_other() -> None:
    one, other = credentials(), credentials_of("t", "job", tls=True)
    assert one.authority != other.authority, "each has signed its own"
    pair = meet(one, other)
    assert pair.client.version() == "TLSv1.3"
    assert "AES" in str(pair.client.cipher()) or "CHACHA20" in str(pair.client.cipher())
    meet(other, one)


@pytest.mark.parametrize(("token", "job"), [("another", "job"), ("t", "another")])
def test_another_token_and_another_job_are_another_authority(token: str, job: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        meet(credentials(token, job), credentials())
    assert mismatch_reason(raised.value) == "has another token, or is of another job"


def test_who_knows_the_authority_by_its_certificate_needs_no_token_to_trust_it() -> None:
    worker = Credentials("t", credentials().authority)
    assert worker.tls
    assert worker.server is None
    meet(credentials(), worker)


def _strangers(names: tuple[str, str], folder: Path) -> ssl.SSLContext:
    """A server that has signed its certificate itself, with the job's names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, issuer = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in names)
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), 1, datetime.now(UTC) - timedelta(1), datetime.now(UTC) + timedelta(1)
    ).add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), False)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "stranger.pem"
    path.write_bytes(
        key.private_bytes(*form) + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.mark.parametrize("names", [(NAME, NAME), (NAME, "authority." + NAME)])
def test_a_certificate_that_somebody_else_has_signed_is_refused(names: tuple[str, str], tmp_path: Path) -> None:
    client = credentials().client
    assert client is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        Pair(_strangers(names, tmp_path), client).shake_hands()


def test_the_authority_signs_for_the_name_that_every_server_of_the_job_has() -> None:
    certificate = meet(credentials(), credentials()).client.getpeercert()
    assert certificate is not None
    assert certificate["subjectAltName"] == (("DNS", NAME),)
    assert x509.load_pem_x509_certificate(credentials().authority.encode()).subject.rfc4514_string() != f"CN={NAME}"


def test_nobody_speaks_an_older_tls() -> None:
    credentials_used = credentials()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert credentials_used.server is not None
    assert credentials_used.client is not None
    with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        Pair(credentials_used.server, old).shake_hands()
    assert credentials_used.client.minimum_version is ssl.TLSVersion.TLSv1_3


def test_keys_are_on_no_disk_and_no_descriptor_stays() -> None:
    before, folder = set(os.listdir("/proc/self/fd")), set(os.listdir("/tmp"))
    credentials_of("t", "job", tls=True)
    assert set(os.listdir("/proc/self/fd")) == before
    assert not [name for name in set(os.listdir("/tmp")) - folder if "everstep-tls" in name]


def test_credentials_do_not_show_the_token_where_they_are_printed() -> None:
    assert "hush" not in repr(credentials("hush"))


def test_a_job_in_clear_has_no_authority() -> None:
    credentials_used = credentials_of("t", "job", tls=False)
    assert (
        credentials_used.tls,
        credentials_used.scheme,
        credentials_used.authority,
        credentials_used.server,
        credentials_used.client,
    ) == (False, "http", "", None, None)


@asynccontextmanager
async def serve(credentials_used: Credentials) -> AsyncIterator[int]:
    """Somebody who answers as a master does, to whoever shows the token; the port."""
    gate = TokenGate(credentials_used, say=lambda _: None)

    async def handle(request: web.BaseRequest) -> web.Response:
        return web.json_response({"error": "no such round"}, status=404 if gate.admits(request) else 401)

    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with asyncio.timeout(SECONDS), gate.serve(server_of(handle), listener):
        yield port


@pytest.mark.parametrize(
    ("there", "here", "answer"),
    [
        (credentials, credentials, Answer.MASTER),
        (lambda: credentials("another"), credentials, Answer.NOT_ALLOWED),
        (lambda: credentials("t", "another"), credentials, Answer.NOT_ALLOWED),
        (credentials, lambda: Credentials("t"), Answer.IN_TLS),
        (lambda: Credentials("t"), credentials, Answer.IN_CLEAR),
        (lambda: Credentials("t"), lambda: Credentials("t"), Answer.MASTER),
        (lambda: Credentials("another"), lambda: Credentials("t"), Answer.NOT_ALLOWED),
    ],
    ids=["TLS", "token", "job", "clear at TLS", "TLS at clear", "clear", "token in clear"],
)
def test_a_node_hears_who_is_there_already(
    there: Callable[[], Credentials], here: Callable[[], Credentials], answer: Answer
) -> None:
    async def story() -> Answer:
        async with serve(there()) as port:
            return (await asyncio.to_thread(probe_endpoint, "127.0.0.1", port, here(), "job")).answer

    assert asyncio.run(story()) is answer


def test_a_program_that_says_nothing_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.runtime.launch.probe._TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert probe_endpoint("127.0.0.1", port, credentials(), "job").answer is Answer.SILENT
    assert probe_endpoint("127.0.0.1", port, credentials(), "job").answer is Answer.NOBODY


def test_who_speaks_clear_at_a_port_for_tls_hears_so_though_it_has_more_to_say() -> None:
    async def story() -> bytes:
        async with serve(credentials()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/join HTTP/1.1\r\nHost: m\r\nContent-Length: 1000000\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(bytes(1_000_000))
            reply = head + await reader.read()
            writer.close()
            return reply

    reply = asyncio.run(story())
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert SPEAKS_TLS.encode() in reply


class _ProtocolStub(asyncio.Protocol):
    """The inner protocol of a test: keeps what comes, and the transport."""

    def __init__(self) -> None:
        self.came, self.transport = bytearray(), asyncio.get_running_loop().create_future()
        self.lost, self.heard = asyncio.get_running_loop().create_future(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport.set_result(transport)

    def data_received(self, data: bytes) -> None:
        self.came += data
        self.heard.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@contextmanager
def blocking_client(port: int) -> Iterator[ssl.SSLSocket]:
    """A client that blocks, for a thread."""
    client = credentials().client
    assert client is not None
    with client.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=SECONDS)) as wire:
        yield wire


def test_what_is_written_at_once_by_pieces_and_by_a_thread_comes_in_order_and_ends_with_a_goodbye() -> None:
    """Also across the records' size, and with what the peer says meanwhile."""
    whole = os.urandom(300_000)
    heard: list[bytes] = []

    def client(port: int) -> None:
        with blocking_client(port) as wire:
            wire.sendall(b"hello")
            while part := wire.recv(1 << 16):  # Raises, where the end comes without a goodbye.
                heard.append(part)

    async def story() -> None:
        protocol, server = _ProtocolStub(), credentials().server
        assert server is not None
        loop = asyncio.get_running_loop()
        end = await loop.create_server(lambda: TlsProtocol(protocol, server), "127.0.0.1", 0)
        thread = threading.Thread(target=client, args=(end.sockets[0].getsockname()[1],))
        thread.start()
        async with asyncio.timeout(SECONDS):
            transport = await protocol.transport
            await protocol.heard.wait()
            assert isinstance(transport, TlsTransport)
            transport.write(whole[:10])
            transport.writelines([whole[10:20], memoryview(whole)[20:100_000]])
            while transport.get_write_buffer_size():
                await asyncio.sleep(0)
            with transport.lend_encryptor() as seal:
                assert not transport.is_reading()
                sealed = await asyncio.to_thread(seal, memoryview(whole)[100_000:200_000])
                with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as own:
                    await loop.sock_sendall(own, sealed)
            transport.write(whole[200_000:])
            transport.close()
            await protocol.lost
        await asyncio.to_thread(thread.join)
        end.close()
        assert bytes(protocol.came) == b"hello"

    asyncio.run(story())
    assert b"".join(heard) == whole
