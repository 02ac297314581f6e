"""Reservations as ``scontrol`` and ``sinfo -T`` of Slurm show and change them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from gsched.cli.common import patient_head
from gsched.cli.moments import local_zone
from gsched.cli.show.reservations import state_word
from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.submit.foreign import TIME, slurm_time
from gsched.client import HeadClient
from gsched.errors import GschedError, UsageError
from gsched.model.host_lists import compact, expanded
from gsched.model.reservation import Reservation
from gsched.model.units import parse_duration_s
from gsched.protocol.reservations import ReservationChange, ReservationRow

#: By name in lower case: as it was written, and its value.
Assignments = Mapping[str, tuple[str, str]]
NAMES: Final = ("reservationname", "reservation")
_FLAGS: Final[Mapping[str, Mapping[str, object]]] = {
    "DAILY": {"recur": "daily"},
    "WEEKLY": {"recur": "weekly"},
    "WEEKDAY": {"recur": "weekdays"},
    "MAGNETIC": {"magnetic": True},
    "MAINT": {"maintenance": True},
    "IGNORE_JOBS": {"ignore_jobs": True},
    "REPLACE": {},
    "REPLACE_DOWN": {},
    "SPEC_NODES": {},
}
_SHOWN: Final = {"daily": "DAILY", "weekly": "WEEKLY", "weekdays": "WEEKDAY"}


def change(verb: str, stated: Assignments, begin: Callable[[str], float]) -> int:
    """Create, update or delete a reservation; print what Slurm does.

    Args:
        stated: what is said of it.
        begin: reads a time.

    Raises:
        SlurmError: it is refused.
    """
    head = patient_head(command="scontrol")
    rest = dict(stated)
    name = next((rest.pop(each)[1] for each in NAMES if each in rest), "")
    if not name and verb == "create":
        known = {row.reservation.name for row in head.reservations().rows}
        numbers = (f"reservation_{number}" for number in range(1, len(known) + 2))
        name = next(each for each in numbers if each not in known)
    rest = _with_present(rest, name, head) if verb == "update" else rest
    terms = {} if verb == "delete" else _terms(rest, begin)
    if terms.get("node_names") == ("ALL",):
        terms["node_names"] = tuple(row.name for row in head.nodes().nodes)
    words = {"create": "create", "update": "alter", "delete": "delete"}
    request = msgspec.convert(
        {"verb": words[verb], "name": name, "terms": terms}, ReservationChange
    )
    try:
        head.change_reservation(request)
    except GschedError as error:
        action = {"create": "creating", "update": "updating", "delete": "deleting"}[verb]
        raise SlurmError(f"Error {action} the reservation: {error.message}", plain=True) from None
    print(f"Reservation {'created: ' + name if verb == 'create' else verb + 'd.'}".rstrip())
    return 0


def _with_present(
    stated: dict[str, tuple[str, str]], name: str, head: HeadClient
) -> dict[str, tuple[str, str]]:
    """Return assignments in which ``users+=anna`` and ``users-=ben`` are the whole new lists.

    Raises:
        SlurmError: there is no such reservation.
    """
    signed = [key for key, (word, _) in stated.items() if word.partition("=")[0][-1:] in {"+", "-"}]
    if not set(signed) & set(_MEMBERS):
        return stated
    rows = head.reservations(name).rows
    if not rows:
        raise SlurmError(f"Error updating the reservation: unknown reservation {name}", plain=True)
    changed = dict(stated)
    for key in set(signed) & set(_MEMBERS):
        word, value = stated[key]
        named = value[1:].split(",")
        others = [each for each in getattr(rows[0].reservation, _MEMBERS[key]) if each not in named]
        changed[key] = (word, ",".join(others + named * (value[0] == "+")))
    return changed


def assignments(words: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return what is assigned to each name, in lower case.

    Raises:
        SlurmError: a word assigns nothing.
    """
    stated: dict[str, tuple[str, str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        sign = name[-1:] if name.endswith(("+", "-")) else ""
        if not equals:
            raise SlurmError(f"Invalid input: {word}\nRequest aborted", plain=True)
        stated[name.removesuffix(sign).lower()] = (word, sign + value)
    return stated


def change_words(verb: str, words: Sequence[str], begin: Callable[[str], float]) -> int:
    """Create or delete a reservation: ``create reservation user=anna nodes=n1 duration=60``.

    Raises:
        SlurmError: it is refused, or something else is to be changed.
    """
    rest = list(words)
    if rest and "=" not in rest[0] and "reservation".startswith(rest[0].lower()):
        rest = rest[1:]
        if verb == "delete" and rest and "=" not in rest[0]:
            rest[0] = f"reservationname={rest[0]}"
    stated = assignments(rest)
    if len(rest) == len(words) and not set(NAMES) & set(stated):
        raise SlurmError(f"invalid entity: {' '.join(words)} for keyword:{verb}", plain=True)
    return change(verb, stated, begin)


def _terms(stated: Assignments, begin: Callable[[str], float]) -> dict[str, object]:
    """Return what is stated of a reservation, by the names of its terms.

    Raises:
        SlurmError: an assignment cannot be read.
    """
    found: dict[str, object] = {}
    for name, (word, value) in stated.items():
        if name in _TIMES:
            found[_TIMES[name]] = begin(value)
        elif name in _READERS:
            found |= _READERS[name](value)
        else:
            raise SlurmError(f"Unsupported parameter: {word}", plain=True)
    if found.get("maintenance"):
        found.pop("users", None)
        found.pop("projects", None)
    return found


def _names(value: str) -> tuple[str, ...]:
    if "-" in {name[:1] for name in value.split(",")}:
        raise SlurmError("users and accounts cannot be excluded here", plain=True)
    return tuple(filter(None, value.split(",")))


def _nodes(value: str) -> tuple[str, ...]:
    try:
        return ("ALL",) if value == "ALL" else expanded(value, option="nodes")
    except UsageError as error:
        raise SlurmError(error.message, plain=True) from None


def _count(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 7):
        raise SlurmError(f"Invalid number: {value}", plain=True)
    return int(value)


def _duration_s(value: str) -> float:
    if TIME.fullmatch(value) is None:
        raise SlurmError(f"Invalid duration: {value}", plain=True)
    return parse_duration_s(slurm_time(value).pbs.rpartition("=")[2])


def _tres(value: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in value.split(","):
        kind, _, count = each.partition("=")
        what, _, gpu_type = kind.partition(":")
        if what == "node":
            found["nodes"] = _count(count)
        elif what == "gres/gpu":
            found |= {"gpus": _count(count), "gpu_type": gpu_type}
        else:
            raise SlurmError(f"Unsupported TRES: {each}; here node or gres/gpu", plain=True)
    return found


def _flags(value: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in value.replace("+=", "").lstrip("=").upper().split(","):
        flag, _, time = each.partition("=")
        if flag == "PURGE_COMP":
            found["release_unused_s"] = _duration_s(time or "1")
        elif flag in _FLAGS:
            found |= _FLAGS[flag]
        else:
            raise SlurmError(f"Unsupported flag: {each}; see gres(1)", plain=True)
    if "recur" in found:
        found["zone"] = local_zone()
    return found


#: Lists to which names can be added, and which fields of a reservation they are.
_MEMBERS: Final = {"users": "users", "user": "users", "accounts": "projects", "account": "projects"}
_TIMES: Final = {"starttime": "from_s", "endtime": "to_s"}
_READERS: Final[Mapping[str, Callable[[str], dict[str, object]]]] = {
    "duration": lambda value: {"duration_s": _duration_s(value)},
    **dict.fromkeys(("users", "user"), lambda value: {"users": _names(value)}),
    **dict.fromkeys(("accounts", "account"), lambda value: {"projects": _names(value)}),
    "nodes": lambda value: {"node_names": _nodes(value)},
    "nodecnt": lambda value: {"nodes": _count(value)},
    "tres": _tres,
    "flags": _flags,
    "comment": lambda value: {"reason": value},
}


def reservation_lines(row: ReservationRow, now_s: float) -> list[str]:
    """Return the record of a reservation."""
    kept = row.reservation
    cpus = sum(share.cpus for share in kept.shares)
    gpus = sum(len(share.gpu_indices) for share in kept.shares)
    nodes = [share.node for share in kept.shares]
    state = "ACTIVE" if state_word(kept, now_s) == "active" else "INACTIVE"
    users, accounts = (",".join(names) or "(null)" for names in (kept.users, kept.projects))
    held = f"Nodes={compact(nodes)} NodeCnt={len(nodes)} CoreCnt={cpus} Features=(null)"
    flags = ",".join(shown_flags(kept))
    whose = f"Users={users} Groups=(null) Accounts={accounts} Licenses=(null)"
    return [
        f"ReservationName={kept.name} {_times(kept)}",
        f"{held} PartitionName=(null) Flags={flags}",
        f"TRES=cpu={cpus}" + (f",gres/gpu={gpus}" if gpus else ""),
        f"{whose} State={state} BurstBuffer=(null)",
        *([f"Comment={kept.reason}"] if kept.reason else []),
    ]


def _times(kept: Reservation) -> str:
    start, end = w.slurm_time(kept.from_s), w.slurm_time(kept.to_s)
    return f"StartTime={start} EndTime={end} Duration={w.slurm_days(kept.to_s - kept.from_s)}"


def shown_flags(kept: Reservation) -> list[str]:
    """Return the flags of a reservation, as Slurm calls them."""
    return [
        *(["MAINT"] if kept.maintenance else []),
        *(["IGNORE_JOBS"] if kept.ignore_jobs else []),
        *([_SHOWN[kept.recur]] if kept.recur else []),
        *(["SPEC_NODES"] if kept.node_names else ["REPLACE_DOWN"]),
        *(["MAGNETIC"] if kept.magnetic else []),
        *(["PURGE_COMP"] if kept.release_unused_s else []),
    ]


def show(names: Sequence[str], print_record: Callable[[Sequence[str]], None]) -> int:
    """Print reservations.

    Raises:
        SlurmError: a name is unknown.
    """
    reply = patient_head(command="scontrol").reservations()
    known = {row.reservation.name: row for row in reply.rows}
    for name in names:
        if name not in known:
            raise SlurmError(f"Reservation {name} not found", plain=True)
    found = [known[name] for name in names] or list(known.values())
    if not found:
        print("No reservations in the system")
    for row in found:
        print_record(reservation_lines(row, reply.now_s))
    return 0


def list_reservations() -> int:
    """Print what ``sinfo -T`` does."""
    reply = patient_head(command="sinfo").reservations()
    if not reply.rows:
        print("No reservations in the system")
        return 0
    width = max(9, *(len(row.reservation.name) for row in reply.rows))
    titles = ("RESV_NAME", "STATE", "START_TIME", "END_TIME", "DURATION", "NODELIST")
    lines = [titles]
    for row in reply.rows:
        kept = row.reservation
        lines.append(
            (
                kept.name,
                "ACTIVE" if state_word(kept, reply.now_s) == "active" else "INACTIVE",
                w.slurm_time(kept.from_s),
                w.slurm_time(kept.to_s),
                w.slurm_days(kept.to_s - kept.from_s),
                compact([share.node for share in kept.shares]),
            )
        )
    for name, state, start, end, duration, nodes in lines:
        print(f"{name:<{width}}  {state:>8}  {start:>19}  {end:>19}  {duration:>11}  {nodes}")
    return 0
