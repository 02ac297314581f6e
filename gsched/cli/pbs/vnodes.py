"""Nodes as OpenPBS's ``pbsnodes`` prints them: all attributes, and the tables of -S and -j. Pure.

The tables are those of the reference guide of OpenPBS: one line for each node, and with -j what is
free of what there is, and the jobs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from gsched.cli.pbs.attributes import c_time
from gsched.protocol.node_rows import NodeRow

NONE: Final = "--"
_KB: Final = 1024
_TITLES: Final = (
    "vnode           state           OS       hardware host            queue        mem     "
    "ncpus   nmics   ngpus  comment\n"
    "--------------- --------------- -------- -------- --------------- ---------- -------- "
    "------- ------- ------- ---------\n"
)
_JOBS_TITLES: Final = (
    "                                                        mem       ncpus   nmics   ngpus\n"
    "vnode           state           njobs   run   susp      f/t        f/t     f/t     f/t   "
    "jobs\n"
    "--------------- --------------- ------ ----- ------ ------------ ------- ------- ------- "
    "-------\n"
)
#: Their lines; names are cut at ``cut`` characters.
_LINE: Final = (
    "{name:<15.{cut}} {found[State]:<15.{cut}} --       --       {name:<15.{cut}} --         "
    "{memory:>8} {cpus:>7}       0 {gpus:>7} {comment}\n"
)
_JOBS_LINE: Final = (
    "{name:<15.{cut}} {found[State]:<15.{cut}} {count:>6} {count:>5}      0 "
    "{found[mem f/t]:>12} {found[ncpus f/t]:>7}     0/0 {found[ngpus f/t]:>7} {ids}\n"
)


class Vnode(NamedTuple):
    """A node, and the jobs on it as ``12.head/0``: one for each of its CPUs."""

    row: NodeRow
    slots: Sequence[str]

    @property
    def jobs(self) -> list[str]:
        """Return the jobs, each once."""
        return list(dict.fromkeys(slot.partition("/")[0] for slot in self.slots))


def vnode_state(row: NodeRow) -> str:
    """Return OpenPBS's states of a node, separated by commas."""
    states = []
    if row.is_down:
        states.append("down")
    if row.power:
        states.append("sleep")
    if row.drained or row.problem:
        states.append("offline")
    if states:
        return ",".join(states)
    return "job-busy" if row.jobs and not row.cpus_free else "free"


def attributes(node: Vnode) -> dict[str, object]:
    """Return the attributes of a node; resources are mappings, jobs a list."""
    row = node.row
    available: dict[str, object] = {
        "arch": "linux",
        "host": row.name,
        "mem": f"{row.memory_bytes // _KB}kb",
        "ncpus": row.cpus,
        "vnode": row.name,
    }
    assigned: dict[str, object] = {
        "mem": f"{(row.memory_bytes - row.memory_free_bytes) // _KB}kb",
        "ncpus": row.cpus - row.cpus_free,
    }
    if row.gpus:
        available["ngpus"] = row.gpus
        assigned["ngpus"] = row.gpus - row.gpus_free
    if row.gpu_types:
        available["gpu_type"] = ",".join(row.gpu_types)
    for feature in row.features:
        available[feature] = "True"
    for name, count in row.generic.items():
        available[name] = count
        assigned[name] = count - row.generic_free.get(name, 0)
    found: dict[str, object] = {
        "Mom": row.address or row.name,
        "ntype": "PBS",
        "state": vnode_state(row),
        "pcpus": row.cpus,
        "jobs": list(node.slots),
        "resources_available": available,
        "resources_assigned": assigned,
        "comment": " ".join(row.reason.split()),
        "resv_enable": "True",
        "sharing": "default_shared",
        "last_state_change_time": int(row.since_s) if row.since_s else "",
    }
    return {name: value for name, value in found.items() if value not in ("", [])}


def text(node: Vnode) -> str:
    """Return the attributes of a node as ``pbsnodes -v`` prints them, with a blank line behind."""
    lines = [node.row.name]
    for name, value in _flat(attributes(node)):
        shown = value
        if name == "last_state_change_time":
            shown = c_time(node.row.since_s)
        lines.append(f"     {name} = {shown}")
    return "\n".join(lines) + "\n\n"


def dsv(node: Vnode, delimiter: str) -> str:
    """Return the attributes of a node as one line, ``Name=n1|Mom=n1|...``."""
    fields = [f"Name={node.row.name}"]
    for name, value in _flat(attributes(node)):
        escaped = value.replace("\\", "\\\\").replace(delimiter, f"\\{delimiter}")
        fields.append(f"{name}={escaped}")
    return delimiter.join(fields) + "\n"


def document(
    nodes: Iterable[Vnode], *, server: str, version: str, now_s: float, summary: bool = False
) -> str:
    """Return OpenPBS's document of ``pbsnodes -F json``; with ``summary`` that of -S and -j."""
    of = _summary if summary else attributes
    found: dict[str, object] = {
        "timestamp": int(now_s),
        "pbs_version": version,
        "pbs_server": server,
        "nodes": {node.row.name: of(node) for node in nodes},
    }
    return msgspec.json.format(msgspec.json.encode(found), indent=4).decode() + "\n"


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", str(each)) for inner, each in value.items())
        elif isinstance(value, list):
            yield name, ", ".join(value)
        else:
            yield name, str(value)


def table(nodes: Iterable[Vnode], *, jobs: bool, whole: bool) -> Iterator[str]:
    """Yield the lines of ``pbsnodes -S``, or of ``-Sj``.

    Args:
        jobs: what is free, and the jobs.
        whole: long names are not cut (-L).
    """
    yield _JOBS_TITLES if jobs else _TITLES
    form, cut = _JOBS_LINE if jobs else _LINE, 999 if whole else 15
    for node in nodes:
        yield form.format(
            cut=cut,
            name=node.row.name,
            memory=_size(node.row.memory_bytes),
            cpus=node.row.cpus,
            gpus=node.row.gpus,
            comment=" ".join(node.row.reason.split()) or NONE,
            count=len(node.jobs),
            ids=",".join(node.jobs) or NONE,
            found=_summary(node),
        )


def _summary(node: Vnode) -> dict[str, object]:
    row = node.row
    return {
        "State": vnode_state(row),
        "Total Jobs": len(node.jobs),
        "Running Jobs": len(node.jobs),
        "Suspended Jobs": 0,
        "mem f/t": f"{_size(row.memory_free_bytes)}/{_size(row.memory_bytes)}",
        "ncpus f/t": f"{row.cpus_free}/{row.cpus}",
        "nmics f/t": "0/0",
        "ngpus f/t": f"{row.gpus_free}/{row.gpus}",
        "jobs": node.jobs,
    }


def _size(size_bytes: int) -> str:
    """Return ``16gb``, in the largest unit of which there is one."""
    units = ("b", "kb", "mb", "gb", "tb", "pb")
    at = 0
    while size_bytes >= _KB and at + 1 < len(units):
        size_bytes //= _KB
        at += 1
    return f"{size_bytes}{units[at]}"
