"""Hosts of the cluster: what gnode reports of its own, and how the head lists them."""

from msgspec import Struct

from gsched.model.numbers import Amount, Count

#: Users, and groups, in a report: those of a site with more are compared in part.
MAX_NAMES = 5000
#: Network file systems in a report.
MAX_MOUNTS = 100


class HostReport(Struct, frozen=True, kw_only=True, tag="host_report", omit_defaults=True):
    """Node to head, after each registration: what must agree between hosts.

    Attributes:
        sent_s: the host's clock, seconds since the epoch.
        zone: its time zone, as ``CET+0100``.
        users, groups: numbers of accounts of people, by name, as far as the host can list them.
        mounts: type and source of its network file systems, by where they are mounted; None: it
            does not tell.
    """

    sent_s: Amount
    zone: str = ""
    users: dict[str, Count] = {}
    groups: dict[str, Count] = {}
    mounts: dict[str, str] | None = None


class HostRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host: the head's machine, a node or a login host.

    Attributes:
        role: ``head``, ``node`` or ``login``.
        connected: its gnode is.
        since_s: since when, or since when not.
        clock_s: by how much its clock is ahead of the head's, with the time on the way; None: it
            has not reported.
        zone, users, groups, mounts: as in `HostReport`.
    """

    name: str
    role: str
    connected: bool = True
    address: str = ""
    version: str = ""
    since_s: float = 0.0
    clock_s: float | None = None
    zone: str = ""
    users: dict[str, int] = {}
    groups: dict[str, int] = {}
    mounts: dict[str, str] | None = None


class HostList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/hosts``; users, groups and mounts are in it with ``names=1``."""

    server: str
    now_s: float
    hosts: tuple[HostRow, ...]
