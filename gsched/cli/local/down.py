"""``gsched down``: stop what ``gsched up`` started."""

import contextlib
import sys
from dataclasses import dataclass, field

import click
import msgspec
import psutil

from gsched.cli.common import (
    is_terminal,
    option,
    print_json,
)
from gsched.cli.local import cluster
from gsched.cli.local.daemons import is_gone, launcher_process, pause, running_process, stop
from gsched.cli.local.layout import ClusterLayout, layout_of
from gsched.cli.local.options import directory_option, subcommand, teller
from gsched.cli.local.up import Bringup, Tell, only_one
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.errors import ConfigError, GschedError, HeadUnreachableError, TryAgainError
from gsched.model.states import JobState
from gsched.protocol.actions import DeleteJob

KILL_GRACE_S = 5.0  # TERM to KILL of jobs that `--kill-jobs` ends: nobody waits for checkpoints
REVIVE_TIMEOUT_S = 60.0
IDS_PER_REQUEST = 1000
LAUNCHER_WAIT_S = 5.0
#: How long a launcher may take to leave that its node daemon has told to.
LEAVES_S = 1.0


@subcommand("down")
@directory_option
@option(
    "--kill-jobs",
    is_flag=True,
    help="First cancel all jobs, waiting ones included (TERM, 5 s, KILL).",
)
@option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for --kill-jobs to end all jobs.",
)
def down(*, directory: str | None, kill_jobs: bool, timeout_s: float, as_json: bool) -> int:
    """Stop the nodes and the head of a cluster that ``gsched up`` started.

    Running jobs continue under their supervisors; the next `gsched up` finds them, or their
    outcomes.
    """
    tell = teller(quiet=as_json or not is_terminal(sys.stderr))
    report = take_down(layout_of(directory), kill_jobs=kill_jobs, timeout_s=timeout_s, tell=tell)
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        _print(report)
    return 0


@dataclass(kw_only=True)
class DownReport:
    """What ``down`` did.

    Attributes:
        stopped: labels of daemons, with how they went where it was not plain.
        jobs_ended: how many jobs ``--kill-jobs`` ended.
        jobs_left: how many jobs run on under their supervisors; None if the head was down.
    """

    directory: str
    stopped: list[str] = field(default_factory=list)
    jobs_ended: int = 0
    jobs_left: int | None = None


def take_down(
    layout: ClusterLayout, *, kill_jobs: bool, timeout_s: float, tell: Tell
) -> DownReport:
    """Stop all daemons of a cluster; doing it twice does no harm.

    Args:
        layout: of the cluster.
        kill_jobs: end all jobs first, running or not.
        timeout_s: how long the jobs may take to end.
        tell: is told what is being done.

    Raises:
        ConfigError: there is no cluster in that directory.
        TryAgainError: some job did not end in time; then nothing was stopped.
    """
    if not layout.exists:
        raise ConfigError(
            f"{layout.directory}: no cluster here (no {layout.config.name} in it)",
            hint="name its directory with --dir",
        )
    report = DownReport(directory=str(layout.directory))
    if kill_jobs:
        report.jobs_ended = _end_jobs(layout, timeout_s=timeout_s, tell=tell)
    with only_one(layout):
        if not kill_jobs:
            report.jobs_left = _count_running(layout)
        _stop_daemons(layout, report, tell)
        _stop_launchers(layout, report)
    return report


def _stop_daemons(layout: ClusterLayout, report: DownReport, tell: Tell) -> None:
    """Stop the nodes, then the head: so that the head still records what they say at the end."""
    daemons = [cluster.node_daemon(node) for node in layout.nodes()]
    for daemon in (*daemons, cluster.head_daemon(layout)):
        process = running_process(daemon)
        if process is None:
            continue
        tell(f"stopping {daemon.label}")
        how = stop(process)
        report.stopped.append(daemon.label if how == "stopped" else f"{daemon.label} ({how})")


def _count_running(layout: ClusterLayout) -> int | None:
    try:
        jobs = HeadClient(str(layout.socket), patience_s=0.0).status().jobs
    except GschedError:
        return None
    return jobs.get(JobState.RUNNING, 0) + jobs.get(JobState.EXITING, 0)


def _end_jobs(layout: ClusterLayout, *, timeout_s: float, tell: Tell) -> int:
    """Delete every unfinished job and wait until all have their outcome; return how many."""
    if running_process(cluster.head_daemon(layout)) is None:
        if not layout.database.exists():
            return 0
        # Only the head knows the jobs, and only its nodes can end them.
        tell("the cluster is down: restarting it to end its jobs")
    daemons = [cluster.head_daemon(layout), *map(cluster.node_daemon, layout.nodes())]
    if any(running_process(daemon) is None for daemon in daemons):
        bringup = Bringup(layout, timeout_s=REVIVE_TIMEOUT_S, tell=tell, leave_broken=True)
        bringup.run(cluster.ClusterRequest())
    head = HeadClient(str(layout.socket))
    ids = [str(row.id) for row in head.jobs().jobs]
    for first in range(0, len(ids), IDS_PER_REQUEST):
        part = tuple(ids[first : first + IDS_PER_REQUEST])
        head.act(DeleteJob(ids=part, grace_s=KILL_GRACE_S, message="gsched down --kill-jobs"))
    deadline_s = SystemClock().monotonic_s() + timeout_s
    while left := _unfinished(head):
        if SystemClock().monotonic_s() > deadline_s:
            raise TryAgainError(
                f"{len(left)} of {len(ids)} jobs have not ended after {timeout_s:g} s: "
                f"{', '.join(left[:5])}; nothing was stopped",
                hint="see `gstat -f` for such a job, or give a longer --timeout",
            )
        tell(f"{len(left)} jobs are ending")
        pause(0.2)
    return len(ids)


def _unfinished(head: HeadClient) -> list[str]:
    try:
        return [str(row.id) for row in head.jobs().jobs if row.state != JobState.DONE]
    except HeadUnreachableError as error:
        raise TryAgainError(
            f"lost the head while jobs were ending: {error.message}",
            hint="run the same `gsched down` again",
        ) from error


def _stop_launchers(layout: ClusterLayout, report: DownReport) -> None:
    """Have the launchers leave that gnode could not tell to, because it had been killed.

    At TERM a launcher leaves once no supervisor is left, so this harms no running job.
    """
    launchers = [(node.name, launcher_process(node.directory)) for node in layout.nodes()]
    wait_s, leaves_s = (0.0, 0.0) if report.jobs_left else (LAUNCHER_WAIT_S, LEAVES_S)
    alive = [
        (name, process)
        for name, process in launchers
        if process is not None and not is_gone(process, leaves_s)
    ]
    for _, process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for name, process in alive:
        if is_gone(process, wait_s):
            report.stopped.append(f"launcher of {name}")


def _print(report: DownReport) -> None:
    if report.jobs_ended:
        print(f"jobs ended: {report.jobs_ended}")
    if report.stopped:
        print(f"stopped {', '.join(report.stopped)}")
    else:
        print(f"nothing was running in {report.directory}")
    if report.jobs_left:
        print(
            f"jobs that keep running under their supervisors: {report.jobs_left}; "
            f"`gsched up --dir {report.directory}` finds them"
        )
