"""Reservations in words and tables."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gsched.cli.common import printable
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_table
from gsched.cli.times import format_time
from gsched.model.host_lists import compact
from gsched.model.ids import short_job_id
from gsched.model.reservation import Reservation
from gsched.model.units import format_duration, format_gpus
from gsched.model.wording import counted
from gsched.protocol.reservations import ReservationRow

COLUMNS: Final = (
    Column("Name", style="bold"),
    Column("State"),
    Column("Start"),
    Column("End"),
    Column("Holds", wraps=True, least=12),
    Column("For", wraps=True, least=10),
    Column("Recurs", drop=1),
    Column("Running", right=True, drop=2),
    Column("Waiting", right=True, drop=3),
    Column("Reason", wraps=True, least=10, drop=4),
)
_MINUTE_S: Final = 60.0
_DRY_RUN: Final = "not changed: a dry run"
#: Jobs that a note names.
_NAMED: Final = 5


def print_reservations(rows: Iterable[ReservationRow], *, now_s: float, color: str) -> None:
    """Print a line for each reservation."""
    print_table(COLUMNS, [reservation_cells(row, now_s) for row in rows], color=color)


def reservation_cells(row: ReservationRow, now_s: float) -> Sequence[str]:
    """Return the line of a reservation."""
    kept = row.reservation
    return (
        kept.name,
        state_word(kept, now_s),
        format_time(kept.from_s),
        format_time(kept.to_s),
        held_words(kept),
        for_words(kept),
        kept.recur.value,
        str(len(row.running)),
        str(len(row.waiting)),
        kept.reason,
    )


def state_word(kept: Reservation, now_s: float) -> str:
    """Return ``active`` or ``planned``."""
    return "active" if kept.from_s <= now_s < kept.to_s else "planned"


def held_words(kept: Reservation) -> str:
    """Return ``2 nodes: n[1-2]`` or ``3 GPUs: n1 (0-1), n2 (3)``."""
    if all(share.exclusive for share in kept.shares):
        names = [share.node for share in kept.shares]
        return f"{counted(len(names), 'node')}: {compact(names)}"
    gpus = sum(len(share.gpu_indices) for share in kept.shares)
    where = (f"{s.node} ({compact(map(str, s.gpu_indices)).strip('[]')})" for s in kept.shares)
    return f"{format_gpus(gpus)}: {', '.join(where)}"


def for_words(kept: Reservation) -> str:
    """Return for whom it is: ``users anna,ben; projects vision``."""
    if kept.maintenance:
        return "maintenance"
    parts = (("users", kept.users), ("projects", kept.projects))
    return "; ".join(f"{word} {','.join(names)}" for word, names in parts if names)


def print_reservation(row: ReservationRow, *, now_s: float, dry_run: bool = False) -> None:
    """Print everything about a reservation, of a dry run as it would be, and a blank line."""
    kept = row.reservation
    requested = (
        ",".join(kept.node_names)
        or (counted(kept.nodes, "node") if kept.nodes else "")
        or f"{format_gpus(kept.gpus)} {kept.gpu_type}".rstrip()
    )
    release = kept.release_unused_s / _MINUTE_S
    fields = (
        ("state", _DRY_RUN if dry_run else state_word(kept, now_s)),
        ("start", format_time(kept.from_s)),
        ("end", format_time(kept.to_s)),
        ("duration", format_duration(round(kept.to_s - kept.from_s))),
        ("requested", requested),
        ("holds", held_words(kept)),
        ("users", ",".join(kept.users)),
        ("projects", ",".join(kept.projects)),
        ("recurs", f"{kept.recur.value} ({kept.zone})" if kept.recur else ""),
        ("flags", ",".join(_flags(kept))),
        ("release_unused", f"after {release:g} min" if release else ""),
        ("at_end", "" if kept.maintenance else kept.at_end.value),
        ("running", _jobs(row.running, len(row.running))),
        ("waiting", _jobs(row.waiting, len(row.waiting))),
        ("in_the_way", _jobs(row.in_the_way, len(row.in_the_way))),
        ("unavailable", ",".join(row.unavailable)),
        ("created_by", kept.by),
        ("reason", kept.reason),
    )
    print(printable(kept.name))
    for name, value in fields:
        if value:
            print(printable(f"    {name} = {value}"))
    print()


def _flags(kept: Reservation) -> Iterator[str]:
    for name in ("magnetic", "maintenance", "ignore_jobs"):
        if getattr(kept, name):
            yield name.replace("_", "-")


def notes_of(row: ReservationRow) -> Iterator[str]:
    """Yield what an operator should know of a reservation that was created or altered."""
    leaving = [job for job in row.in_the_way if job not in row.staying]
    if leaving:
        yield (
            f"{_counted_jobs(leaving)} may still run at its beginning, and "
            f"{'gives' if len(leaving) == 1 else 'give'} way then: "
            "by a checkpoint, or requeued"
        )
    if row.staying:
        one = len(row.staying) == 1
        yield (
            f"{_counted_jobs(row.staying)} may still run at its beginning and "
            f"{'keeps' if one else 'keep'} running: the reservation waits for what "
            f"{'it has' if one else 'they have'}"
        )
    if row.unavailable:
        one = len(row.unavailable) == 1
        yield f"{compact(row.unavailable)} {'accepts' if one else 'accept'} no jobs now"


def _counted_jobs(jobs: Sequence[int]) -> str:
    return f"{counted(len(jobs), 'job')} ({_jobs(jobs, _NAMED)})"


def _jobs(jobs: Sequence[int], most: int) -> str:
    shown = ",".join(map(short_job_id, jobs[:most]))
    return f"{shown},..." if len(jobs) > most else shown
