"""``gres``: reservations of nodes and GPUs for users and projects."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click
import msgspec

from gsched.cli.common import (
    color_option,
    connected,
    gsched_command,
    is_terminal,
    print_json,
    print_note,
)
from gsched.cli.moments import local_zone, parse_coming
from gsched.cli.running import runner
from gsched.cli.show.calendar import calendar_lines
from gsched.cli.show.render import terminal_width
from gsched.cli.show.reservations import notes_of, print_reservation, print_reservations
from gsched.cli.times import local_times, read_duration_s
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.config.environment import environment
from gsched.config.errors import closest
from gsched.errors import GschedError, UsageError
from gsched.model.host_lists import expanded
from gsched.model.reservation import AtEnd
from gsched.protocol.reservations import (
    ReservationChange,
    ReservationRow,
    ReservationsReply,
    ReservationTerms,
)

EPILOG = """\b
Examples:
  gres create course --start "2026-12-01 08:00" --duration 4h --gpus 8:a100 --users anna,ben
  gres create night --start 22:00 --duration 8h --nodes n[1-4] --projects vision --recur daily
  gres alter course --end "2026-12-01 14:00";  gres delete course
  gres calendar --days 14
  gsub --reservation course job.sh
"""
_CHANGES: Final = ("create", "alter", "delete")
_SHOWS: Final = ("list", "show", "calendar")
_MINUTE_S: Final = 60.0
_DAYS_MOST: Final = 366
#: The width of a calendar that no terminal shows.
_WIDTH: Final = 80
_DIGITS_MOST: Final = 6


@gsched_command("gres", epilog=EPILOG)
@click.option("--start", default="", metavar="TIME", help="When it begins [default: now].")
@click.option("--end", default="", metavar="TIME", help="When it ends; +4h: after its beginning.")
@click.option("--duration", default="", metavar="TIME", help="How long it is, such as 4h or 1d.")
@click.option("--nodes", default="", metavar="N|LIST", help="So many whole nodes, or these.")
@click.option("--gpus", default="", metavar="N[:TYPE]", help="So many GPUs on any nodes.")
@click.option("--users", metavar="LIST", help="Users whose jobs may use it; '' for none.")
@click.option("--projects", metavar="LIST", help="Projects whose jobs may use it; '' for none.")
@click.option(
    "--recur",
    type=click.Choice(["daily", "weekly", "weekdays", "never"]),
    help="Repeat it at the same time of day.",
)
@click.option("--magnetic/--no-magnetic", default=None, help="Matching jobs use it unasked.")
@click.option("--maintenance", is_flag=True, default=None, help="No job runs in it.")
@click.option(
    "--ignore-jobs/--no-ignore-jobs",
    default=None,
    help="Running jobs of others do not give way at its beginning.",
)
@click.option(
    "--release-unused",
    type=click.IntRange(0, 525_600),
    metavar="MINUTES",
    help="End it when no job has used it for so long; 0: never.",
)
@click.option(
    "--at-end",
    type=click.Choice([each.value for each in AtEnd]),
    help="What becomes of jobs that still run in it at its end [default: requeue].",
)
@click.option("-m", "--reason", metavar="TEXT", help="What it is for, for everybody.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what it would hold.")
@click.option(
    "--days",
    type=click.IntRange(1, _DAYS_MOST),
    default=7,
    metavar="N",
    help="calendar: so many days [default: 7].",
)
@click.argument("words", nargs=-1, metavar="[list|show|calendar|create|alter|delete] [NAME...]")
@color_option
@connected
def gres(head: HeadClient, /, *, words: tuple[str, ...], **flags: object) -> int:
    """Show reservations and, for operators, create, alter and delete them.

    A reservation keeps whole nodes, or GPUs with their part of a node's CPUs and memory, for the
    jobs of some users and projects in a window of time. Jobs of others start there only if they end
    before it begins; those that still run then save their state and wait again, or are requeued.
    """
    verb, names = (words[0], words[1:]) if words else ("list", ())
    as_json = bool(flags["as_json"])
    if verb in _CHANGES:
        return _change(head, verb, names, flags, as_json=as_json)
    if verb not in _SHOWS:
        known = (*_SHOWS, *_CHANGES)
        near = closest(verb, known) or f"valid: {', '.join(known)}"
        raise UsageError(f"unknown command {verb!r}", hint=near)
    reply = head.reservations()
    rows = _named(reply, names)
    if as_json:
        print_json({"now_s": reply.now_s, "reservations": rows})
        return 0
    if reply.warning:
        print_note(reply.warning, command="gres")
    if verb == "calendar":
        width = terminal_width() if is_terminal(sys.stdout) else _columns()
        days = int(str(flags["days"]))
        nodes = head.nodes().nodes
        print("\n".join(calendar_lines(rows, nodes, now_s=reply.now_s, days=days, width=width)))
    elif verb == "show":
        for row in rows:
            print_reservation(row, now_s=reply.now_s)
    else:
        print_reservations(rows, now_s=reply.now_s, color=str(flags["color"]))
    return 0


def _columns() -> int:
    text = environment("COLUMNS")
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 5 else _WIDTH


def _named(reply: ReservationsReply, names: Sequence[str]) -> Sequence[ReservationRow]:
    """Return the rows of some reservations, or of all."""
    rows = {row.reservation.name: row for row in reply.rows}
    for name in names:
        if name not in rows:
            known = ", ".join(rows) or "there are none for you"
            raise UsageError(f"unknown reservation {name!r}", hint=f"reservations: {known}")
    return [rows[name] for name in names] if names else list(rows.values())


def _change(
    head: HeadClient,
    verb: str,
    names: Sequence[str],
    flags: Mapping[str, object],
    *,
    as_json: bool,
) -> int:
    if not names or (verb == "create" and len(names) > 1):
        wanted = "NAME" if verb == "create" else "NAME..."
        raise UsageError(f"{verb}: one name is needed", hint=f"gres {verb} {wanted}")
    clock_s = SystemClock().wall_s()
    begins = _begins(head, verb, names, flags)
    terms = _terms(flags, clock_s, begins.get(names[0]))
    if verb == "delete" and terms != ReservationTerms():
        raise UsageError("delete: it takes no options but --dry-run", hint="gres delete NAME...")
    if verb == "alter" and terms == ReservationTerms():
        raise UsageError("alter: nothing to change", hint="see `gres --help`")
    dry_run = bool(flags["dry_run"])
    changed: list[ReservationRow] = []
    now_s, refused = 0.0, None
    for number, name in enumerate(names):
        change = ReservationChange(
            verb=verb,  # type: ignore[arg-type] # one of the three
            name=name,
            terms=_terms(flags, clock_s, begins.get(name)),
            dry_run=dry_run,
        )
        try:
            reply = head.change_reservation(change)
        except GschedError as error:
            if number == 0:
                raise
            left = f"unchanged: {', '.join(names[number:])}"
            refused = type(error)(f"{name}: {error.message}; {left}", hint=error.hint)
            break
        changed.extend(reply.rows)
        now_s = reply.now_s
    _print_changed(changed, now_s, dry_run=dry_run, as_json=as_json)
    if refused is not None:
        raise refused
    return 0


def _begins(
    head: HeadClient, verb: str, names: Sequence[str], flags: Mapping[str, object]
) -> Mapping[str, float]:
    """Return when reservations begin, by name, where a new end counts from there.

    Raises:
        UsageError: one of several is unknown: none is changed.
    """
    is_kept = verb == "alter" and flags["end"] and not flags["start"]
    if not is_kept and len(names) == 1:
        return {}
    known = head.reservations()
    if len(names) > 1:
        _named(known, names)
    return {row.reservation.name: row.reservation.from_s for row in known.rows if is_kept}


def _print_changed(
    changed: Sequence[ReservationRow], now_s: float, *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        print_json({"now_s": now_s, "reservations": changed, "dry_run": dry_run})
        return
    for row in changed:
        print_reservation(row, now_s=now_s, dry_run=dry_run)
        for note in notes_of(row):
            print_note(local_times(note), command="gres")


def _terms(
    flags: Mapping[str, object], now_s: float, begin_s: float | None = None
) -> ReservationTerms:
    """Return what is stated of a reservation, which begins at ``begin_s`` unless that is stated."""
    stated: dict[str, object] = {**_times(flags, now_s, begin_s), **_resources(flags)}
    for name in ("users", "projects"):
        if flags[name] is not None:
            stated[name] = tuple(filter(None, str(flags[name]).replace(" ", "").split(",")))
    if flags["recur"] is not None:
        recur = str(flags["recur"])
        stated |= {"recur": "" if recur == "never" else recur, "zone": local_zone()}
    if flags["release_unused"] is not None:
        stated["release_unused_s"] = int(str(flags["release_unused"])) * _MINUTE_S
    names = ("magnetic", "maintenance", "ignore_jobs", "at_end", "reason")
    stated |= {name: flags[name] for name in names if flags[name] is not None}
    return msgspec.convert(stated, ReservationTerms)


def _times(flags: Mapping[str, object], now_s: float, begin_s: float | None) -> dict[str, object]:
    start, end, duration = (str(flags[name]) for name in ("start", "end", "duration"))
    found: dict[str, object] = {}
    from_s = begin_s if begin_s is None or begin_s > now_s or end.startswith("+") else None
    if start:
        from_s = parse_coming(start, now_s=now_s, option="--start")
        found["from_s"] = 0.0 if start == "now" else from_s
    if end:
        found["to_s"] = parse_coming(end, now_s=now_s, option="--end", begin_s=from_s)
    if duration:
        found["duration_s"] = read_duration_s("--duration", duration)
    return found


def _resources(flags: Mapping[str, object]) -> dict[str, object]:
    nodes, gpus = str(flags["nodes"]), str(flags["gpus"])
    found: dict[str, object] = {}
    if nodes and nodes.isascii() and nodes.isdecimal():
        found["nodes"] = _number(nodes, option="--nodes", hint="write 4 or n1,n[4-6]")
    elif nodes:
        found["node_names"] = expanded(nodes, option="--nodes")
    if gpus:
        hint = "write 4 or 4:a100"
        count, colon, gpu_type = gpus.partition(":")
        found["gpus"] = _number(count, option="--gpus", hint=hint)
        if colon and not gpu_type:
            raise UsageError(f"--gpus: no type of GPUs in {gpus!r}", hint=hint)
        found["gpu_type"] = gpu_type
    return found


def _number(text: str, *, option: str, hint: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MOST):
        raise UsageError(f"{option}: invalid number {text[:20]!r}", hint=hint)
    return int(text)


main = runner(gres)

if __name__ == "__main__":
    main()
