"""Reservations on the wire: what an operator requests, and what everybody sees."""

from typing import Literal

from msgspec import Struct

from gsched.model.numbers import Amount, Count
from gsched.model.reservation import AtEnd, Recurrence, Reservation


class ReservationTerms(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What is stated of a reservation; what is None stays as it is, or has its default.

    Attributes:
        from_s: when it begins, seconds since the epoch; 0: now.
        to_s, duration_s: when it ends, or how long it is.
        nodes, node_names, gpus, gpu_type: one of: so many nodes, these nodes, so many GPUs.
        zone: of the local time in which it recurs, as ``Europe/Berlin``.

    The others are as in `gsched.model.reservation.Reservation`.
    """

    from_s: Amount | None = None
    to_s: Amount | None = None
    duration_s: Amount | None = None
    nodes: Count | None = None
    node_names: tuple[str, ...] | None = None
    gpus: Count | None = None
    gpu_type: str | None = None
    users: tuple[str, ...] | None = None
    projects: tuple[str, ...] | None = None
    recur: Recurrence | None = None
    zone: str | None = None
    magnetic: bool | None = None
    maintenance: bool | None = None
    ignore_jobs: bool | None = None
    release_unused_s: Amount | None = None
    at_end: AtEnd | None = None
    reason: str | None = None


class ReservationChange(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The body of ``POST /v1/reservations``: create, alter or delete one."""

    verb: Literal["create", "alter", "delete"]
    name: str
    terms: ReservationTerms = ReservationTerms()
    dry_run: bool = False


class ReservationRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reservation, and the jobs that it concerns.

    Attributes:
        running, waiting: jobs in it, and jobs that name it and wait.
        in_the_way: jobs of others that run on what it holds and may do so at its beginning.
        staying: those of them that do not give way then.
        unavailable: its nodes that accept no jobs now.
    """

    reservation: Reservation
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    in_the_way: tuple[int, ...] = ()
    staying: tuple[int, ...] = ()
    unavailable: tuple[str, ...] = ()


class ReservationsReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to ``GET /v1/reservations``, and to a change: the changed one, as it is then.

    Attributes:
        warning: why what is shown may not be durable.
    """

    now_s: float
    rows: tuple[ReservationRow, ...] = ()
    warning: str = ""
