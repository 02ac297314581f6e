"""scontrol show job and show config, in Slurm's lines of NAME=VALUE."""

import pwd
from collections.abc import Sequence

from gsched.cli.slurm import words as w
from gsched.client import Head
from gsched.model.ids import array_of
from gsched.protocol.api import JobList, JobStory

_ONE_LINE = frozenset({"-o", "--oneliner"})


def show_job(operands: Sequence[str]) -> int:
    """Print the jobs named, or all unfinished ones; with ``-o`` a line for each."""
    head = Head()
    ids = w.job_ids([word for word in operands if word and not word.startswith("-")])
    if not ids:
        ids = [str(row.id) for row in head.jobs().jobs]
    for number in ids:
        lines = _lines(head.job(number))
        if _ONE_LINE & set(operands):
            print(" ".join(lines))
        else:
            print("\n   ".join(lines) + "\n")
    return 0


def _lines(story: JobStory) -> list[str]:
    row = story.row
    array = array_of(row.id)
    element = f" ArrayJobId={array} ArrayTaskId={w.task_id(row)}" if array else ""
    listing = JobList(server=story.server, now_s=story.now_s, jobs=(row,))
    times = {"SubmitTime": row.submitted_s, "StartTime": row.started_s, "EndTime": row.ended_s}
    batch_host = f" BatchHost={row.nodes[0]}" if row.nodes else ""
    minimum_mb = row.memory_bytes // 1024**2 // max(1, row.places)
    state = w.state_of(row)[0]
    attempts = max(0, row.attempt - 1)
    limit = _days(row.walltime_s) if row.walltime_s else "UNLIMITED"
    return [
        f"JobId={row.id}{element} JobName={row.name}",
        f"UserId={_with_uid(row.user)} Priority={row.priority} QOS=normal",
        f"Account={row.account or '(null)'}",
        f"JobState={state} Reason={w.reason_word(row)} Dependency={story.depends or '(null)'}",
        f"Requeue={int(story.rerunnable)} Restarts={attempts} ExitCode={w.exit_code(row)}",
        f"RunTime={_days(w.elapsed_s(row, listing.now_s))} TimeLimit={limit}",
        " ".join(f"{name}={w.slurm_time(at_s)}" for name, at_s in times.items()),
        f"Partition={row.queue} NodeList={','.join(row.nodes) or '(null)'}{batch_host}",
        f"NumNodes={len(row.nodes) or row.places} NumCPUs={row.cpus} CPUs/Task=1",
        f"MinMemoryNode={minimum_mb}M" if minimum_mb else "MinMemoryNode=0",
        f"WorkDir={story.workdir}",
        f"StdErr={story.stderr_path}",
        f"StdOut={story.stdout_path}",
    ]


def _with_uid(user: str) -> str:
    """Return ``alice(1000)``; without the number where the name is unknown here."""
    try:
        return f"{user}({pwd.getpwnam(user).pw_uid})"
    except KeyError:
        return user


def _days(seconds: float) -> str:
    """Return ``[D-]HH:MM:SS``."""
    days, rest = divmod(int(seconds), 86_400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def show_config() -> int:
    """Print what tools ask of Slurm's configuration."""
    print("MinJobAge               = 300 sec")
    print(f"ClusterName             = {Head().status().server}")
    return 0
