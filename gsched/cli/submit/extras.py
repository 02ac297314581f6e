"""Additional attributes of a job: ``-W``."""

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from gsched.cli.dialect import spoken
from gsched.cli.submit.place import SubmitContext
from gsched.errors import UsageError
from gsched.model.patterns import pattern

_UMASK = pattern(r"0?[0-7]{1,4}")
#: Attributes of Torque and OpenPBS that ``-W`` takes, and why they change nothing.
_WITHOUT_EFFECT = {
    "group_list": "jobs run with the group of the submitting process; submit with newgrp or sg",
    "run_count": "attempts are counted from 1",
    "sandbox": "jobs start in their working directory",
    "suppress_email": "it counts mails of one deletion; write -m n for no mail",
    "x": "no scheduler extension reads it",
}
#: Attributes whose values are lists: their items follow without the name.
_LISTS = frozenset({"depend", "stagein", "stageout"})


class Extras(NamedTuple):
    """What ``-W`` states.

    Attributes:
        umask: None: it is not stated.
        block: whether gsub waits for the job.
        depends: dependencies as they were stated.
        notes: of attributes without effect.
        stage_in, stage_out: files as they were stated.
    """

    umask: int | None = None
    block: bool = False
    depends: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stage_in: tuple[str, ...] = ()
    stage_out: tuple[str, ...] = ()


def combined(stated: Iterable[Extras]) -> Extras:
    """Return what several ``-W`` state together: of a single value the last one counts."""
    found = Extras()
    for each in stated:
        found = Extras(
            found.umask if each.umask is None else each.umask,
            found.block or each.block,
            *(mine + theirs for mine, theirs in zip(found[2:], each[2:], strict=True)),
        )
    return found


def read_extras(text: str, _place: SubmitContext) -> Extras:
    """Return what ``-W`` states.

    Raises:
        UsageError: an attribute we do not know, or do not have.
    """
    umask: int | None = None
    block = False
    notes: list[str] = []
    lists: dict[str, list[str]] = {name: [] for name in _LISTS}
    before = ""
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if before in _LISTS and (not equals or "@" in name):  # depend=afterok:1,afterany:2
            name, value = before, item
        before = name
        if name == "umask":
            if not _UMASK.fullmatch(value):
                raise UsageError(
                    f"-W umask={value}: {value!r} is not an octal mask", hint="write 027"
                )
            umask = int(value, 8) & 0o777
        elif name == "block":
            block = value.lower() in {"true", "t", "y", "1"}
        elif name in lists:
            lists[name].append(value)
        elif name == "group_list" and _own_group() in re.split("[@,]", value):
            pass  # it runs with that one
        elif name in _WITHOUT_EFFECT:
            notes.append(f"-W {name} has no effect: {_WITHOUT_EFFECT[name]}")
        elif spoken().ignores_unknown:
            notes.append(f"-W {name} is unknown and ignored")
        else:
            raise UsageError(
                f"-W: unknown attribute {name!r}",
                hint="valid: depend=TYPE:JOB, umask=MASK, block=true, stagein=, stageout=",
            )
    return Extras(
        umask=umask,
        block=block,
        depends=tuple(lists["depend"]),
        notes=tuple(notes),
        stage_in=tuple(lists["stagein"]),
        stage_out=tuple(lists["stageout"]),
    )


def _own_group() -> str:
    """Return the name of the group that a job gets: that of this process."""
    import grp  # late: few name a group

    try:
        return grp.getgrgid(os.getgid()).gr_name
    except KeyError:
        return str(os.getgid())
