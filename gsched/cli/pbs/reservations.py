"""``pbs_rsub``, ``pbs_ralter``, ``pbs_rstat``, ``pbs_rdel``: reservations by OpenPBS's commands."""

import getpass
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import click
import msgspec

from gsched.cli.common import connected, gsched_command, option, print_error, print_note
from gsched.cli.moments import local_zone
from gsched.cli.show.reservations import state_word
from gsched.cli.times import parse_start_time, read_duration_s
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.config.environment import environment
from gsched.errors import GschedError, UsageError
from gsched.model.request import parse_resources
from gsched.model.reservation import Recurrence, Reservation
from gsched.model.resources import Request
from gsched.protocol.reservations import ReservationChange, ReservationRow

_DAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_EVENTS: Final = frozenset("abce")
_DAY_S: Final = 86400.0
_WEEK_S: Final = 7 * _DAY_S
_COUNT_DIGITS: Final = 4
_WHOLE_NODES: Final = (
    "gsched reserves GPUs or whole nodes: request ngpus, or add -l place=exclhost for whole nodes"
)


# --- pbs_rsub ---


@gsched_command("pbs_rsub")
@click.argument("more_hosts", nargs=-1, metavar="")
@option("-R", "start", default="", metavar="TIME", help="Start: [[[[CC]YY]MM]DD]hhmm[.SS].")
@option("-E", "end", default="", metavar="TIME", help="End, in the same format.")
@option("-D", "duration", default="", metavar="TIME", help="Duration: seconds or HH:MM:SS.")
@option("-l", "resources", multiple=True, metavar="LIST", help="What it holds, as of qsub.")
@option("--hosts", "hosts", default="", metavar="HOST...", help="For maintenance of these hosts.")
@option("-N", "name", default="", metavar="NAME", help="Its name and id [default: R1, S1, M1].")
@option("-U", "users", default="", metavar="LIST", help="Users who may use it, besides you.")
@option("-G", "groups", default="", metavar="LIST", help="Refused: reservations have no groups.")
@option("-H", "auth_hosts", default="", metavar="LIST", help="Refused, likewise for hosts.")
@option("-g", "_group", default="", metavar="LIST", help="Accepted for compatibility.")
@option("-u", "_users", default="", metavar="LIST", help="Accepted for compatibility.")
@option("-r", "rule", default="", metavar="RULE", help="Recurrence, such as FREQ=DAILY;COUNT=5.")
@option("-I", "_wait", type=int, metavar="SECONDS", help="Accepted: it is decided at once.")
@option("-m", "mail", default="", metavar="EVENTS", help="n, or a, b, c, e: no mail is sent.")
@option("-M", "mail_to", default="", metavar="LIST", help="Ignored: no mail is sent.")
@option("-q", "server", default="", metavar="SERVER", help="Only this server is accepted.")
@option("-W", "extras", multiple=True, metavar="LIST", help="delete_idle_time=TIME.")
@connected
def pbs_rsub(
    head: HeadClient, /, *, more_hosts: tuple[str, ...], as_json: bool, **given: object
) -> int:
    """Create a reservation of GPUs or nodes, or one for maintenance; operators may."""
    del as_json
    text = {name: str(value or "") for name, value in given.items()}
    hosts = (*text["hosts"].split(), *more_hosts) if text["hosts"] else ()
    if more_hosts and not hosts:
        raise UsageError(f"unexpected operand {more_hosts[0]!r}", hint="see pbs_rsub --help")
    status = head.status()
    if text["server"].removeprefix("@").lower() not in {"", status.server.lower()}:
        raise UsageError(f"cannot connect to server {text['server']}", hint="omit -q")
    _check_mail(text["mail"], text["mail_to"], "pbs_rsub")
    resources = given["resources"]
    assert isinstance(resources, tuple)
    terms: dict[str, object] = {**_times(text, resources, SystemClock().wall_s())}
    if hosts:
        if resources or text["rule"]:
            raise UsageError("--hosts cannot be combined with -l and -r", hint="omit these")
        terms |= {"node_names": hosts, "maintenance": True, "ignore_jobs": True}
    else:
        terms |= {**_held(resources, head), "users": _users(text)}
        terms |= _recurrence(text["rule"], terms)
    extras = given["extras"]
    assert isinstance(extras, tuple)
    terms |= _extras(",".join(extras))
    letter = "M" if hosts else "S" if text["rule"] else "R"
    name = text["name"] or _next_name(letter, head)
    request = msgspec.convert(
        {"verb": "create", "name": name, "terms": terms, "dry_run": False}, ReservationChange
    )
    head.change_reservation(request)
    print(f"{name}.{status.server} CONFIRMED")
    return 0


