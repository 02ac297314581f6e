"""Where an attempt comes from: what its node keeps of it, so that a restored head can adopt it."""

from msgspec import Struct

from gsched.model.job import JobSpec
from gsched.model.numbers import Amount, Number
from gsched.model.resources import Allocation


class Origin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a launch says of the job and the attempt, beyond what the node needs to start it.

    Attributes:
        token: the id of the head's epoch that made the attempt. Job and attempt numbers repeat
            when a database is restored; with the token they do not.
        submitted_s: when the job was submitted, seconds since the epoch.
        assigned_s: when the attempt got its allocation.
        allocation: on all nodes, in rank order.
        active: the nodes of it on which something runs.
        master_port: of its rendezvous; 0: it has none.
    """

    token: str
    spec: JobSpec
    submitted_s: Amount
    assigned_s: Amount
    allocation: Allocation
    active: tuple[str, ...]
    master_port: Number = 0
