"""Policies by the name a queue uses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gschedd.plan.snapshot import Policy
from gschedd.policies import fifo

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType({"fifo": fifo.plan})