def _next_name(letter: str, head: HeadClient) -> str:
    """Return the first free one of ``R1``, ``R2`` and so on."""
    taken = {row.reservation.name for row in head.reservations().rows}
    numbered = (f"{letter}{number}" for number in range(1, len(taken) + 2))
    return next(name for name in numbered if name not in taken)


def _check_mail(events: str, mail_to: str, command: str) -> None:
    if events and events != "n" and not set(events) <= _EVENTS:
        raise UsageError(f"-m: invalid events {events[:20]!r}", hint="write n, or letters of abce")
    if mail_to or events not in {"", "n"}:
        print_note("-m and -M are ignored: reservations send no mail", command=command)


def _times(text: Mapping[str, str], resources: Sequence[str], now_s: float) -> dict[str, float]:
    """Return from when to when it is, by two of start, end and duration.

    Raises:
        UsageError: fewer or more are stated, or one cannot be read.
    """
    walltime = next((each for each in _items(resources) if each.startswith("walltime=")), "")
    stated = {"-R": text["start"], "-E": text["end"], "-D": text["duration"] or walltime[9:]}
    if sum(map(bool, stated.values())) != 2:
        raise UsageError("two of -R, -E and -D are needed", hint="write -R START -D DURATION")
    found: dict[str, float] = {}
    if stated["-D"]:
        found["duration_s"] = read_duration_s("-D", stated["-D"])
    if stated["-R"]:
        found["from_s"] = _moment("-R", stated["-R"], now_s)
    if stated["-E"]:
        found["to_s"] = _end(stated["-E"], found.get("from_s", now_s), now_s)
    if not stated["-R"]:
        found["from_s"] = found.pop("to_s") - found["duration_s"]
    return found


def _moment(flag: str, text: str, after_s: float) -> float:
    """Return the next moment after another one that a time names.

    Raises:
        UsageError: it is no time.
    """
    try:
        return parse_start_time(text, now_s=after_s)
    except UsageError as error:
        message = error.message.removeprefix("-a: ")
        raise UsageError(f"{flag}: {message}", hint=error.hint) from None


def _end(text: str, from_s: float, now_s: float) -> float:
    """Return the next moment after a beginning, or from now on, that a time names.

    Raises:
        UsageError: it is no time, or, counted from now, not after the beginning, so that another
            day may be meant, or it is a slip.
    """
    end_s = _moment("-E", text, max(from_s, now_s))
    begin, end = (time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in (from_s, end_s))
    is_number = text[:1].isdigit()
    if is_number and end_s > from_s >= _moment("-E", text, now_s) and end[:10] != begin[:10]:
        raise UsageError(
            f"-E: {text} is not after the beginning, {begin}",
            hint=f"write -E '{end}' if that is meant",
        )
    return end_s


def _items(resources: Iterable[str]) -> Iterator[str]:
    return (item.strip() for text in resources for item in text.split(","))


def _held(resources: Sequence[str], head: HeadClient) -> dict[str, object]:
    """Return the nodes or GPUs that a resource list names.

    Raises:
        UsageError: it names something else.
    """
    hosts: list[str] = []
    wanted: list[str] = []
    for item in _items(resources):
        chunks = []
        for chunk in item.split("+"):
            words = chunk.split(":")
            named = [word.partition("host=")[2] for word in words if word.startswith("host=")]
            hosts += named
            chunks.append(":".join(word for word in words if not word.startswith("host=")))
        wanted.append("+".join(chunks))
    listed = ",".join(item for item in wanted if item)
    whole = "exclhost" in listed
    generic = {name for node in head.nodes().nodes for name in node.generic}
    request = parse_resources([listed.replace("exclhost", "excl")], generic_names=generic).request
    if hosts:
        if any(each.count > 1 for each in request.chunks):
            raise UsageError("-l: a chunk with host= stands for one node", hint="write it once")
        return {"node_names": tuple(dict.fromkeys(hosts))}
    if whole or request.exclusive:
        return {"nodes": sum(each.count for each in request.chunks)}
    return _gpus(request)


def _gpus(request: Request) -> dict[str, object]:
    types = {each.gpu_type for each in request.chunks}
    if not all(each.gpus for each in request.chunks):
        raise UsageError("-l: CPUs and memory alone cannot be reserved", hint=_WHOLE_NODES)
    if len(types) > 1:
        raise UsageError("-l: GPUs of several types", hint="create a reservation for each type")
    return {"gpus": request.gpus, "gpu_type": types.pop()}


