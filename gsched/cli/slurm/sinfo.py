"""sinfo: partitions with their nodes, in Slurm's columns."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from gsched.cli.common import check_width
from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.options import parsed
from gsched.cli.slurm.reservations import list_reservations
from gsched.client import HeadClient
from gsched.model.host_lists import compact, expanded, in_order
from gsched.protocol.api import QueueRow
from gsched.protocol.node_rows import NodeRow
from gsched.transport import pause

_USUAL: Final = "%9P %.5a %.10l %.6D %.6t %N"
_LONG: Final = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
_SUMMARY: Final = "%9P %.5a %.10l %.16F %N"
_NODES: Final = "%10N %.5D %.9P %6t"
_LONG_NODES: Final = "%10N %.5D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
_REASONS: Final = "%20E %9u %19H %N"
_WHOLE_STATES: Final = {
    "drng": "draining",
    "drain": "drained",
    "mix": "mixed",
    "alloc": "allocated",
}
#: In the order in which they are listed, as Slurm's.
_ORDER: Final = ("drng", "drain", "mix", "alloc", "idle", "idle#", "idle%", "idle~", "down")
#: Behind the state of a node that is not on.
_POWER: Final = {"powering_down": "%", "powered_down": "~", "powering_up": "#"}
_OUT: Final = frozenset({"down", "drain", "drng"})
_STATES: Final = (
    "unknown,down,idle,allocated,?,mixed,future,drain,drained,draining,no_respond,reserved,"
    "perfctrs,cloud,completing,powering_down,powered_down,power_down,powering_up,fail,maint,"
    "reboot,reboot^,unknown"
)
_SHORT_STATES: Final = {"alloc", "drng", "mix", "comp", "resp"}


class _Line(NamedTuple):
    """A line: a partition, and those of its nodes that are alike."""

    queue: QueueRow
    nodes: Sequence[NodeRow]
    is_default: bool


class _Field(NamedTuple):
    """A field of sinfo.

    Attributes:
        title: its heading.
        names: of ``-O``.
        of_line: its text, of a sum over the nodes of a line or of their partition.
        of_node: its text, of one in which all nodes of a line are alike.
        none: its text without a node.
    """

    title: str
    names: str
    of_line: Callable[[_Line], str] | None = None
    of_node: Callable[[NodeRow], str] = lambda _: ""
    none: str = ""

    def text(self, line: _Line | None) -> str:
        """Return the text of a line; None: the heading."""
        if line is None:
            return self.title
        if self.of_line is not None:
            return self.of_line(line)
        return self.of_node(line.nodes[0]) if line.nodes else self.none


def sinfo(words: Sequence[str]) -> int:
    """List partitions with their nodes."""
    options, _ = parsed(words, "sinfo")
    if "reservation" in options:
        return list_reservations()
    form = options.get("format") or _form_of(options)
    if "Format" in options:
        form = _long_form(options["Format"])
    check_form(form)
    return repeated(lambda: _list_nodes(form, options), options)


def repeated(show: Callable[[], int], options: Mapping[str, str]) -> int:
    """Show a list; with ``-i`` again and again, each time with the time before it.

    Raises:
        SlurmError: an invalid period.
    """
    stated = options.get("iterate")
    if stated is None:
        return show()
    if not stated.isdecimal() or not int(stated):
        raise SlurmError(f"Error: invalid entry for --iterate={stated}", plain=True)
    while True:
        print(time.strftime("%a %b %d %H:%M:%S %Y"))
        show()
        print(flush=True)
        pause(float(stated))


def _list_nodes(form: str, options: Mapping[str, str]) -> int:
    head = HeadClient()
    status, nodes = head.status(), head.nodes().nodes
    chosen = [node for node in nodes if _is_wanted(node, options)]
    queues = {each for each in options.get("partition", "").split(",") if each}
    rows = [
        (index, queue)
        for index, queue in enumerate(status.queue_rows)
        if not queues or queue.name in queues
    ]
    if "reasons" in options:  # a node once, whatever queues it has
        rows = rows[:1]
    header = "noheader" not in options
    if header and "long" in options and "format" not in options:
        print(time.strftime("%a %b %d %H:%M:%S %Y"))
    groups = _grouped(chosen, form)
    if not groups and "reasons" not in options:
        groups = [[]]
    if "node" in options:  # node by node, each with its partitions
        lines = [_Line(q, [node], index == 0) for node in chosen for index, q in rows]
    else:
        lines = [_Line(q, group, index == 0) for index, q in rows for group in groups]
    for line in [None, *lines] if header else lines:
        print(w.SPEC.sub(partial(_cell, line), form))
    return 0


def _long_form(text: str) -> str:
    """Return the format of ``-o`` that ``-O NodeList:12,StateLong`` means; 20 characters each.

    Raises:
        SlurmError: an unknown name.
    """
    parts = []
    for word in filter(None, text.split(",")):
        name, _, width = word.partition(":")
        letter = _LETTERS.get(name.lower())
        if letter is None:
            raise SlurmError(f"Invalid node format specification: {name}")
        size = width.strip(".-")
        check_width(size, "-O")
        right = "." if width.startswith(".") else ""
        parts.append(f"%{right}{size if size.isdecimal() else 20}{letter}")
    return "".join(parts)


def _form_of(options: Mapping[str, str]) -> str:
    long = "long" in options
    if "reasons" in options:
        return _REASONS
    if "summarize" in options:
        return _SUMMARY
    if "node" in options:
        return _LONG_NODES if long else _NODES
    return _LONG if long else _USUAL


def _cell(line: _Line | None, found: re.Match[str]) -> str:
    return w.fitted(_FIELDS[found[3]].text(line), int(found[2] or 0), right=bool(found[1]))


def check_form(form: str) -> None:
    """Refuse a format with a letter that is no field.

    Raises:
        SlurmError: it has one.
    """
    for match in w.SPEC.finditer(form):
        if match[3] not in _FIELDS:
            raise SlurmError(f"Invalid node format specification: {match[3]}")
        check_width(match[2], "-o")


def _is_wanted(node: NodeRow, options: Mapping[str, str]) -> bool:
    names = set(expanded(options.get("nodes", ""), option="--nodes"))
    states = read_states(options.get("states", ""))
    state = state_of(node)
    named = {state, state.rstrip("".join(_POWER.values())), _long_state(node), node.power}
    is_dead = state == "down"
    has_reason = bool(node.reason) and (node.drained or not node.power)
    return (
        (not names or node.name in names)
        and (not states or bool(states & named))
        and ("reasons" not in options or has_reason or is_dead)
        and ("responding" not in options or not is_dead)
        and ("dead" not in options or is_dead)
    )


def read_states(text: str) -> frozenset[str]:
    """Return the states of nodes that a list names.

    Raises:
        SlurmError: Slurm has no such state.
    """
    names = [each.strip() for each in text.split(",") if each.strip()]
    known = {"all", *_STATES.split(","), *_SHORT_STATES}
    for name in names:
        if name.lower() not in known:
            raise SlurmError(f'Bad state string: "{name}"\nvalid states: {_STATES}')
    found = {name.lower() for name in names} - {"all"}
    if "drain" in found:
        found |= {"drng", "drained", "draining"}
    return frozenset(found)


def state_of(node: NodeRow) -> str:
    """Return the short state of a node."""
    if node.is_down:
        return "down"
    if node.drained:
        return "drng" if node.jobs else "drain"
    if node.power:
        return "idle" + _POWER[node.power]
    if not node.jobs:
        return "idle"
    return "mix" if node.cpus_free > 0 else "alloc"


def _long_state(node: NodeRow) -> str:
    state = state_of(node)
    return _WHOLE_STATES.get(state, state)


def whole_state(node: NodeRow) -> str:
    """Return the state of a node as scontrol writes it: ``IDLE+DRAIN``."""
    state = state_of(node)
    if state in {"drain", "drng"}:
        return "IDLE+DRAIN" if state == "drain" else "MIXED+DRAIN"
    if node.power:
        return f"IDLE+{node.power.upper()}"
    return _long_state(node).upper()


def _grouped(nodes: Sequence[NodeRow], form: str) -> list[list[NodeRow]]:
    """Return nodes that are alike in the fields of a format together."""
    fields = {_FIELDS[match[3]] for match in w.SPEC.finditer(form)}
    apart = [each.of_node for each in fields if each.of_line is None]
    found: dict[tuple[str, ...], list[NodeRow]] = {}
    for node in sorted(nodes, key=lambda each: _ORDER.index(state_of(each))):
        found.setdefault(tuple(of_node(node) for of_node in apart), []).append(node)
    return list(found.values())


def _reason_time(node: NodeRow) -> str:
    return w.slurm_time(node.reason_s or None, none="Unknown") if node.reason else "Unknown"


def _reason_user(node: NodeRow) -> str:
    return (node.reason_by or "root") if node.reason else "Unknown"


def _count_states(line: _Line) -> tuple[int, int, int]:
    """Return how many nodes are allocated, idle and out of service."""
    states = [state_of(node) for node in line.nodes]
    busy = sum(state in {"mix", "alloc"} for state in states)
    idle = sum(state.startswith("idle") for state in states)
    return busy, idle, sum(state in _OUT for state in states)


def _cpu_states(line: _Line) -> str:
    """Return the numbers of CPUs that are allocated, idle, out of service, and of all."""
    cpus, free = (sum(getattr(node, name) for node in line.nodes) for name in ("cpus", "cpus_free"))
    idle = sum(node.cpus_free for node in line.nodes if state_of(node) not in _OUT)
    return f"{cpus - free}/{idle}/{free - idle}/{cpus}"


def _limit(line: _Line) -> str:
    limit_s = line.queue.max_walltime_s
    return w.slurm_duration(int(limit_s)) if limit_s else "infinite"


#: Fields by the letter of ``-o``.
_FIELDS: Final[Mapping[str, _Field]] = {
    "a": _Field("AVAIL", "available", lambda line: "up" if line.queue.started else "inact"),
    "A": _Field("NODES(A/I)", "nodeai", lambda line: "{}/{}".format(*_count_states(line))),
    "c": _Field("CPUS", "cpus", of_node=lambda node: str(node.cpus)),
    "C": _Field("CPUS(A/I/O/T)", "cpusstate", _cpu_states),
    "d": _Field("TMP_DISK", "disk", of_node=lambda _: "0"),
    "D": _Field("NODES", "nodes", lambda line: str(len(line.nodes))),
    "e": _Field("FREE_MEM", "freemem", of_node=lambda node: str(node.memory_free_bytes >> 20)),
    "E": _Field("REASON", "reason", of_node=lambda node: " ".join(node.reason.split()) or "none"),
    "f": _Field("AVAIL_FEATURES", "features features_act",
        of_node=lambda node: ",".join(node.features) or "(null)"),
    "F": _Field("NODES(A/I/O/T)", "nodeaiot",
        lambda line: "{}/{}/{}/{}".format(*_count_states(line), len(line.nodes))),
    "g": _Field("GROUPS", "groups", lambda _: "all"),
    "G": _Field("GRES", "gres", of_node=lambda node: f"gpu:{node.gpus}" if node.gpus else "(null)"),
    "h": _Field("OVERSUBSCRIBE", "oversubscribe", lambda _: "NO"),
    "H": _Field("TIMESTAMP", "timestamp", of_node=_reason_time),
    "l": _Field("TIMELIMIT", "time", _limit),
    "m": _Field("MEMORY", "memory", of_node=lambda node: str(node.memory_bytes >> 20)),
    "n": _Field("HOSTNAMES", "nodehost", of_node=lambda node: node.name),
    "N": _Field("NODELIST", "nodelist", lambda line: compact(in_order(n.name for n in line.nodes))),
    "o": _Field("NODE_ADDR", "nodeaddr", of_node=lambda node: node.address),
    "O": _Field("CPU_LOAD", "cpusload",
        of_node=lambda node: "N/A" if node.load is None else f"{node.load.load1:.2f}"),
    "P": _Field("PARTITION", "partition", lambda line: line.queue.name + "*" * line.is_default),
    "r": _Field("ROOT", "root", lambda _: "no"),
    "R": _Field("PARTITION", "partitionname", lambda line: line.queue.name),
    "s": _Field("JOB_SIZE", "size", lambda _: "1-infinite"),
    "t": _Field("STATE", "statecompact", of_node=state_of, none="n/a"),
    "T": _Field("STATE", "statelong", of_node=_long_state, none="n/a"),
    "u": _Field("USER", "user", of_node=_reason_user),
    "v": _Field("VERSION", "version", of_node=lambda node: node.version),
    "w": _Field("WEIGHT", "weight", of_node=lambda _: "1"),
    "z": _Field("S:C:T", "socketcorethread", of_node=lambda node: f"1:{node.cpus}:1"),
}  # fmt: skip
_LETTERS: Final = {name: letter for letter, each in _FIELDS.items() for name in each.names.split()}
