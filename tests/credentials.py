"""Credentials of a job, made once for all tests of a process: with TLS that takes a while on purpose."""

from functools import cache

from everstep.runtime.net.tls import Credentials, credentials_of


@cache
def credentials(token: str = "t", job: str = "job", *, tls: bool = True) -> Credentials:
    """As a process of that job makes them."""
    return credentials_of(token, job, tls=tls)