def _users(text: Mapping[str, str]) -> tuple[str, ...]:
    for flag, name in (("-G", "groups"), ("-H", "auth_hosts")):
        if text[name]:
            raise UsageError(
                f"{flag} is not supported: a reservation is for users and projects",
                hint="name users with -U, or projects with gres create --projects",
            )
    found = [getpass.getuser()]
    for each in filter(None, text["users"].split(",")):
        if each.startswith("-"):
            raise UsageError(f"-U: users cannot be excluded: {each}", hint="name those who may")
        found.append(each.removeprefix("+").partition("@")[0])
    return tuple(dict.fromkeys(found))


def _recurrence(rule: str, terms: Mapping[str, object]) -> dict[str, object]:
    """Return how often it recurs, by a rule of iCalendar.

    Raises:
        UsageError: gsched has no such recurrence.
    """
    if not rule:
        return {}
    parts = {
        name.strip().upper(): value.strip().upper()
        for name, _, value in (each.partition("=") for each in rule.split(";") if each.strip())
    }
    unknown = parts.keys() - {"FREQ", "COUNT", "UNTIL", "BYDAY"}
    days = parts.get("BYDAY", "").split(",") if parts.get("BYDAY") else []
    count = parts.get("COUNT", "1")
    digits = count.isascii() and count.isdecimal() and len(count) <= _COUNT_DIGITS
    if unknown or not set(days) <= set(_DAYS) or not digits or "FREQ" not in parts:
        what = f"{', '.join(sorted(unknown))} is not supported" if unknown else "invalid rule"
        hint = "write FREQ=DAILY, or FREQ=WEEKLY with BYDAY=MO,TU,WE,TH,FR or without"
        raise UsageError(f"-r: {what}: {rule[:60]!r}", hint=hint)
    start_s = terms["from_s"]
    assert isinstance(start_s, float)
    starts_on = _DAYS[time.localtime(start_s).tm_wday]
    recur = Recurrence.NEVER
    if parts["FREQ"] == "DAILY" and not days:
        recur = Recurrence.DAILY
    elif parts["FREQ"] == "WEEKLY" and days in ([], [starts_on]):
        recur = Recurrence.WEEKLY
    elif parts["FREQ"] == "WEEKLY" and set(days) == set(_DAYS[:5]):
        recur = Recurrence.WEEKDAYS
    elif parts["FREQ"] == "WEEKLY" and set(days) == set(_DAYS):
        recur = Recurrence.DAILY
    if recur is Recurrence.NEVER:
        raise UsageError(
            f"-r: {rule[:60]!r}: gsched repeats a reservation each day, each weekday from Monday "
            "to Friday, or each week on the day of -R",
            hint="create one reservation for each day of the week",
        )
    if "COUNT" in parts or "UNTIL" in parts:
        note = "COUNT and UNTIL are ignored: it recurs until pbs_rdel"
        print_note(note, command="pbs_rsub")
    return {"recur": recur.value, "zone": environment("PBS_TZID") or local_zone()}


