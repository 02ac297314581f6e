"""Reservations of a simulated cluster: a TOML file with ``[[reservation]]`` tables."""

import tomllib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gsched.errors import BadResourceError, UsageError
from gsched.model.numbers import Count
from gsched.model.reservation import AtEnd
from gsched.model.units import parse_duration_s
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from gschedd.core.state.settings import Caller

OPERATOR: Final = Caller(user="operator", uid=0, gid=0, operator=True)
_MINUTE_S: Final = 60.0


class SimReservation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[reservation]]``: as the options of ``gres create``, but for its beginning.

    Attributes:
        start: after the beginning of the simulation: ``0``, ``36h``.
        nodes: so many, or their names.
        magnetic: jobs of its users use it unasked, as the jobs of a trace name none.
    """

    name: str
    duration: str
    start: str = "0"
    nodes: Count | tuple[str, ...] = 0
    gpus: Count = 0
    gpu_type: str = ""
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    magnetic: bool = True
    maintenance: bool = False
    ignore_jobs: bool = False
    release_unused: Count = 0
    at_end: AtEnd = AtEnd.REQUEUE


class _ReservationFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reservation: tuple[SimReservation, ...] = ()


def read_reservations(path: str, begin_s: float) -> tuple[ReservationChange, ...]:
    """Return the reservations that a file describes.

    Args:
        begin_s: when the simulation begins, seconds since the epoch.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = msgspec.convert(tomllib.loads(text), _ReservationFile)
        return tuple(_change(each, begin_s) for each in found.reservation)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"reservations {path}: {error}") from error
    except BadResourceError as error:
        raise UsageError(f"reservations {path}: {error.message}", hint=error.hint) from None
    except msgspec.ValidationError as error:
        known = ", ".join(SimReservation.__struct_fields__)
        raise UsageError(f"reservations {path}: {error}", hint=f"keys: {known}") from error


def _change(stated: SimReservation, begin_s: float) -> ReservationChange:
    offset_s = 0.0 if stated.start == "0" else parse_duration_s(stated.start)
    count = stated.nodes if isinstance(stated.nodes, int) else 0
    return ReservationChange(
        verb="create",
        name=stated.name,
        terms=ReservationTerms(
            from_s=begin_s + offset_s,
            duration_s=parse_duration_s(stated.duration),
            nodes=count,
            node_names=() if isinstance(stated.nodes, int) else stated.nodes,
            gpus=stated.gpus,
            gpu_type=stated.gpu_type,
            users=stated.users,
            projects=stated.projects,
            magnetic=stated.magnetic and not stated.maintenance,
            maintenance=stated.maintenance,
            ignore_jobs=stated.ignore_jobs,
            release_unused_s=stated.release_unused * _MINUTE_S,
            at_end=stated.at_end,
        ),
    )
