"""sacct and sstat: fields of jobs in Slurm's columns; sacctmgr, whose lists are empty.

gsched keeps no database of accounts: projects are in its configuration. Tools that check an account
before they submit take an empty list as "cannot be checked".
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from gsched.cli.slurm import words as w
from gsched.cli.slurm.elements import with_elements
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.fields import (
    SACCT,
    SSTAT,
    Listing,
    chosen,
    print_fields,
    submission_order,
    with_stories,
)
from gsched.cli.slurm.moments import past_moment
from gsched.cli.slurm.options import is_wanted, parsed
from gsched.client import HeadClient
from gsched.errors import UsageError
from gsched.model.limits import MAX_HISTORY_ROWS
from gsched.model.states import JobState
from gsched.protocol.job_rows import JobRow

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
_NEVER: Final = float("inf")
_SSTAT_DEFAULT: Final = "JobID,NTasks,AveCPU,AveRSS,MaxRSS,MaxVMSize"
_LISTS = frozenset({"list", "show"})


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


class TimeSpan(NamedTuple):
    """A span of time, from its first moment to before its last."""

    since_s: float
    until_s: float

    def holds(self, row: JobRow, states: frozenset[str]) -> bool:
        """Return whether a job was in one of the states, in any of them if none is named.

        A job is pending until it starts, and running until it ends, in whichever state it is now;
        it gets another state at its end.
        """
        if not states:
            return self._meets(row.submitted_s, _end_s(row))
        return any(_WAS_IN.get(state, _has_ended_as(state))(self, row) for state in states)

    def _meets(self, begin_s: float, end_s: float) -> bool:
        return begin_s < self.until_s and end_s >= self.since_s

    def was_pending(self, row: JobRow) -> bool:
        """Return whether a job waited then."""
        return self._meets(row.submitted_s, min(row.started_s or _NEVER, _end_s(row)))

    def was_running(self, row: JobRow) -> bool:
        """Return whether a job ran then."""
        return row.started_s is not None and self._meets(row.started_s, _end_s(row))


_WAS_IN: Final[Mapping[str, Callable[[TimeSpan, JobRow], bool]]] = {
    **dict.fromkeys(("PENDING", "PD"), TimeSpan.was_pending),
    **dict.fromkeys(("RUNNING", "R"), TimeSpan.was_running),
}


def _has_ended_as(state: str) -> Callable[[TimeSpan, JobRow], bool]:
    def read(window: TimeSpan, row: JobRow) -> bool:
        end_s = _end_s(row)
        is_then = end_s == _NEVER or window.since_s <= end_s < window.until_s
        return is_then and state in w.state_of(row)

    return read


def _end_s(row: JobRow) -> float:
    if row.state != JobState.DONE:
        return _NEVER
    return row.submitted_s if row.ended_s is None else row.ended_s


def window_of(
    since: str, until: str, *, is_named: bool, has_states: bool, now_s: float
) -> TimeSpan:
    """Return what -S and -E mean, with Slurm's defaults, which depend on -j and -s.

    Without -S it is today, with -s this moment, and with -j all time; without -E it lasts until
    now, with -s and -S one second.

    Raises:
        SlurmError: one of them is invalid, or the end is before the begin.
    """
    until_s = past_moment(until, now_s=now_s) if until else None
    if since:
        since_s = past_moment(since, now_s=now_s)
    elif is_named:
        since_s = 0.0
    else:
        since_s = float(int(now_s)) if has_states else past_moment("today", now_s=now_s)
    if until_s is None:
        until_s = (since_s if since and has_states else now_s) + 1.0
    elif since_s > until_s:
        begin, end = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(each)) for each in (since_s, until_s)
        )
        raise SlurmError(f"Start time ({begin}) requested is after end time ({end}).")
    return TimeSpan(since_s, until_s)


def sstat(words: Sequence[str]) -> int:
    """Print what running jobs use."""
    options, operands = parsed(words, "sstat")
    if "helpformat" in options:
        print(" ".join(field.title for field in SSTAT.values()))
        return 0
    named = [word.partition(".")[0] for each in [options.get("jobs", ""), *operands]
             for word in each.split(",") if word]  # fmt: skip
    if not named:
        raise SlurmError("You didn't give me any jobs to stat.")
    fields = chosen(options.get("format", _SSTAT_DEFAULT), SSTAT)
    reply = HeadClient().jobs(w.job_ids(named))
    rows = [row for row in reply.jobs if row.started_s is not None and row.state != JobState.DONE]
    if not rows:
        raise SlurmError("\n".join(f"No steps running for job {each}" for each in named))
    reply = structs.replace(reply, jobs=tuple(rows))
    print_fields(Listing.of(reply), fields, options, dashes=False)
    return 0


def sacctmgr(words: Sequence[str]) -> int:
    """Print an empty list; refuse everything that would change accounts.

    Raises:
        UsageError: it is no request for a list.
    """
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb not in _LISTS:
        raise UsageError(
            f"cannot {verb or 'run without a request'}: gsched keeps no accounts",
            hint="valid: list, show, whose lists are empty; sshare shows the projects",
        )
    return 0
