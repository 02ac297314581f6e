"""The part of `gschedd.core.apply` for reservations."""

from msgspec import structs

from gsched.model.reservation import Reservation
from gsched.model.states import JobState
from gschedd.core.state import facts as f
from gschedd.core.state.indexing import enter, leave
from gschedd.core.state.records import Job
from gschedd.core.state.state import State


def created(state: State, fact: f.ReservationCreated) -> None:
    """Nodes or GPUs are kept for some users and projects."""
    _put(state, fact.reservation.name, fact.reservation)


def changed(state: State, fact: f.ReservationChanged) -> None:
    """A reservation is another one from now on."""
    _put(state, fact.reservation.name, fact.reservation)


def begun(state: State, fact: f.ReservationBegun) -> None:
    """The window of a reservation has come."""
    reservation = state.reservations[fact.name]
    _put(state, fact.name, structs.replace(reservation, begun=True, used_s=0.0))


def ended(state: State, fact: f.ReservationEnded) -> None:
    """A reservation is no more."""
    _put(state, fact.name, None)


def left(state: State, name: str, at_s: float) -> None:
    """A job has ended that ran in a reservation, which may be over."""
    reservation = state.reservations.get(name)
    if reservation is not None and reservation.begun:
        _put(state, name, structs.replace(reservation, used_s=at_s))


def _put(state: State, name: str, reservation: Reservation | None) -> None:
    """Keep a reservation, or forget it; waiting jobs that it concerns get other classes."""
    before = state.reservations.get(name)
    is_magnetic = any(each is not None and each.magnetic for each in (before, reservation))
    concerned = [
        job for job in state.jobs.values() if _may_concern(job, name, is_magnetic=is_magnetic)
    ]
    for job in concerned:
        leave(state, job)
    if reservation is None:
        state.reservations.pop(name, None)
    else:
        state.reservations[name] = reservation
    for job in concerned:
        enter(state, job)
    state.unstored.reservations[name] = reservation
    state.volatile.reservations_changed = True
    state.dirty.mark_all()


def _may_concern(job: Job, name: str, *, is_magnetic: bool) -> bool:
    if job.state is not JobState.QUEUED:
        return False
    return job.spec.reservation == name or (is_magnetic and not job.spec.reservation)
