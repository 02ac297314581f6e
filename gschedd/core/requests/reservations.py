"""Reservations are created, altered and deleted: the facts, or a refusal in words."""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import structs

from gsched.errors import BadStateError, InvalidRequestError, NotPermittedError
from gsched.model.job import JobSpec
from gsched.model.limits import MAX_NAMED_NODES, check_words, shown
from gsched.model.reservation import Recurrence, Reservation, zone_of
from gsched.model.units import format_duration
from gsched.protocol.reservations import ReservationTerms
from gschedd.core.nodes.reserving import check_kind, chosen
from gschedd.core.requests.authorize import Verb, authorize, may
from gschedd.core.requests.commands import ChangeReservation
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.plan.moments import moment

MAX_RESERVATIONS: Final = 500
#: How far in the future a reservation may lie, seconds: a slip of the year is no plan.
FARTHEST_S: Final = 5 * 365 * 86_400.0
#: A reservation that begins so long ago begins now: its request was under way.
PAST_S: Final = 60.0
MIN_RELEASE_S: Final = 60.0
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_DAY_S: Final = 86_400.0
_PERIODS_S: Final = {
    Recurrence.DAILY: _DAY_S,
    Recurrence.WEEKDAYS: _DAY_S,
    Recurrence.WEEKLY: 7 * _DAY_S,
}
#: Terms that decide which nodes it holds.
_PLACING: Final = ("from_s", "to_s", "nodes", "node_names", "gpus", "gpu_type", "recur", "zone")


def change_reservation(
    state: State, settings: Settings, command: ChangeReservation, now_s: float
) -> list[f.AnyFact]:
    """Return what a change of a reservation comes to.

    Raises:
        GschedError: it is refused; the message says why.
    """
    authorize(command.caller, Verb.CHANGE_RESERVATIONS)
    change, by = command.action, command.caller.user
    known = state.reservations.get(change.name)
    if change.verb == "create":
        if known is not None:
            raise BadStateError(
                f"there is a reservation {change.name} already",
                hint="choose another name, or change it: gres alter",
            )
        _check_name(change.name, state)
        reservation = _created(change.name, change.terms, by, state, settings, now_s)
        return [f.ReservationCreated(at_s=now_s, reservation=reservation)]
    if known is None:
        raise unknown_reservation(change.name, state.reservations)
    if change.verb == "delete":
        return [f.ReservationEnded(at_s=now_s, name=known.name, why="deleted", by=by)]
    altered = _altered(known, change.terms, state, settings, now_s)
    if altered == known:
        return []
    return [f.ReservationChanged(at_s=now_s, reservation=altered, why="altered", by=by)]


def unknown_reservation(name: str, known: Iterable[str]) -> InvalidRequestError:
    """Return the refusal of a reservation that does not exist, or that the caller may not see.

    Args:
        known: the reservations that the caller may see.
    """
    names = ", ".join(sorted(known)[:10]) or "there are none"
    return InvalidRequestError(f"unknown reservation {shown(name)}", hint=f"reservations: {names}")


def check_use(spec: JobSpec, caller: Caller, state: State, settings: Settings) -> None:
    """Check that a job may start in the reservation that it names.

    Raises:
        InvalidRequestError, NotPermittedError: it may not.
    """
    name, user, project = spec.reservation, spec.owner.user, spec.account
    if not name:
        return
    visible = {
        each.name: each
        for each in state.reservations.values()
        if is_visible(each, caller, projects_of(caller.user, settings))
    }
    reservation = visible.get(name)
    if reservation is None:
        raise unknown_reservation(name, visible)
    if reservation.maintenance:
        raise NotPermittedError(f"reservation {name} is for maintenance: no job runs in it")
    if not reservation.permits(user, project):
        whose = " and ".join(
            f"{word} {', '.join(names)}"
            for word, names in (("users", reservation.users), ("projects", reservation.projects))
            if names
        )
        of = f" for project {project}" if project and reservation.projects else ""
        raise NotPermittedError(
            f"{user} may not use reservation {name}{of}", hint=f"it is for {whose}"
        )


def projects_of(user: str, settings: Settings) -> frozenset[str]:
    """Return the projects of which a user is a member."""
    found = (each.name for each in settings.projects.values() if user in each.user_shares)
    return frozenset(found)


def is_visible(reservation: Reservation, caller: Caller, projects: frozenset[str]) -> bool:
    """Return whether somebody may see a reservation: operators, and whose jobs may use it.

    Args:
        projects: of the caller.
    """
    if may(caller, Verb.CHANGE_RESERVATIONS):
        return True
    return any(reservation.permits(caller.user, project) for project in ("", *projects))


def _check_name(name: str, state: State) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{shown(name)} is not a name for a reservation",
            hint="up to 64 letters, digits, '.', '_' and '-', a letter first",
        )
    if len(state.reservations) >= MAX_RESERVATIONS:
        raise BadStateError(f"there are {MAX_RESERVATIONS} reservations, the limit")


def _created(
    name: str,
    terms: ReservationTerms,
    by: str,
    state: State,
    settings: Settings,
    now_s: float,
) -> Reservation:
    from_s = terms.from_s or now_s
    if from_s < now_s - PAST_S:
        raise InvalidRequestError(
            f"reservation {name} would begin at {moment(from_s)}, which is in the past",
            hint="give a later --start, or none: it begins now",
        )
    from_s = max(from_s, now_s)
    empty = Reservation(name=name, from_s=from_s, to_s=_end_s(terms, from_s, name), by=by)
    wanted = structs.replace(empty, **_stated(terms))
    _check(wanted, settings, now_s)
    return structs.replace(wanted, shares=chosen(state, wanted))


