"""sreport: use of the cluster by user and account, in Slurm's columns.

Hours are those within the period, also of jobs that still run, as Slurm counts them.
"""

import pwd
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from gsched.cli.common import printable
from gsched.cli.monitor import MonitorClient
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.moments import past_moment
from gsched.cli.slurm.options import parsed
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.protocol.reports import HeldReply, HeldRow

#: What is counted, as ``--tres`` names it, and how its seconds are read from a row.
_TRES: Final[Mapping[str, Callable[[HeldRow], float]]] = {
    "cpu": lambda row: row.cpu_s,
    "gres/gpu": lambda row: row.gpu_s,
}
#: Units of ``-t``, and how a title names them.
_UNITS: Final = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
_FORMATS: Final = {
    **{name: (name, False) for name in _UNITS},
    "percent": ("", True),
    "secper": ("seconds", True),
    "minper": ("minutes", True),
    "hourper": ("hours", True),
}
_SETTINGS: Final = ("start", "end", "users", "accounts", "topcount")
_RULE: Final = "-" * 80
_TOP: Final = 10
_SIZES: Final = (50, 250, 500, 1000)


class SreportColumn(NamedTuple):
    """A column: its title and width; below 0: to the left."""

    title: str
    width: int


class Wish(NamedTuple):
    """What a command line requests.

    Attributes:
        unit: of the figures; empty: none but percent.
        named: ``users=``, ``accounts=`` and others, by name.
    """

    unit: str
    percent: bool
    tres: Sequence[str]
    named: Mapping[str, str]

    def used(self, used_s: float, all_s: float) -> str:
        """Return a figure in its unit, in percent of all, or both."""
        words = [f"{used_s / _UNITS[self.unit]:.0f}"] if self.unit else []
        words += [f"{100.0 * used_s / all_s if all_s else 0.0:.2f}%"] if self.percent else []
        return f"{words[0]}({words[1]})" if len(words) > 1 else words[0]

    def wanted(self, name: str) -> frozenset[str]:
        """Return the values of ``users=``, say; none: all."""
        return frozenset(filter(None, self.named.get(name, "").split(",")))


Lines = Iterable[Sequence[str]]


class SreportForm(NamedTuple):
    """A report: its heading, its columns, and its lines for one resource."""

    heading: str
    columns: Sequence[SreportColumn]
    lines: Callable[[HeldReply, str, Wish], Lines]


def sreport(words: Sequence[str]) -> int:
    """Print a report of the use of the cluster."""
    options, operands = parsed(words, "sreport")
    form, named = form_of(operands)
    wish = wish_of(options, named)
    since_s, until_s = period_of(named, SystemClock().wall_s())
    reply = MonitorClient(HeadClient()).held(since=since_s, until=until_s)
    sys.stdout.write("".join(f"{line}\n" for line in report_lines(form, wish, reply, options)))
    return 0


def form_of(operands: Sequence[str]) -> tuple[SreportForm, dict[str, str]]:
    """Return the report that is named, and the settings behind it.

    Raises:
        SlurmError: it is none, or one that gsched does not have.
    """
    names = [word for word in operands if "=" not in word]
    settings = (word.partition("=") for word in operands if "=" in word)
    named = {_setting(name): value for name, _, value in settings}
    if len(names) < 2:
        raise SlurmError("no report: say which, as: sreport cluster utilization", plain=True)
    group, name = (word.lower() for word in names[:2])
    for (of, title), form in _FORMS.items():
        if of.startswith(group) and title.lower().startswith(name):
            return form, named
    valid = ", ".join(f"{of} {title}" for of, title in _FORMS)
    raise SlurmError(f"no report {' '.join(names[:2])}; valid: {valid}", plain=True)


def _setting(name: str) -> str:
    """Return a setting by its name or the begin of it, as Slurm takes them.

    Raises:
        SlurmError: it is none: what is not known must not be left out, as it chooses jobs.
    """
    for setting in _SETTINGS:
        if name and setting.startswith(name.lower()):
            return setting
    valid = ", ".join(f"{each}=" for each in _SETTINGS)
    raise SlurmError(f"unknown setting {name}=; valid: {valid}", plain=True)


