"""greport: reports of past jobs, for people and for cron."""

import csv
import sys
import time
from collections.abc import Callable, Sequence

import click

from gsched.cli.common import (
    color_option,
    connected,
    gsched_command,
    option,
    print_json,
    print_note,
)
from gsched.cli.moments import parse_moment
from gsched.cli.monitor import MonitorClient
from gsched.cli.running import runner
from gsched.cli.show.columns import Column
from gsched.cli.show.fields import fields_of, shape_options, shaped
from gsched.cli.show.render import print_table
from gsched.cli.show.usage import COLUMNS, GROUPS, csv_rows, table_rows
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.errors import UsageError
from gsched.model.wording import counted
from gsched.protocol.reports import UsageReply, UsageRow

DAY_S = 86400.0
NOON_S = DAY_S / 2  # added to midnight, so that days of 23 and 25 hours do not matter

EPILOG = """\b
Examples:
  greport                                   yesterday and today, by user
  greport weekly                            the last complete week: all figures
  greport monthly --of 2026-10 --html > october.html
  greport weekly --mail root
  greport --since 2026-10 --until 2026-11 --by account
  greport --since 7d --by day -u alice
  greport --since yesterday --until today --csv >> /var/log/gsched/usage.csv
  greport --since 2026-01 --until 2027-01 --swf > 2026.swf
  greport --by outcome --jq '.rows[] | [.group, .jobs]'
"""


@gsched_command("greport", cls=shaped("Greport", fields_of(UsageRow)), epilog=EPILOG)
@click.argument("form", required=False, default="", metavar="[daily|weekly|monthly]")
@shape_options
@option(
    "--of",
    "of_date",
    default="",
    metavar="DATE",
    help="The day, week or month of a report that has this date; default: the last complete one.",
)
@option(
    "--since",
    default="",
    metavar="TIME",
    help="Jobs that ended at or after this: 2d, yesterday, 2026-11-20.  [default: yesterday]",
)
@option("--until", default="", metavar="TIME", help="Jobs that ended before this.")
@option(
    "--by",
    default="",
    metavar="GROUP",
    help="A line for each user, project (account), queue, name, outcome, node, gpu-type, day,"
    " week or month.  [default: user]",
)
@option("-u", "--user", default="", metavar="USER", help="Only jobs of this user.")
@option("-q", "--queue", default="", metavar="QUEUE", help="Only jobs of this queue.")
@option("-N", "--name", default="", metavar="NAME", help="Only jobs of this name; * and ?.")
@option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@option("--swf", "as_swf", is_flag=True, help="Print the jobs in the Standard Workload Format.")
@option("--html", "as_html", is_flag=True, help="Print a report as one HTML file.")
@option(
    "--mail",
    "recipients",
    default="",
    metavar="ADDRESS",
    help="Send a report by mail, with the HTML file, as [notify] says; for operators.",
)
@color_option
@connected
def greport(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
    /,
    *,
    form: str,
    of_date: str,
    since: str,
    until: str,
    by: str,
    user: str,
    queue: str,
    name: str,
    as_csv: bool,
    as_html: bool,
    as_swf: bool,
    recipients: str,
    color: str,
    as_json: bool,
) -> int:
    """Report the use of the cluster: of past jobs in groups, or of a day, week or month.

    CPU- and GPU-hours are what jobs had, whether they used them or not; "CPU used" is the part of
    the CPU-hours that was used. With daily, weekly or monthly: utilisation, use by user, account,
    queue and GPU type, waits, efficiency, deadlines, predictions, migrations, pre-emption, idle
    GPUs and failures of that period.
    """
    chosen = {
        "--csv": as_csv,
        "--html": as_html,
        "--swf": as_swf,
        "--json": as_json,
        "--mail": bool(recipients),
    }
    _check_options(form, of_date, (since, until, by), [each for each in chosen if chosen[each]])
    filters = {"user": user, "queue": queue, "name": name}
    now_s = SystemClock().wall_s()
    monitor = MonitorClient(head)
    if form:
        since_s, until_s = period_of(form, of_date, now_s)
        wanted: dict[str, str | float] = {"since": since_s, "until": until_s, **filters}
        if recipients:
            sent = monitor.mail(form, recipients, **wanted)
            print_note(f"the report goes to {sent.recipients}", command="greport")
            return 0
        return _report(monitor, form, wanted, as_csv=as_csv, as_html=as_html, as_json=as_json)
    since_s = parse_moment(since or "yesterday", now_s=now_s, option="--since")
    until_s = parse_moment(until or "now", now_s=now_s, option="--until")
    if until_s <= since_s:
        raise UsageError(
            f"the period from {since or 'yesterday'} to {until or 'now'} is empty",
            hint="give a later --until",
        )
    if as_swf:
        text = monitor.get_text("/v1/swf", since=since_s, until=until_s, **filters)
        sys.stdout.write(text.decode())
        return 0
    by = "account" if by == "project" else by or "user"
    reply = monitor.usage(by, since=since_s, until=until_s, **filters)
    _note_behind(reply.behind)
    _print_usage(reply, as_csv=as_csv, as_json=as_json, color=color)
    return 0


