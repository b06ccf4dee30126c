"""Where the members of a round are reached."""

from everstep.runtime.protocol.rounds import Member


def host_of(member: Member) -> str:
    """The address of its machine; an IPv6 address without brackets."""
    return member.address.rpartition(":")[0].strip("[]")


def endpoint_of(member: Member, offset: int = 0) -> str:
    """HOST:PORT for a server of the framework on its node."""
    host = host_of(member)
    return f"[{host}]:{member.port + offset}" if ":" in host else f"{host}:{member.port + offset}"
