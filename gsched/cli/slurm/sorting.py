"""The order of squeue's lines, by the fields that -S names. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.model.host_lists import natural_key
from gsched.model.ids import array_of, index_of, submitted_number
from gsched.protocol.api import JobList, JobRow

DEFAULT: Final = "P,t,-Q"
_CLUSTER: Final = "cluster"  # there is one
_NEVER: Final = float("inf")
Key = Callable[[JobRow, JobList], object]


def _id(row: JobRow, _: JobList) -> object:
    """Return the key of a number: the elements of an array are together, those that wait last."""
    index = index_of(row.id) if array_of(row.id) else 0
    return submitted_number(row.id), row.array is not None, index


def _state(row: JobRow, _: JobList) -> object:
    return _RANKS.get(w.state_of(row)[0], len(_RANKS))


def _left_s(row: JobRow, reply: JobList) -> object:
    return row.walltime_s - w.elapsed_s(row, reply.now_s) if row.walltime_s else _NEVER


def _nodes(row: JobRow, _: JobList) -> object:
    return not row.nodes, [natural_key(name) for name in row.nodes]


def _first_node(row: JobRow, _: JobList) -> object:
    return not row.nodes, natural_key(row.nodes[0]) if row.nodes else ()


_RANKS: Final[Mapping[str, int]] = {
    state: rank for rank, state in enumerate(w.ALL_STATES.split(","))
}
#: By letter of -o; the texts of others are compared.
_KEYS: Final[Mapping[str, Key]] = {
    **dict.fromkeys(("i", "A", "F", "K"), _id),
    **dict.fromkeys(("t", "T"), _state),
    **dict.fromkeys(("p", "Q"), lambda row, _: row.priority),
    "b": lambda row, _: row.gpus,
    "B": _first_node,
    "C": lambda row, _: row.cpus,
    "D": lambda row, _: len(row.nodes) or row.places,
    "e": lambda row, _: _end_s(row),
    "l": lambda row, _: row.walltime_s or _NEVER,
    "L": _left_s,
    "m": lambda row, _: row.memory_bytes,
    "M": lambda row, reply: w.elapsed_s(row, reply.now_s),
    "N": _nodes,
    "S": lambda row, _: row.started_s or row.predicted_start_s or _NEVER,
    "V": lambda row, _: row.submitted_s,
    **{letter: w.SQUEUE[letter][1] for letter in "aEjnPqrRu"},
}
#: Slurm sorts by these, too; no job here has any of them.
_NOT_HERE: Final = frozenset("cdfgGhHIJoOUvz")


def _end_s(row: JobRow) -> float:
    if row.ended_s is not None:
        return row.ended_s
    return row.started_s + row.walltime_s if row.started_s and row.walltime_s else _NEVER


def in_order(reply: JobList, text: str) -> tuple[JobRow, ...]:
    """Return the jobs of a list in the order of ``P,-t,i``: the first field counts most.

    As Slurm reads it, each letter is a field, with or without commas, and a ``-`` before it
    reverses its order. Jobs that are equal in all of them are in the order of their numbers.

    Raises:
        SlurmError: a letter is no field.
    """
    keys = list(_fields("" if text == _CLUSTER else text))
    rows = sorted(reply.jobs, key=lambda row: _id(row, reply))  # type: ignore[arg-type,return-value]  # comparable
    for key, reverse in reversed(keys):
        rows.sort(key=lambda row, key=key: key(row, reply), reverse=reverse)  # type: ignore[misc]  # bound now
    return tuple(rows)


def _fields(text: str) -> Iterable[tuple[Key, bool]]:
    for at, letter in enumerate(text):
        if letter in ",+-":
            continue
        key = _KEYS.get(letter)
        if key is None and letter not in _NOT_HERE:
            raise SlurmError(f"Invalid sort specification: {letter}")
        if key is not None:
            yield key, text[at - 1 : at] == "-"
