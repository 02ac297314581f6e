"""Reservations as ``gres`` shows them."""

from gsched.model.ids import array_of
from gsched.model.reservation import Reservation
from gsched.protocol.reservations import ReservationRow
from gschedd.core.attempts.reserved import may_give_way
from gschedd.core.nodes.reserving import in_the_way, is_available
from gschedd.core.requests.reservations import is_visible, projects_of
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.views.ahead import waiting_elements


def reservation_rows(
    state: State, settings: Settings, caller: Caller, name: str = ""
) -> tuple[ReservationRow, ...]:
    """Return the reservations that somebody may see, or the one of a name, by their beginnings."""
    projects = projects_of(caller.user, settings)
    found = sorted(state.reservations.values(), key=lambda each: (each.from_s, each.name))
    waiting: dict[str, list[int]] = {}
    for job in state.jobs.values():
        if job.spec.reservation and _waits(state, job):
            waiting.setdefault(job.spec.reservation, []).append(job.id)
    return tuple(
        reservation_row(state, each, tuple(sorted(waiting.get(each.name, ()))))
        for each in found
        if name in {"", each.name} and is_visible(each, caller, projects)
    )


def _waits(state: State, job: Job) -> bool:
    """Return whether a job waits, or elements of an array; these are not listed one by one."""
    index = state.arrays.get(job.id)
    if index is not None:
        return index.waiting > 0 or any(waiting_elements(job))
    return job.attempt is None and array_of(job.id) not in state.arrays


def reservation_row(
    state: State, reservation: Reservation, waiting: tuple[int, ...] = ()
) -> ReservationRow:
    """Return a reservation, which may not be created yet, with the jobs that it concerns."""
    others = in_the_way(state, reservation)
    stay = [
        number for number, job in others.items() if reservation.ignore_jobs or not may_give_way(job)
    ]
    nodes = [state.nodes.get(share.node) for share in reservation.shares]
    return ReservationRow(
        reservation=reservation,
        running=tuple(sorted(state.reserved_jobs.get(reservation.name, ()))),
        waiting=waiting,
        in_the_way=tuple(others),
        staying=tuple(stay),
        unavailable=tuple(
            share.node
            for share, node in zip(reservation.shares, nodes, strict=True)
            if node is None or not is_available(node)
        ),
    )