def _check_options(
    form: str, of_date: str, listed: tuple[str, str, str], chosen: Sequence[str]
) -> None:
    """Check options against each other.

    Raises:
        UsageError: two exclude each other, or a report or group is unknown.
    """
    since, until, by = listed
    if form not in {"", *PERIODS}:
        raise UsageError(f"unknown report {form!r}", hint=f"valid: {', '.join(PERIODS)}")
    if by and by not in GROUPS:
        raise UsageError(f"--by: unknown group {by!r}", hint=f"valid: {', '.join(GROUPS)}")
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} are mutually exclusive", hint="give one of them")
    if form and (since or until or by):
        option = "--since" if since else "--until" if until else "--by"
        raise UsageError(
            f"{form} and {option} are mutually exclusive", hint="choose the period with --of DATE"
        )
    if "--swf" in chosen and (form or by):
        option = form or "--by"
        raise UsageError(
            f"{option} and --swf are mutually exclusive", hint="--swf prints all jobs of a period"
        )
    of_report = ["--of"] if of_date else [each for each in chosen if each in {"--html", "--mail"}]
    if not form and of_report:
        option = of_report[0]
        raise UsageError(f"{option} is of a report", hint=f"say which: greport weekly {option}")


def _report(
    monitor: MonitorClient,
    form: str,
    wanted: dict[str, str | float],
    *,
    as_csv: bool,
    as_html: bool,
    as_json: bool,
) -> int:
    from gsched.cli.show.report_sections import csv_lines, text_of  # late: plain lists do without

    if as_html:
        page = monitor.get_text("/v1/report.html", form=form, **wanted)
        sys.stdout.write(page.decode())
        return 0
    report = monitor.report(form, **wanted)
    if as_json:
        print_json(report)
    elif as_csv:
        _note_behind(report.behind)
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_lines(report))
    else:
        sys.stdout.write(text_of(report))
    return 0


def _print_usage(reply: UsageReply, *, as_csv: bool, as_json: bool, color: str) -> None:
    if as_json:
        print_json(reply)
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(reply.rows))
    else:
        title = "GPU type" if reply.by == "gpu-type" else reply.by.capitalize()
        columns = (Column(title, style="bold", least=8), *COLUMNS)
        print_table(columns, table_rows(reply.rows), color=color)


def _note_behind(behind: int) -> None:
    if behind:
        text = f"{counted(behind, 'event')} are not counted yet: the monitor is still reading them"
        print_note(text, command="greport")


def period_of(form: str, of_date: str, now_s: float) -> tuple[float, float]:
    """Return the first and the last moment of a report's period, in local time.

    Without a date it is the last complete day, week from Monday, or month.

    Raises:
        UsageError: the date is none, or in the future.
    """
    moment_s = parse_moment(of_date, now_s=now_s, option="--of") if of_date else now_s
    begin_s, end_s = PERIODS[form](moment_s)
    if not of_date:
        return PERIODS[form](begin_s - NOON_S)
    if begin_s > now_s:
        raise UsageError(f"--of: {of_date} is in the future", hint="give a date of the past")
    return begin_s, end_s


def _day(moment_s: float) -> tuple[float, float]:
    begin_s = _midnight_s(moment_s)
    return begin_s, _midnight_s(begin_s + DAY_S + NOON_S)


def _week(moment_s: float) -> tuple[float, float]:
    monday_s = _midnight_s(moment_s) - time.localtime(moment_s).tm_wday * DAY_S
    begin_s = _midnight_s(monday_s + NOON_S)
    return begin_s, _midnight_s(begin_s + 7 * DAY_S + NOON_S)


def _month(moment_s: float) -> tuple[float, float]:
    here = time.localtime(moment_s)
    begin, end = ((here.tm_year, month, 1, 0, 0, 0, 0, 0, -1) for month in
                  (here.tm_mon, here.tm_mon + 1))  # fmt: skip
    return time.mktime(begin), time.mktime(end)


def _midnight_s(moment_s: float) -> float:
    here = time.localtime(moment_s)
    return time.mktime((*here[:3], 0, 0, 0, 0, 0, -1))


#: The period of each report around a moment.
PERIODS: dict[str, Callable[[float], tuple[float, float]]] = {
    "daily": _day,
    "weekly": _week,
    "monthly": _month,
}


main = runner(greport)

if __name__ == "__main__":
    main()