def wish_of(options: Mapping[str, str], named: Mapping[str, str]) -> Wish:
    """Return in which units which resources are requested.

    Raises:
        SlurmError: one of them is unknown.
    """
    stated = options.get("time", "minutes").lower()
    matches = [form for form in _FORMATS if form.startswith(stated)]
    if not stated or not matches:
        raise SlurmError(f"unknown time format {options['time']}", plain=True)
    unit, percent = _FORMATS[matches[0]]
    tres = options.get("tres", "cpu").lower().split(",")
    tres = list(_TRES) if tres == ["all"] else ["gres/gpu" if t == "gpu" else t for t in tres]
    unknown = [name for name in tres if name not in _TRES]
    if unknown:
        text = f"unknown TRES {unknown[0]}: gsched counts {', '.join(_TRES)}"
        raise SlurmError(text, plain=True)
    return Wish(unit, percent, tres, named)


def period_of(named: Mapping[str, str], now_s: float) -> tuple[float, float]:
    """Return the first and the last moment; without them it is yesterday, as with Slurm.

    Raises:
        SlurmError: one of them is invalid, or the period is empty.
    """
    today_s = past_moment("today", now_s=now_s)
    since_s = past_moment(named["start"], now_s=now_s) if named.get("start") else None
    until_s = past_moment(named["end"], now_s=now_s) if named.get("end") else today_s
    if since_s is None:
        since_s = past_moment("today", now_s=min(today_s, until_s) - 43_200.0)
    until_s = min(until_s, now_s)
    if until_s <= since_s:
        first, last = map(_moment, (since_s, until_s))
        text = f"the period from {first} to {last} is empty: give a later end, such as end=now"
        raise SlurmError(text, plain=True)
    return since_s, until_s


def _place_of_tres(columns: Sequence[SreportColumn]) -> int:
    titles = [column.title for column in columns]
    return next(titles.index(each) for each in ("Allocated", "Used", "0-49 CPUs") if each in titles)


def _with_tres(line: Sequence[str], columns: Sequence[SreportColumn], name: str) -> Sequence[str]:
    if not name:
        return line
    at = [column.title for column in columns].index("TRES Name")
    return [*line[:at], name, *line[at:]]


