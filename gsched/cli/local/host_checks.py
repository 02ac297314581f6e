"""What the doctor compares between hosts: versions, clocks, users, groups and paths."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gsched.cli.local.findings import Finding, ok, warn
from gsched.model.units import format_duration
from gsched.model.wording import counted
from gsched.protocol.hosts import HostRow

CLOCK_WARN_S: Final = 2.0
SHOWN: Final = 5  # names in a line


def check_hosts(hosts: Iterable[HostRow]) -> Iterator[Finding]:
    """Compare the hosts of a cluster with the head's machine, which comes first."""
    head, *others = tuple(hosts)
    if not others:
        return
    reported = [each for each in others if each.clock_s is not None]
    logins = [each for each in others if each.role == "login"]  # nodes have checks of their own
    away = [each.name for each in logins if not each.connected]
    silent = [each.name for each in others if each.connected and each.clock_s is None]
    if away:
        text = f"not connected: login host {_named(away)}"
        yield warn("hosts", text, "gnodes --login shows since when; see the log of gnode there")
    if silent:
        text = f"no report of clock and users from {_named(silent)}"
        yield warn("hosts", text, "install this version of gsched there, and restart gnode")
    found = [
        *_of_versions(head, logins),
        *_of_clocks(reported),
        *_of_zones(head, reported),
        *_of_accounts(head, reported, "user"),
        *_of_accounts(head, reported, "group"),
        *_of_paths(head, reported),
    ]
    yield from found
    if not found and reported:
        count = counted(len(reported), "other host")
        yield ok("hosts", f"versions, clocks, users, groups and paths of {count} agree")


def _named(names: Iterable[str], between: str = ", ") -> str:
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"{between.join(listed[:SHOWN])}{more}"


def _of_versions(head: HostRow, others: Iterable[HostRow]) -> Iterator[Finding]:
    for version, names in _grouped((each.version, each.name) for each in others).items():
        if version and version != head.version:
            text = f"gsched {version} on {_named(names)}, {head.version} on the head's machine"
            yield warn("versions", text, "install one version on all hosts: the head first")


def _of_clocks(others: Iterable[HostRow]) -> Iterator[Finding]:
    for each in others:
        ahead_s = each.clock_s or 0.0
        if abs(ahead_s) > CLOCK_WARN_S:
            way = "ahead of" if ahead_s > 0 else "behind"
            text = f"the clock of {each.name} is {format_duration(abs(ahead_s))} {way} the head's"
            yield warn("clocks", text, f"run chrony or another NTP client on {each.name}")


def _of_zones(head: HostRow, others: Iterable[HostRow]) -> Iterator[Finding]:
    for zone, names in _grouped((each.zone, each.name) for each in others).items():
        if zone and head.zone and zone != head.zone:
            text = f"the time zone is {zone} on {_named(names)}, {head.zone} on the head's machine"
            yield warn("time zones", text, "times in jobs' output differ; timedatectl set-timezone")


def _of_accounts(head: HostRow, others: Iterable[HostRow], kind: str) -> Iterator[Finding]:
    """Compare names and numbers of users or groups."""
    known = _accounts(head, kind)
    names_of = {number: name for name, number in known.items()}
    plural = f"{kind}s"
    for each in others:
        here = _accounts(each, kind)
        if not here or not known:  # of a directory that does not list its accounts
            continue
        numbers = set(here.values())
        wrong, unknown = [], []
        for name, number in sorted(here.items()):
            if known.get(name, number) != number:
                wrong.append(f"{name} is {number} there and {known[name]} on the head's machine")
            elif name not in known and number in names_of:
                wrong.append(
                    f"{number} is {name} there and {names_of[number]} on the head's machine"
                )
            elif name not in known:
                unknown.append(name)
        lacking = [name for name, number in known.items() if not {name, number} & {*here, *numbers}]
        if wrong:
            todo = f"give each {kind} one name and number on all hosts: until then it is refused"
            yield warn(plural, f"{each.name}: {_named(wrong, '; ')}", todo)
        if unknown:
            text = f"{each.name} has {_named(unknown)}, and the head's machine has not"
            yield warn(plural, text, f"add the {kind} there: users' commands are refused")
        if lacking:
            text = f"{each.name} lacks {_named(lacking)} of the head's machine"
            yield warn(plural, text, f"add the {kind} on {each.name}: jobs do not start there")


def _accounts(host: HostRow, kind: str) -> Mapping[str, int]:
    return host.users if kind == "user" else host.groups


def _of_paths(head: HostRow, others: Iterable[HostRow]) -> Iterator[Finding]:
    """Compare what hosts have mounted of network file systems."""
    hosts = [each for each in (head, *others) if each.mounts is not None]
    places = sorted({place for each in hosts for place in each.mounts or {}})
    for place in places:
        sources = _grouped(((each.mounts or {}).get(place, ""), each.name) for each in hosts)
        without = sources.pop("", [])
        if len(sources) > 1:
            each_source = "; ".join(f"{key} on {_named(names)}" for key, names in sources.items())
            text = f"{place} is not the same everywhere: {each_source}"
            yield warn("paths", text, "mount one file system there, unless that is meant")
        if without:
            text = f"{place} is not mounted on {_named(without)}"
            todo = "mount it there; else output of jobs from there returns at their end"
            yield warn("paths", text, todo)


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the second of each pair, by the first."""
    found: dict[str, list[str]] = {}
    for key, name in pairs:
        found.setdefault(key, []).append(name)
    return found
