"""Which machine a node runs on, as far as it can be told."""

import ipaddress
import re
from typing import Final

from msgspec import Struct


class Machine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Marks of a machine, each a digest, empty where it cannot be read.

    Attributes:
        product: of the firmware's product UUID, which a copied disk does not take along.
        macs: of the addresses of its own network cards.
        system: of /etc/machine-id, which a copied disk does take along.
    """

    product: str = ""
    macs: tuple[str, ...] = ()
    system: str = ""


def is_same_machine(one: Machine, other: Machine) -> bool:
    """Return whether two sets of marks can be of one machine.

    What is known of both is compared. Some firmware gives all boards the same UUID, so cards that
    are all different tell two machines apart although their UUIDs agree. The system's id counts
    only where nothing of the hardware is known of both. Where nothing at all is known of both, the
    machines are taken to be the same: the node's identity is all that there is.
    """
    products = one.product and other.product
    macs = one.macs and other.macs
    if products and one.product != other.product:
        return False
    if macs and not set(one.macs) & set(other.macs):
        return False
    if products or macs or not (one.system and other.system):
        return True
    return one.system == other.system


NODE_NAME_RULE: Final = (
    "a node name has 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or digit"
)

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IDENTITY = re.compile(r"[0-9a-f]{32}")


def is_node_name(text: str) -> bool:
    """Return whether a node may have this name: see `NODE_NAME_RULE`."""
    return _NODE_NAME.fullmatch(text) is not None


def is_identity(text: str) -> bool:
    """Return whether this can be a node's identity: 32 hex digits."""
    return _IDENTITY.fullmatch(text) is not None


def is_on_loopback(text: str) -> bool:
    """Return whether ``HOST:PORT`` is reached from this machine only."""
    host = text.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
