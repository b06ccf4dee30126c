"""TLS between the processes of a job: the job's token stands in for a certificate authority.

The authority's key is derived from the token, so nothing else has to be distributed: each process with the token
derives the same authority, makes a key and signs a certificate for it. Whoever has the authority's certificate (it is
no secret) can tell whether a server has the token. A client shows the token itself in its requests. TLS 1.3 only:
recorded traffic stays secret even if the token leaks later.

A token chosen by people may be guessed. scrypt makes each guess against a certificate cost what it costs here: 0.1 s
and 32 MiB (RFC 7914; the parameters of its section 2 for interactive use, doubled).
"""

import hashlib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from http.client import HTTPConnection, HTTPSConnection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, Name

NAME = "job.everstep.internal"
"""The name of every server; an authority signs for one job alone."""
TLS_HINT = "give --no-tls to all nodes of a job or to none"
_IN_CLEAR_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons for an answer that is not TLS."""
_BITS = 256
_COST, _BLOCK, _LANES = 1 << 15, 8, 1
_SCRYPT_MEMORY = 2 * 128 * _COST * _BLOCK
# The validity ignores wrong clocks: a certificate is worth what the token is worth, and no longer.
_SINCE, _UNTIL = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True)
class Credentials:
    """What a process needs to talk to its job's servers and to be one of them."""

    token: str = field(repr=False)
    authority: str = ""
    """The certificate of the job's authority, PEM; empty: the job does not use TLS."""
    server: ssl.SSLContext | None = None
    """Context of the process's own servers; None: it does not use TLS, or has no server."""

    @cached_property
    def client(self) -> ssl.SSLContext | None:
        """Context that trusts the job's servers; None: they do not use TLS."""
        return _client_context(self.authority) if self.tls else None

    @property
    def tls(self) -> bool:
        """Do the job's processes use TLS?"""
        return bool(self.authority)

    @property
    def scheme(self) -> str:
        """The scheme of the servers' URLs."""
        return "https" if self.tls else "http"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of each request."""
        return {"Authorization": f"Bearer {self.token}"}

    def connection(self, address: str, timeout_s: float) -> HTTPConnection:
        """A connection to a server of the job, at host:port. The first request opens it."""
        if self.client is None:
            return HTTPConnection(address, timeout=timeout_s)
        return HTTPSConnection(address, timeout=timeout_s, context=self.client)


def credentials_of(token: str, job: str, *, tls: bool) -> Credentials:
    """Credentials of a process with the job's token. With TLS this takes 0.2 s, mostly on purpose: call it once."""
    if not tls:
        return Credentials(token)
    key = _authority_key(token, job)
    certificate = _sign_certificate(key, key, authority=True)
    return Credentials(token, _pem(certificate), _server_context(key))


def derive_bytes(token: str, use: str, job: str, length: int) -> bytes:
    """Secret bytes for one use, the same for the same token and job. Takes 0.1 s on purpose: whoever sees what is made
    of them, such as a public key, can test guesses of the token."""
    salt = f"everstep {use}\0{job}".encode()
    return hashlib.scrypt(token.encode(), salt=salt, n=_COST, r=_BLOCK, p=_LANES, maxmem=_SCRYPT_MEMORY, dklen=length)


def mismatch_reason(error: BaseException) -> str:
    """The reason if a server and a client differ in their use of TLS, else empty."""
    error = error.__cause__ or error
    if isinstance(error, ssl.SSLCertVerificationError):
        return "has another token, or is of another job"
    if isinstance(error, ssl.SSLError) and error.reason in _IN_CLEAR_REASONS:
        return f"does not speak TLS; {TLS_HINT}"
    return ""


def _authority_key(token: str, job: str) -> "EllipticCurvePrivateKey":
    """The authority's key: the same for the same token and job.

    It draws 64 bits more than the group's order has, so that the remainder of the division is nearly uniform (FIPS
    186-5, appendix A.2.1).
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    key_bytes = derive_bytes(token, "certificate authority", job, (_BITS + 64) // 8)
    curve = ec.SECP256R1()
    return ec.derive_private_key(int.from_bytes(key_bytes, "big") % (curve.group_order - 1) + 1, curve)


def _sign_certificate(
    issuer: "EllipticCurvePrivateKey", subject: "EllipticCurvePrivateKey", *, authority: bool
) -> "Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    def name(what: str) -> "Name":
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, what)])

    builder = x509.CertificateBuilder(
        issuer_name=name("authority." + NAME),
        subject_name=name("authority." + NAME if authority else NAME),
        public_key=subject.public_key(),
        serial_number=1 if authority else x509.random_serial_number(),
        not_valid_before=_SINCE,
        not_valid_after=_UNTIL,
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), True)
    if not authority:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), False)
    key_usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only", "crl_sign"), False,
    )  # fmt: skip
    usage = x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, **key_usage)
    builder = builder.add_extension(usage, True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(subject.public_key()), False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())
    return builder.add_extension(identifier, False).sign(issuer, hashes.SHA256())


def _pem(what: "Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return what.public_bytes(Encoding.PEM).decode()


def _server_context(authority: "EllipticCurvePrivateKey") -> ssl.SSLContext:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    own = ec.generate_private_key(ec.SECP256R1())
    secret = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # Nobody resumes: connections are few and long-lived.
    with os.fdopen(os.memfd_create("everstep-tls"), "wb") as file:  # A file in memory, closed at once.
        file.write(secret + _pem(_sign_certificate(authority, own, authority=False)).encode())
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


class _Pinned(ssl.SSLContext):
    """Expects the job's name from every server, whatever its address."""

    def wrap_socket(self, *arguments: Any, **keywords: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*arguments, **{**keywords, "server_hostname": NAME})

    def wrap_bio(self, *arguments: Any, **keywords: Any) -> ssl.SSLObject:
        return super().wrap_bio(*arguments, **{**keywords, "server_hostname": NAME})


def _client_context(authority: str) -> ssl.SSLContext:
    context = _Pinned(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    return context