def report_lines(
    form: SreportForm, wish: Wish, reply: HeldReply, options: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of a report."""
    users, accounts = wish.wanted("users"), wish.wanted("accounts")
    rows = [
        row
        for row in reply.rows
        if (not users or row.user in users) and (not accounts or row.account in accounts)
    ]
    reply = structs.replace(reply, rows=rows)
    columns = [*form.columns]
    if "tres" in options:
        columns.insert(_place_of_tres(columns), SreportColumn("TRES Name", 14))
    table = [
        _with_tres([*map(printable, line)], columns, name if "tres" in options else "")
        for name in wish.tres
        for line in form.lines(reply, name, wish)
    ]
    titles = [column.title for column in columns]
    has_header = "noheader" not in options
    if has_header:
        yield from _heading(form, wish, reply, "TRES" if "tres" in options else "CPU")
    if "parsable" in options or "parsable2" in options:
        end = "|" if "parsable" in options else ""
        yield from ("|".join(line) + end for line in [titles, *table][not has_header :])
        return
    if has_header:
        yield _fitted(titles, columns)
        yield "".join(f"{'-' * abs(column.width)} " for column in columns)
    yield from (_fitted(line, columns) for line in table)


def _heading(form: SreportForm, wish: Wish, reply: HeldReply, what: str) -> Iterator[str]:
    first, last = map(_moment, (reply.since_s, reply.until_s - 1.0))
    unit = wish.unit.capitalize()
    unit += ("/" if unit else "") + "Percentage of Total" if wish.percent else ""
    yield _RULE
    heading = form.heading.format(wish.named.get("topcount", _TOP))
    yield f"{heading} {first} - {last} ({int(reply.until_s - reply.since_s)} secs)"
    yield f"Usage reported in {what} {unit}"
    yield _RULE


def _moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def _fitted(line: Sequence[str], columns: Sequence[SreportColumn]) -> str:
    """Return a line as Slurm writes it: each text in its column, cut to it, and a blank behind."""
    texts = []
    for text, column in zip(line, columns, strict=True):
        size = abs(column.width)
        fitted = text if len(text) <= size else f"{text[: size - 1]}+"
        texts.append(fitted.ljust(size) if column.width < 0 else fitted.rjust(size))
    return "".join(f"{text} " for text in texts)


# --- reports ---


def _offered_s(reply: HeldReply, tres: str) -> tuple[float, float]:
    """Return what connected nodes offered of a resource, and nodes that were down."""
    offered = reply.offered
    if tres == "cpu":
        return offered.cpu_s, offered.down_cpu_s
    return offered.gpu_s, offered.down_gpu_s


def _utilization(reply: HeldReply, tres: str, wish: Wish) -> Lines:
    up_s, down_s = _offered_s(reply, tres)
    used_s = sum(map(_TRES[tres], reply.rows))
    all_s = up_s + down_s
    idle_s = max(0.0, up_s - used_s)
    figures = (used_s, down_s, 0.0, idle_s, 0.0, all_s)
    yield [reply.server, *(wish.used(each, all_s) for each in figures)]


def _by_user(
    reply: HeldReply, tres: str, key: Callable[[HeldRow], tuple[str, str]]
) -> list[tuple[tuple[str, str], float]]:
    sums: Counter[tuple[str, str]] = Counter()
    for row in reply.rows:
        sums[key(row)] += _TRES[tres](row)  # type: ignore[assignment]  # seconds
    return sorted(sums.items(), key=lambda each: (-each[1], each[0]))


def _account_utilization(reply: HeldReply, tres: str, wish: Wish) -> Lines:
    """Yield a line for each account, and below it one for each of its users."""
    all_s = sum(_offered_s(reply, tres))
    accounts: Counter[str] = Counter()
    for row in reply.rows:
        accounts[row.account] += _TRES[tres](row)  # type: ignore[assignment]  # seconds
    users = _by_user(reply, tres, lambda row: (row.account, row.user))
    total_s = sum(accounts.values())
    yield [reply.server, "root", "", "", wish.used(total_s, all_s), wish.used(0.0, all_s)]
    for account, used_s in sorted(accounts.items(), key=lambda each: (-each[1], each[0])):
        used = wish.used(used_s, all_s), wish.used(0.0, all_s)
        yield [reply.server, account or "(none)", "", "", *used]
        for (of, user), part_s in users:
            if of == account:
                used = wish.used(part_s, all_s), wish.used(0.0, all_s)
                yield [reply.server, account or "(none)", user, _full_name(user), *used]


def _top_users(reply: HeldReply, tres: str, wish: Wish) -> Lines:
    all_s = sum(_offered_s(reply, tres))
    stated = wish.named.get("topcount", str(_TOP))
    if not stated.isdecimal():
        raise SlurmError(f"invalid topcount {stated}", plain=True)
    users = _by_user(reply, tres, lambda row: (row.user, row.account))
    for (user, account), used_s in users[: int(stated)]:
        used = wish.used(used_s, all_s), wish.used(0.0, all_s)
        yield [reply.server, user, _full_name(user), account or "(none)", *used]


def _sizes(reply: HeldReply, tres: str, wish: Wish) -> Lines:
    """Yield a line for each account: the use of jobs of some sizes in CPUs."""
    all_s = sum(map(_TRES[tres], reply.rows))
    accounts: dict[str, list[float]] = {}
    for row in reply.rows:
        sums = accounts.setdefault(row.account, [0.0] * (len(_SIZES) + 1))
        sums[sum(row.cpus >= size for size in _SIZES)] += _TRES[tres](row)
    for account, sums in sorted(accounts.items(), key=lambda each: (-sum(each[1]), each[0])):
        part = f"{100.0 * sum(sums) / all_s if all_s else 0.0:.2f}%"
        sizes = (wish.used(each, all_s) for each in sums)
        yield [reply.server, account or "(none)", *sizes, part]


def _full_name(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_gecos.partition(",")[0]
    except KeyError:
        return ""


def _columns(text: str) -> list[SreportColumn]:
    """Return columns of ``Cluster:9,Used:10``."""
    found: Iterator[tuple[str, str, str]] = (word.rpartition(":") for word in text.split(","))
    return [SreportColumn(title, int(width)) for title, _, width in found]


_FORMS: Final[Mapping[tuple[str, str], SreportForm]] = {
    ("cluster", "Utilization"): SreportForm(
        "Cluster Utilization",
        _columns("Cluster:9,Allocated:12,Down:12,PLND Down:12,Idle:12,Planned:12,Reported:12"),
        _utilization,
    ),
    ("cluster", "AccountUtilizationByUser"): SreportForm(
        "Cluster/Account/User Utilization",
        _columns("Cluster:9,Account:15,Login:9,Proper Name:15,Used:10,Energy:8"),
        _account_utilization,
    ),
    ("user", "TopUsage"): SreportForm(
        "Top {} Users",
        _columns("Cluster:9,Login:9,Proper Name:15,Account:15,Used:10,Energy:8"),
        _top_users,
    ),
    ("job", "SizesByAccount"): SreportForm(
        "Job Sizes",
        _columns(
            "Cluster:9,Account:9,0-49 CPUs:13,50-249 CPUs:13,250-499 CPUs:13,500-999 CPUs:13,"
            ">= 1000 CPUs:13,% of cluster:12"
        ),
        _sizes,
    ),
}
