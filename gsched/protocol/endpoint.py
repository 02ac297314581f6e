"""The two ends of a TCP connection as text, so that node and head can compare what they see."""

import ipaddress


def endpoint(name: object) -> str:
    """Return ``host:port`` of a socket's name (of getsockname or getpeername); empty for Unix."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    return f"{_plain(str(name[0]))}:{name[1]}"


def _plain(host: str) -> str:
    """Return an address in one spelling: IPv4 in IPv6 is IPv4."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
