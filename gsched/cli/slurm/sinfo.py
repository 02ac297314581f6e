"""sinfo: partitions with their nodes, in Slurm's columns."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from gsched.cli.common import check_width
from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.options import parsed
from gsched.client import HeadClient
from gsched.model.host_lists import compact, expanded, in_order
from gsched.model.states import NodeState
from gsched.protocol.api import NodeRow, QueueRow
from gsched.transport import pause

#: sinfo -o: titles by letter.
TITLES: Final[Mapping[str, str]] = {
    "a": "AVAIL",
    "A": "NODES(A/I)",
    "c": "CPUS",
    "C": "CPUS(A/I/O/T)",
    "d": "TMP_DISK",
    "D": "NODES",
    "e": "FREE_MEM",
    "E": "REASON",
    "f": "AVAIL_FEATURES",
    "F": "NODES(A/I/O/T)",
    "g": "GROUPS",
    "G": "GRES",
    "h": "OVERSUBSCRIBE",
    "H": "TIMESTAMP",
    "l": "TIMELIMIT",
    "m": "MEMORY",
    "n": "HOSTNAMES",
    "N": "NODELIST",
    "o": "NODE_ADDR",
    "O": "CPU_LOAD",
    "P": "PARTITION",
    "r": "ROOT",
    "R": "PARTITION",
    "s": "JOB_SIZE",
    "t": "STATE",
    "T": "STATE",
    "u": "USER",
    "v": "VERSION",
    "w": "WEIGHT",
    "z": "S:C:T",
}
_USUAL: Final = "%9P %.5a %.10l %.6D %.6t %N"
_LONG: Final = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
_SUMMARY: Final = "%9P %.5a %.10l %.16F %N"
_NODES: Final = "%10N %.5D %.9P %6t"
_LONG_NODES: Final = "%10N %.5D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
_REASONS: Final = "%20E %9u %19H %N"
#: Fields by which nodes are told apart; of the others a line has sums.
_APART: Final = "cefEGHmnOotTuvz"
_WHOLE_STATES: Final = {
    "drng": "draining",
    "drain": "drained",
    "mix": "mixed",
    "alloc": "allocated",
}
#: Names of -O.
_LONG_NAMES: Final = {
    "available": "a",
    "cpus": "c",
    "cpusload": "O",
    "cpusstate": "C",
    "disk": "d",
    "features": "f",
    "features_act": "f",
    "freemem": "e",
    "gres": "G",
    "groups": "g",
    "memory": "m",
    "nodes": "D",
    "nodeaddr": "o",
    "nodeai": "A",
    "nodeaiot": "F",
    "nodehost": "n",
    "nodelist": "N",
    "oversubscribe": "h",
    "partition": "P",
    "partitionname": "R",
    "reason": "E",
    "root": "r",
    "size": "s",
    "socketcorethread": "z",
    "statecompact": "t",
    "statelong": "T",
    "time": "l",
    "timestamp": "H",
    "user": "u",
    "version": "v",
    "weight": "w",
}
#: In the order in which they are listed, as Slurm's.
_ORDER: Final = ("drng", "drain", "mix", "alloc", "idle", "down")
_STATES: Final = (
    "unknown,down,idle,allocated,?,mixed,future,drain,drained,draining,no_respond,reserved,"
    "perfctrs,cloud,completing,powering_down,powered_down,power_down,powering_up,fail,maint,"
    "reboot,reboot^,unknown"
)
_SHORT_STATES: Final = {"alloc", "drng", "mix", "comp", "resp"}


def sinfo(words: Sequence[str]) -> int:
    """List partitions with their nodes."""
    options, _ = parsed(words, "sinfo")
    if "reservation" in options:
        print("No reservations in the system")
        return 0
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
    lines = []
    each = "node" in options
    if each:  # node by node, each with its partitions
        for node in chosen:
            lines += [_values(q, [node], is_default=i == 0) for i, q in rows]
    else:
        for index, queue in rows:
            groups = _grouped(chosen, form)
            lines += [_values(queue, group, is_default=index == 0) for group in groups]
            if not groups and "reasons" not in options:
                lines.append(_values(queue, [], is_default=index == 0))
    for line in [TITLES, *lines] if header else lines:
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
        letter = _LONG_NAMES.get(name.lower())
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


def _cell(line: Mapping[str, str], found: re.Match[str]) -> str:
    return w.fitted(line[found[3]], int(found[2] or 0), right=bool(found[1]))


def check_form(form: str) -> None:
    """Refuse a format with a letter that is no field.

    Raises:
        SlurmError: it has one.
    """
    for match in w.SPEC.finditer(form):
        if match[3] not in TITLES:
            raise SlurmError(f"Invalid node format specification: {match[3]}")
        check_width(match[2], "-o")


def _is_wanted(node: NodeRow, options: Mapping[str, str]) -> bool:
    names = set(expanded(options.get("nodes", ""), option="--nodes"))
    states = read_states(options.get("states", ""))
    state = state_of(node)
    is_dead = state == "down"
    return (
        (not names or node.name in names)
        and (not states or bool(states & {state, _WHOLE_STATES.get(state, state)}))
        and ("reasons" not in options or bool(node.reason) or is_dead)
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
    if node.state != NodeState.UP:
        return "down"
    if node.drained:
        return "drng" if node.jobs else "drain"
    if not node.jobs:
        return "idle"
    return "mix" if node.cpus_free > 0 else "alloc"


def whole_state(node: NodeRow) -> str:
    """Return the state of a node as scontrol writes it: ``IDLE+DRAIN``."""
    state = state_of(node)
    if state in {"drain", "drng"}:
        return "IDLE+DRAIN" if state == "drain" else "MIXED+DRAIN"
    return _WHOLE_STATES.get(state, state).upper()


def _grouped(nodes: Sequence[NodeRow], form: str) -> list[list[NodeRow]]:
    """Return nodes that are alike in the fields of a format together."""
    letters = {match[3] for match in w.SPEC.finditer(form)} & set(_APART)
    found: dict[tuple[str, ...], list[NodeRow]] = {}
    for node in sorted(nodes, key=lambda each: _ORDER.index(state_of(each))):
        fields = _of_nodes([node])
        found.setdefault(tuple(fields[letter] for letter in sorted(letters)), []).append(node)
    return list(found.values())


def _of_nodes(nodes: Sequence[NodeRow]) -> dict[str, str]:
    """Return the fields of nodes that are alike."""
    if not nodes:
        return {**dict.fromkeys(TITLES, ""), "t": "n/a", "T": "n/a"}
    first = nodes[0]
    state = state_of(first)
    reason = re.sub(r"\s+", " ", first.reason)
    since = w.slurm_time(first.since_s, none="Unknown") if reason else "Unknown"
    return {
        "c": str(first.cpus),
        "d": "0",
        "e": str(first.memory_free_bytes >> 20),
        "E": reason or "none",
        "f": ",".join(first.features) or "(null)",
        "G": f"gpu:{first.gpus}" if first.gpus else "(null)",
        "H": since,
        "m": str(first.memory_bytes >> 20),
        "n": first.name,
        "o": first.address,
        "O": f"{first.load.load1:.2f}" if first.load is not None else "N/A",
        "t": state,
        "T": _WHOLE_STATES.get(state, state),
        "u": "root" if reason else "Unknown",
        "v": first.version,
        "w": "1",
        "z": f"1:{first.cpus}:1",
    }


def _values(queue: QueueRow, nodes: Sequence[NodeRow], *, is_default: bool) -> dict[str, str]:
    """Return the values of all fields for nodes of a partition that are on one line."""
    limit = w.slurm_duration(int(queue.max_walltime_s)) if queue.max_walltime_s else "infinite"
    states = [state_of(node) for node in nodes]
    out = [state in {"down", "drain", "drng"} for state in states]
    cpus, free = sum(node.cpus for node in nodes), sum(node.cpus_free for node in nodes)
    idle = sum(node.cpus_free for node, is_out in zip(nodes, out, strict=True) if not is_out)
    busy = sum(state in {"mix", "alloc"} for state in states)
    counts = (busy, states.count("idle"), sum(out))
    return {
        **_of_nodes(nodes),
        "a": "up" if queue.started else "inact",
        "A": f"{counts[0]}/{counts[1]}",
        "C": f"{cpus - free}/{idle}/{free - idle}/{cpus}",
        "D": str(len(nodes)),
        "F": "/".join(map(str, (*counts, len(nodes)))),
        "g": "all",
        "h": "NO",
        "l": limit,
        "N": compact(in_order(node.name for node in nodes)),
        "P": queue.name + "*" * is_default,
        "r": "no",
        "R": queue.name,
        "s": "1-infinite",
    }
