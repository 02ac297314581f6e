"""squeue and scancel, as programs use them; and where all commands of Slurm start."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

import msgspec

from gsched.cli.common import patient_head
from gsched.cli.dialect import speak
from gsched.cli.running import end_with, guarded
from gsched.cli.show.arrays import all_elements
from gsched.cli.slurm import words as w
from gsched.cli.slurm.elements import with_running_elements
from gsched.cli.slurm.errors import (
    FINISHED,
    INVALID_JOB,
    VERSION,
    SlurmDialect,
    SlurmError,
    error_words,
    report,
)
from gsched.cli.slurm.fields import (
    Listing,
    in_order,
    long_cells,
    squeue_cells,
    squeue_lines,
    with_stories,
)
from gsched.cli.slurm.interactive import salloc
from gsched.cli.slurm.options import is_wanted, parsed
from gsched.cli.slurm.sacct import sacct, sacctmgr, sstat
from gsched.cli.slurm.sbatch import sbatch
from gsched.cli.slurm.scontrol import scontrol
from gsched.cli.slurm.sinfo import repeated, sinfo
from gsched.cli.slurm.sreport import sreport
from gsched.cli.slurm.srun import srun
from gsched.cli.slurm.sshare import sshare
from gsched.client import HeadClient
from gsched.config.environment import environment
from gsched.errors import UsageError
from gsched.model.states import JobState
from gsched.protocol.actions import DeleteJob, SignalJob
from gsched.protocol.job_rows import JobList, JobRow

MIN_JOB_AGE_S: Final = 300.0  # for which squeue -t all shows jobs that have ended, as Slurm's
_LONG_FORM: Final = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
_START_FORM: Final = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
_USUAL_ORDER: Final = "P,t,-Q"
_DEFAULT_FORM: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"

# --- lists ---


def squeue(words: Sequence[str]) -> int:
    """List unfinished jobs."""
    options, operands = parsed(words, "squeue")
    if operands:
        raise SlurmError(f"Unrecognized option: {operands[0]}")
    states = w.read_states(options.get("states", "PENDING" if "start" in options else ""))
    named = w.job_ids([options["jobs"]]) if "jobs" in options else []
    _check_ids(named, "Invalid job id: {}")
    return repeated(lambda: _list_jobs(named, states, options), options)


def _list_jobs(named: Sequence[str], states: frozenset[str], options: Mapping[str, str]) -> int:
    head = HeadClient()
    reply = head.jobs(
        named, finished=_wants_finished(options) and not named, forecast="start" in options
    )
    if "array" in options:
        reply = all_elements(head, reply)
    elif any(row.array is not None for row in reply.jobs):
        reply = with_running_elements(head, reply)
    if named and len(named) == len(reply.errors):
        raise SlurmError(f"slurm_load_jobs error: {INVALID_JOB}", plain=True)
    since_s = reply.now_s - (MIN_JOB_AGE_S if _wants_finished(options) else 0.0)
    rows = [row for row in reply.jobs if row.state != JobState.DONE or _ended_s(row) > since_s]
    rows = [row for row in rows if is_wanted(row, options, states)]
    shown = JobList(server=reply.server, now_s=reply.now_s, jobs=tuple(rows))
    if "json" in options:
        print(msgspec.json.encode(w.squeue_json(shown)).decode())
        return 0
    usual = _START_FORM if "start" in options else _DEFAULT_FORM
    usual = _LONG_FORM if "long" in options else usual
    form = options.get("format") or environment("SQUEUE_FORMAT") or usual
    if "long" in options and "noheader" not in options and form == _LONG_FORM:
        print(time.strftime("%a %b %d %H:%M:%S %Y"))
    long = options.get("Format")
    cells = squeue_cells(form) if long is None else long_cells(long)
    order = options.get("sort") or environment("SQUEUE_SORT")
    order = order or ("S" if "start" in options else _USUAL_ORDER)
    listing = with_stories(head, Listing.of(shown), [each.field for each in cells])
    listing = listing._replace(jobs=in_order(listing, order))
    sys.stdout.write("".join(squeue_lines(listing, cells, header="noheader" not in options)))
    return 0


def _wants_finished(options: Mapping[str, str]) -> bool:
    """Return whether jobs that have ended lately are to be listed, as Slurm keeps them a while."""
    states = {each.upper() for each in options.get("states", "").split(",")}
    return bool(states & w.FINISHED_STATES)


def _ended_s(row: JobRow) -> float:
    return row.ended_s or 0.0


# --- actions ---


_CHOOSING: Final = frozenset(
    {
        *("me", "name", "users", "states", "partition", "account", "nodelist", "qos"),
        *("reservation", "wckey"),
    }
)


def scancel(words: Sequence[str]) -> int:
    """Cancel jobs, or send a signal to them; a job that has ended is no error."""
    options, operands = parsed(words, "scancel")
    ids = w.job_ids(operands)
    _check_ids(ids, "Invalid job id {}")
    head = patient_head(command="scancel")
    if not ids:
        if not _CHOOSING & set(options):
            raise SlurmError("No job identification provided")
        states = w.read_states(options.get("states", ""))
        ids = [str(row.id) for row in head.jobs().jobs if is_wanted(row, options, states)]
    if "interactive" in options:
        ids = [number for number in ids if _is_confirmed(number)]
    if not ids:
        return 0
    verbose = "verbose" in options
    request: DeleteJob | SignalJob = DeleteJob(ids=tuple(ids))
    if "signal" in options:
        request = SignalJob(ids=tuple(ids), signal=_signal(options["signal"]))
    elif verbose:
        for number in ids:
            print(f"scancel: Terminating job {number}", file=sys.stderr)
    results = head.act(request).results
    refused = [(each.id, error_words(each.error)) for each in results if each.error is not None]
    return _tell_refused(refused, has_signal="signal" in options, verbose=verbose)


def _is_confirmed(number: str) -> bool:
    return input(f"Cancel job_id={w.slurm_name(number)} [y/n]? ").lower().startswith("y")


def _check_ids(ids: Sequence[str], message: str) -> None:
    for number in ids:
        if not w.is_job_id(number):
            raise SlurmError(message.format(number))


def _tell_refused(refused: Sequence[tuple[str, str]], *, has_signal: bool, verbose: bool) -> int:
    """Print why jobs were not cancelled; one that is gone is as it was to be: no error."""
    status = 0
    for job, words in refused:
        gone = words in {INVALID_JOB, FINISHED}
        if verbose or not gone:
            name = w.slurm_name(job)
            print(f"scancel: error: Kill job error on job id {name}: {words}", file=sys.stderr)
        if not gone or has_signal:
            status = 1
    return status


def _signal(text: str) -> int:
    from gsched.cli.operands import parse_signal  # late: most only cancel

    try:
        return parse_signal(text, "--signal")
    except UsageError:
        raise SlurmError(f"Unknown job signal: {text}", plain=True) from None


# --- start ---

COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "sacct": sacct,
    "salloc": salloc,
    "sacctmgr": sacctmgr,
    "sshare": sshare,
    "sbatch": sbatch,
    "scancel": scancel,
    "scontrol": scontrol,
    "sinfo": sinfo,
    "squeue": squeue,
    "srun": srun,
    "sreport": sreport,
    "sstat": sstat,
}


def run_slurm(name: str, arguments: Sequence[str]) -> int:
    """Run a command of Slurm; return its exit code."""
    speak(SlurmDialect())
    if "--version" in arguments or "-V" in arguments:
        print(VERSION)
        return 0
    return guarded(partial(COMMANDS[name], arguments), name, partial(report, command=name))


def main(name: str) -> NoReturn:
    """Run a command of Slurm with this process's arguments."""
    end_with(partial(run_slurm, name, sys.argv[1:]))
