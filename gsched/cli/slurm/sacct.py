"""sacct: fields of jobs, finished or not, in Slurm's columns."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import structs

from gsched.cli.slurm import words as w
from gsched.cli.slurm.elements import with_elements
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.fields import (
    SACCT,
    Listing,
    chosen,
    print_fields,
    submission_order,
    with_stories,
)
from gsched.cli.slurm.options import is_wanted, parsed
from gsched.cli.slurm.window import window_of
from gsched.client import HeadClient
from gsched.model.limits import MAX_HISTORY_ROWS
from gsched.protocol.api import JobRow

_DEFAULT: Final = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
_BRIEF: Final = "JobID,State,ExitCode"
_LONG: Final = (
    "JobID,JobIDRaw,JobName,Partition,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,"
    "MaxRSSNode,MaxRSSTask,AveRSS,MaxPages,MaxPagesNode,MaxPagesTask,AvePages,MinCPU,MinCPUNode,"
    "MinCPUTask,AveCPU,NTasks,AllocCPUS,Elapsed,State,ExitCode,AveCPUFreq,ReqCPUFreqMin,"
    "ReqCPUFreqMax,ReqCPUFreqGov,ReqMem,ConsumedEnergy,MaxDiskRead,MaxDiskReadNode,"
    "MaxDiskReadTask,AveDiskRead,MaxDiskWrite,MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,"
    "ReqTRES,AllocTRES,TRESUsageInAve,TRESUsageInMax,TRESUsageInMaxNode,TRESUsageInMaxTask,"
    "TRESUsageInMin,TRESUsageInMinNode,TRESUsageInMinTask,TRESUsageInTot,TRESUsageOutMax,"
    "TRESUsageOutMaxNode,TRESUsageOutMaxTask,TRESUsageOutAve,TRESUsageOutTot"
)
_NAMES_ON_A_LINE: Final = 4


def sacct(words: Sequence[str]) -> int:
    """Print fields of jobs, finished or not, in the order of their submission."""
    options, operands = parsed(words, "sacct")
    if "helpformat" in options:
        _print_names()
        return 0
    usual = _BRIEF if "brief" in options else _LONG if "long" in options else _DEFAULT
    fields = chosen(options.get("format", usual), SACCT)
    states = _states(options.get("states", ""))
    named = w.job_ids([options.get("jobs", ""), *operands])
    users = _users(options, named)
    head = HeadClient()
    reply = head.jobs(named)
    window = window_of(
        options.get("starttime", ""),
        options.get("endtime", ""),
        is_named=bool(named),
        has_states=bool(states),
        now_s=reply.now_s,
    )
    rows = reply.jobs if named else (*reply.jobs, *_ended(head, window.since_s, users))
    if users:
        rows = tuple(row for row in rows if row.user in users)
    rows = tuple(row for row in rows if is_wanted(row, {**options, "users": ""}))
    reply = with_elements(head, structs.replace(reply, jobs=tuple(rows)))
    listing = Listing.of(reply)
    rows = tuple(row for row in submission_order(listing) if window.holds(row, states))
    listing = with_stories(head, listing._replace(jobs=rows), [field for field, _ in fields])
    print_fields(listing, fields, options, dashes=True)
    return 0


def _users(options: Mapping[str, str], named: Sequence[str]) -> frozenset[str]:
    """Return the users whose jobs are to be listed; none: of all."""
    if named or "allusers" in options:
        return frozenset()
    return frozenset(options.get("users", w.own_name()).split(","))


def _ended(head: HeadClient, since_s: float, users: frozenset[str]) -> Sequence[JobRow]:
    """Return the jobs that have ended since then, the newest ones where there are too many."""
    (user,) = users if len(users) == 1 else ("",)
    past = head.history(since=since_s, user=user, limit=str(MAX_HISTORY_ROWS))
    if past.more:
        text = f"only the newest {MAX_HISTORY_ROWS} jobs that have ended are searched"
        print(f"sacct: warning: {text}; state a later -S", file=sys.stderr)
    return past.jobs


def _states(text: str) -> frozenset[str]:
    try:
        return w.read_states(text)
    except SlurmError as error:
        name = error.message.split("\n", maxsplit=1)[0].rpartition(": ")[2]
        raise SlurmError(
            f"sacct: fatal: unrecognized job state value '{name}'", plain=True
        ) from None


def _print_names() -> None:
    titles = [field.title for field in SACCT.values()]
    for at in range(0, len(titles), _NAMES_ON_A_LINE):
        print(" ".join(f"{title:<19}" for title in titles[at : at + _NAMES_ON_A_LINE]))
