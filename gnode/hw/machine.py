"""Marks of this machine that a copy of its disk does not take along."""

import hashlib
import os
import socket
import threading

import psutil

from gsched.config.environment import environment
from gsched.model.machine import Machine

PRODUCT = "/sys/class/dmi/id/product_uuid"  # for root only
SYSTEM = "/etc/machine-id"
CARDS = "/sys/class/net"
NO_CARD = "00:00:00:00:00:00"
FULL_NAME_S = 2.0  # what a name service that does not answer may cost a start


def read_machine() -> Machine:
    """Return the marks of this machine; tests can pretend another one.

    They leave as digests, as machine-id(5) asks for: the marks themselves are nobody's business.
    """
    pretended = environment("GSCHED_TEST_MACHINE")
    if pretended:
        return Machine(product=_digest("product", pretended))
    return Machine(
        product=_digest("product", _text(PRODUCT)),
        macs=tuple(sorted(_digest("mac", address) for address in _own_cards())),
        system=_digest("system", _text(SYSTEM)),
    )


def _own_cards() -> set[str]:
    """Return the addresses of the cards that are hardware: bridges and the like come and go."""
    try:
        names = os.listdir(CARDS)
    except OSError:
        return set()
    addresses = {
        _text(os.path.join(CARDS, name, "address"))
        for name in names
        if os.path.exists(os.path.join(CARDS, name, "device"))
    }
    return addresses - {"", NO_CARD}


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(256).strip().lower()
    except (OSError, ValueError):
        return ""


def _digest(kind: str, text: str) -> str:
    if not text:
        return ""
    return hashlib.sha256(f"gsched {kind} {text}".encode()).hexdigest()[:32]


def own_names() -> frozenset[str]:
    """Return by which host names and addresses this machine is reached, in small letters."""
    name = socket.gethostname()
    found = {name, name.partition(".")[0], *_full_names()}
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family in {socket.AF_INET, socket.AF_INET6}:
                found.add(each.address.partition("%")[0])
    return frozenset(each.lower().rstrip(".") for each in found) - {""}


def _full_names() -> list[str]:
    """Return the full host name, if the name service knows it soon."""
    names: list[str] = []
    asking = threading.Thread(target=lambda: names.append(socket.getfqdn()), daemon=True)
    asking.start()
    asking.join(FULL_NAME_S)
    return names
