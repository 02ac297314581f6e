"""Policies by the name a queue uses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gschedd.plan.snapshot import Policy
from gschedd.policies import balance, fewest, fifo, roundrobin, torque

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "balance": balance.plan,
        "fewest": fewest.plan,
        "fifo": fifo.plan,
        "roundrobin": roundrobin.plan,
        "torque": torque.plan,
    }
)

#: Those that use predictions: learning what jobs cost costs time with every job that ends.
LEARNING: Final = frozenset({"balance"})