def _altered(
    known: Reservation, terms: ReservationTerms, state: State, settings: Settings, now_s: float
) -> Reservation:
    from_s = known.from_s if terms.from_s is None else (terms.from_s or now_s)
    if from_s != known.from_s:
        if known.begun:
            raise BadStateError(
                f"reservation {known.name} has begun at {moment(known.from_s)}: its beginning can "
                "no longer change",
                hint="change its end, or delete it and create another one",
            )
        if from_s < now_s - PAST_S:
            raise InvalidRequestError(
                f"reservation {known.name} would begin at {moment(from_s)}, which is in the past",
                hint="give a later --start, or --start now",
            )
    to_s = known.to_s
    if terms.to_s is not None or terms.duration_s is not None:
        to_s = _end_s(terms, from_s, known.name)
    elif terms.from_s is not None:
        to_s = from_s + (known.to_s - known.from_s)
    changes = _stated(terms)
    if {"nodes", "node_names", "gpus"} & changes.keys():
        changes = {"nodes": 0, "node_names": (), "gpus": 0, "gpu_type": ""} | changes
    wanted = structs.replace(known, from_s=from_s, to_s=to_s, **changes)
    if wanted == known:
        return known
    if to_s <= now_s:
        raise InvalidRequestError(
            f"reservation {known.name} would have ended at {moment(to_s)}",
            hint=f"give a later --end, or delete it: gres delete {known.name}",
        )
    _check(wanted, settings, now_s)
    if all(getattr(wanted, name) == getattr(known, name) for name in _PLACING):
        return wanted
    return structs.replace(wanted, shares=chosen(state, wanted))


def _end_s(terms: ReservationTerms, from_s: float, name: str) -> float:
    if (terms.to_s is None) is (terms.duration_s is None):
        raise InvalidRequestError(
            f"reservation {name} needs either its end or its duration",
            hint="say --end TIME or --duration TIME",
        )
    to_s = terms.to_s if terms.to_s is not None else from_s + (terms.duration_s or 0.0)
    if to_s <= from_s:
        raise InvalidRequestError(
            f"reservation {name} would end at {moment(to_s)}, which is not after its beginning at "
            f"{moment(from_s)}",
            hint="give a later --end, or a longer --duration",
        )
    return to_s


def _stated(terms: ReservationTerms) -> dict[str, object]:
    """Return what is stated, by the name of a reservation's field; without its times."""
    stated = {name: value for name, value in structs.asdict(terms).items() if value is not None}
    for name in ("from_s", "to_s", "duration_s"):
        stated.pop(name, None)
    for name in ("node_names", "users", "projects"):
        if name in stated:
            words = stated[name]
            assert isinstance(words, tuple), "they are names"
            check_words(name, words, most=MAX_NAMED_NODES, longest=255)
            stated[name] = tuple(dict.fromkeys(words))
    if isinstance(stated.get("reason"), str):
        stated["reason"] = str(stated["reason"]).strip()
    return stated


def _check(wanted: Reservation, settings: Settings, now_s: float) -> None:
    """Check all of a reservation but its nodes.

    Raises:
        InvalidRequestError: something of it cannot be.
    """
    name = wanted.name
    check_kind(wanted)
    if wanted.from_s > now_s + FARTHEST_S or wanted.to_s > now_s + 2 * FARTHEST_S:
        raise InvalidRequestError(
            f"reservation {name} would begin at {moment(wanted.from_s)} and end at "
            f"{moment(wanted.to_s)}: more than five years from now, or for longer than that"
        )
    if not wanted.maintenance and not wanted.users and not wanted.projects:
        raise InvalidRequestError(
            f"reservation {name} is for nobody",
            hint="say --users USER,... or --projects PROJECT,..., or --maintenance",
        )
    if wanted.maintenance and (wanted.users or wanted.projects or wanted.magnetic):
        raise InvalidRequestError(
            f"reservation {name} is for maintenance: no job runs in it, so it has no users, no "
            "projects, and is not magnetic"
        )
    for project in wanted.projects:
        if settings.projects and project not in settings.projects:
            known = ", ".join(sorted(settings.projects)[:10])
            raise InvalidRequestError(
                f"unknown project {shown(project)}", hint=f"projects here: {known}"
            )
    if wanted.release_unused_s and wanted.release_unused_s < MIN_RELEASE_S:
        raise InvalidRequestError(
            "an unused reservation is released after a minute at the earliest",
            hint="--release-unused is in minutes",
        )
    if zone_of(wanted.zone) is None:
        raise InvalidRequestError(
            f"unknown time zone {shown(wanted.zone)}", hint="as Europe/Berlin, or UTC"
        )
    period_s = _PERIODS_S.get(wanted.recur)
    if period_s is not None and wanted.to_s - wanted.from_s >= period_s:
        raise InvalidRequestError(
            f"reservation {name} recurs {wanted.recur} and would last "
            f"{format_duration(wanted.to_s - wanted.from_s)}: its next window would begin before "
            "it has ended",
            hint=f"give a --duration below {format_duration(period_s)}",
        )
