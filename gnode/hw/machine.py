"""Marks of this machine that a copy of its disk does not take along."""

import hashlib
import os

from gsched.config import environment
from gsched.model.machine import Machine

PRODUCT = "/sys/class/dmi/id/product_uuid"  # for root only
SYSTEM = "/etc/machine-id"
CARDS = "/sys/class/net"
NO_CARD = "00:00:00:00:00:00"


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