def _extras(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in filter(None, text.split(",")):
        name, _, value = each.partition("=")
        if name != "delete_idle_time":
            hints = {"qmove": "galter --reservation NAME JOB lets a job start in a reservation"}
            hint = hints.get(name, "supported: delete_idle_time")
            raise UsageError(f"-W {name[:30]} is not supported", hint=hint)
        found["release_unused_s"] = read_duration_s("-W delete_idle_time", value)
    return found


# --- pbs_ralter ---


@gsched_command("pbs_ralter")
@click.argument("name", metavar="RESERVATION")
@option("-R", "start", default="", metavar="TIME", help="New start; the end stays.")
@option("-E", "end", default="", metavar="TIME", help="New end; the start stays.")
@option("-D", "duration", default="", metavar="TIME", help="New duration: seconds or HH:MM:SS.")
@option("-l", "resources", multiple=True, metavar="select=...", help="What it holds from now on.")
@option("-N", "new_name", default="", metavar="NAME", help="Refused: the name is the id here.")
@option("-U", "users", default="", metavar="LIST", help="Users who may use it, besides you.")
@option("-G", "groups", default="", metavar="LIST", help="Refused: reservations have no groups.")
@option("-I", "wait", type=int, metavar="SECONDS", help="Print CONFIRMED: it is decided at once.")
@option("-m", "mail", default="", metavar="EVENTS", help="n, or a, b, c, e: no mail is sent.")
@option("-M", "mail_to", default="", metavar="LIST", help="Ignored: no mail is sent.")
@option("-q", "server", default="", metavar="@SERVER", help="Only this server is accepted.")
@option("-W", "extras", multiple=True, metavar="force", help="Refused: limits hold for everybody.")
@connected
def pbs_ralter(head: HeadClient, /, *, name: str, as_json: bool, **given: object) -> int:
    """Change the times, the users or the nodes of a reservation; operators may."""
    del as_json
    text = {each: str(value or "") for each, value in given.items()}
    resources, extras = given["resources"], given["extras"]
    assert isinstance(resources, tuple)
    if extras:
        raise UsageError("-W force is not supported", hint="omit it: changes are decided at once")
    if text["new_name"]:
        hint = "create another reservation with that name, and delete this one"
        raise UsageError("-N: the name is the id of a reservation, and stays", hint=hint)
    server = head.status().server
    if text["server"].removeprefix("@").lower() not in {"", server.lower()}:
        raise UsageError(f"cannot connect to server {text['server']}", hint="omit -q")
    _check_mail(text["mail"], text["mail_to"], "pbs_ralter")
    rows, status = _named([name], head.reservations().rows, server, command="pbs_ralter")
    for row in rows:
        kept = row.reservation
        terms: dict[str, object] = {**_new_times(text, kept, SystemClock().wall_s())}
        if any(not each.startswith("select=") for each in resources):
            raise UsageError("-l: only select= can be changed", hint="write -l select=2:ngpus=4")
        if resources:
            terms |= _held(resources, head)
        if text["users"] or text["groups"]:
            terms["users"] = _users(text | {"auth_hosts": ""})
        if not terms and not text["mail"] and not text["mail_to"]:
            raise UsageError("nothing is to be changed", hint="see pbs_ralter --help")
        request = {"verb": "alter", "name": kept.name, "terms": terms}
        head.change_reservation(msgspec.convert(request, ReservationChange))
        outcome = "CONFIRMED" if given["wait"] is not None else "ALTER REQUESTED"
        print(f"pbs_ralter: {kept.name}.{server} {outcome}")
    return status


def _new_times(text: Mapping[str, str], kept: Reservation, now_s: float) -> dict[str, float]:
    """Return from when to when it is to be; empty: as it is.

    Raises:
        UsageError: start, end and duration are all stated, or one cannot be read.
    """
    start, end, duration = text["start"], text["end"], text["duration"]
    if start and end and duration:
        raise UsageError("-R, -E and -D: two of them make the third", hint="omit one of them")
    if not (start or end or duration):
        return {}
    lasts_s = read_duration_s("-D", duration) if duration else 0.0
    from_s = _moment("-R", start, now_s) if start else kept.from_s
    to_s = _end(end, from_s, now_s) if end else kept.to_s
    if duration and end:
        from_s = to_s - lasts_s
    elif duration:
        to_s = from_s + lasts_s
    return {"to_s": to_s} if from_s == kept.from_s else {"from_s": from_s, "to_s": to_s}


# --- pbs_rstat, pbs_rdel ---


@gsched_command("pbs_rstat")
@click.argument("names", nargs=-1, metavar="[RESERVATION...]")
@option("-B", "form", flag_value="names", help="Only their ids.")
@option("-f", "form", flag_value="full", help="All attributes.")
@option("-F", "form", flag_value="full", help="The same as -f.")
@option("-S", "form", flag_value="short", help="A line for each: the default.")
@connected
def pbs_rstat(
    head: HeadClient, /, *, names: tuple[str, ...], form: str | None, as_json: bool
) -> int:
    """List all reservations that you may use, or those named; operators see all."""
    del as_json
    server, reply = head.status().server, head.reservations()
    rows, status = _named(names, reply.rows, server, command="pbs_rstat")
    if rows and form in {None, "short"}:
        titles = _line("Resv ID", "Queue", "User", "State", "Start", "Duration", "End")
        sys.stdout.write(titles + "-" * 69 + "\n")
    for row in rows:
        if form == "names":
            sys.stdout.write(f"Resv ID: {row.reservation.name}.{server}\n")
        elif form == "full":
            fields = _attributes(row, server, reply.now_s).items()
            lines = "".join(f"{name} = {value}\n" for name, value in fields if value)
            sys.stdout.write(f"Resv ID: {row.reservation.name}.{server}\n{lines}\n")
        else:
            sys.stdout.write(_short(row, server, reply.now_s))
    return status


@gsched_command("pbs_rdel")
@click.argument("names", nargs=-1, required=True, metavar="RESERVATION...")
@connected
def pbs_rdel(head: HeadClient, /, *, names: tuple[str, ...], as_json: bool) -> int:
    """Delete reservations; jobs that run in them keep running."""
    del as_json
    server = head.status().server
    rows, status = _named(names, head.reservations().rows, server, command="pbs_rdel")
    for row in rows:
        name = row.reservation.name
        try:
            head.change_reservation(ReservationChange(verb="delete", name=name))
        except GschedError as error:
            print_error(error, command="pbs_rdel", operand=name)
            status = error.exit_code
    return status


def _named(
    operands: Sequence[str], rows: Sequence[ReservationRow], server: str, *, command: str
) -> tuple[Sequence[ReservationRow], int]:
    """Return the reservations of ``R1``, ``R1.SERVER`` and ``R1@SERVER``, and the exit status."""
    if not operands:
        return rows, 0
    known = {row.reservation.name: row for row in rows}
    found: list[ReservationRow] = []
    status = 0
    for each in (name for operand in operands for name in operand.split(",") if name):
        name = each.partition("@")[0]
        name = name if name in known else name.removesuffix(f".{server}")
        if name in known:
            found.append(known[name])
        else:
            error = UsageError(f"Unknown Reservation Id {each}", hint="pbs_rstat lists them")
            print_error(error, command=command)
            status = 1
    return found, status


def _owner(row: ReservationRow) -> str:
    return row.reservation.by or "root"


def _short(row: ReservationRow, server: str, now_s: float) -> str:
    """Return the line of a reservation; the columns cut what is too long."""
    kept = row.reservation
    state = "DG" if row.unavailable else "RN" if _is_active(kept, now_s) else "CO"
    start, end = _time(kept.from_s, now_s), _time(kept.to_s, now_s)
    duration = f"{kept.to_s - kept.from_s:.0f}"
    return _line(f"{kept.name}.{server}", kept.name, _owner(row), state, start, duration, end)


def _line(name: str, *words: str) -> str:
    queue, owner, state, start, duration, end = words
    whose = f"{name:<10.10} {queue:<8.8} {owner:<8.8} {state:<5.5}"
    return f"{whose} {start:>17.17} / {duration} / {end:<17.17}\n"


def _is_active(kept: Reservation, now_s: float) -> bool:
    return state_word(kept, now_s) == "active"


def _time(at_s: float, now_s: float) -> str:
    """Return ``Today 08:00``, ``Fri 08:00`` within a week, else with the day, and another year."""
    moment, today = time.localtime(at_s), time.localtime(now_s)
    if moment[:3] == today[:3]:
        return time.strftime("Today %H:%M", moment)
    if 0 <= at_s - now_s < _WEEK_S - _DAY_S:
        return time.strftime("%a %H:%M", moment)
    same_year = moment.tm_year == today.tm_year
    return time.strftime("%a %b %d %H:%M" if same_year else "%b %d %Y %H:%M", moment)


def _attributes(row: ReservationRow, server: str, now_s: float) -> Mapping[str, str]:
    """Return the attributes of a reservation, by OpenPBS's names and in its order."""
    kept = row.reservation
    words = "%a %b %d %H:%M:%S %Y"
    state = "RESV_RUNNING" if _is_active(kept, now_s) else "RESV_CONFIRMED"
    nodes = [
        f"({share.node}:ncpus={share.cpus}"
        + (f":ngpus={len(share.gpu_indices)}" if share.gpu_indices else "")
        + ")"
        for share in kept.shares
    ]
    gpus = sum(len(share.gpu_indices) for share in kept.shares)
    return {
        "Reserve_Name": kept.name,
        "Reserve_Owner": f"{_owner(row)}@{server}",
        "reserve_state": "RESV_DEGRADED" if row.unavailable else state,
        "reserve_start": time.strftime(words, time.localtime(kept.from_s)),
        "reserve_end": time.strftime(words, time.localtime(kept.to_s)),
        "reserve_duration": f"{kept.to_s - kept.from_s:.0f}",
        "queue": kept.name,
        "Resource_List.ncpus": str(sum(share.cpus for share in kept.shares)),
        "Resource_List.ngpus": str(gpus) if gpus else "",
        "Resource_List.nodect": str(len(kept.shares)),
        "reserve_rrule": {"daily": "FREQ=DAILY", "weekly": "FREQ=WEEKLY"}.get(
            kept.recur.value, "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR" if kept.recur else ""
        ),
        "resv_nodes": "+".join(nodes),
        "Authorized_Users": ",".join(kept.users),
        "server": server,
        "comment": kept.reason,
    }
