"""scontrol show job, in Slurm's lines of NAME=VALUE."""

from collections.abc import Sequence

from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import INVALID_JOB, SlurmError
from gsched.cli.slurm.fields import ends_s, group_id, group_name, user_id
from gsched.client import HeadClient
from gsched.errors import UnknownJobError
from gsched.model.host_lists import compact
from gsched.model.ids import array_of
from gsched.protocol.api import JobRow, JobStory


def show_job(operands: Sequence[str], *, one_line: bool) -> int:
    """Print the jobs named, or all unfinished ones.

    Raises:
        SlurmError: a job is unknown.
    """
    head = HeadClient()
    ids = w.job_ids([word for word in operands if not word.startswith("-")])
    if not all(w.is_job_id(each) for each in ids):
        raise SlurmError(f"scontrol_print_job error: {INVALID_JOB}", plain=True)
    if not ids:
        ids = [str(row.id) for row in head.jobs().jobs]
        if not ids:
            print("No jobs in the system")
    for number in ids:
        try:
            lines = _lines(head.job(number))
        except UnknownJobError:
            raise SlurmError(f"slurm_load_jobs error: {INVALID_JOB}", plain=True) from None
        print(" ".join(lines) if one_line else "\n   ".join(lines) + "\n")
    return 0


def _lines(story: JobStory) -> list[str]:
    row = story.row
    nodes = len(row.nodes) or row.places
    memory = row.memory_bytes // 1024**2 // max(1, row.places)
    limit = w.slurm_days(row.walltime_s) if row.walltime_s else "UNLIMITED"
    started_s = row.started_s or row.predicted_start_s
    tasks, cpus = max(1, row.places), row.cpus // max(1, row.places)
    batch_host = [f"BatchHost={row.nodes[0]}"] if row.nodes else []
    gpus = [f"TresPerNode=gres:gpu:{_each(row.gpus, row.places)}"] if row.gpus else []
    ends = w.slurm_time(ends_s(row), none="Unknown")
    user = _with_number(row.user, user_id(row))
    named = group_name(row)
    group = _with_number(named, group_id(row)) if named else "(null)"
    is_batch = f"BatchFlag={int(story.interactive is None)} Reboot=0"
    again = int(story.rerunnable)
    depends, restarts = story.depends or "(null)", max(0, row.attempt - 1)
    return [
        f"JobId={_number(row)} JobName={row.name}",
        f"UserId={user} GroupId={group} MCS_label=N/A",
        f"Priority={row.priority} Nice=0 Account={row.account or '(null)'} QOS=normal",
        f"JobState={w.state_of(row)[0]} Reason={w.reason_word(row)} Dependency={depends}",
        f"Requeue={again} Restarts={restarts} {is_batch} ExitCode={w.exit_code(row)}",
        f"RunTime={w.slurm_days(w.elapsed_s(row, story.now_s))} TimeLimit={limit} TimeMin=N/A",
        f"SubmitTime={w.slurm_time(row.submitted_s)} EligibleTime={_eligible(story)}",
        f"StartTime={w.slurm_time(started_s, none='Unknown')} EndTime={ends} Deadline=N/A",
        f"Partition={row.queue} AllocNode:Sid={story.submit_host or 'localhost'}:0",
        "ReqNodeList=(null) ExcNodeList=(null)",
        f"NodeList={compact(row.nodes) or '(null)'}",
        *batch_host,
        f"NumNodes={nodes} NumCPUs={row.cpus} NumTasks={tasks} CPUs/Task={cpus} ReqB:S:C:T=0:0:*:*",
        f"TRES={_tres(row, nodes)}",
        "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
        f"MinCPUsNode={cpus} MinMemoryNode={f'{memory}M' if memory else 0} MinTmpDiskNode=0",
        "Features=(null) DelayBoot=00:00:00",
        "OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)",
        f"Command={_command(story)}",
        f"WorkDir={story.workdir}",
        *([f"Comment={row.comment}"] if row.comment else []),
        f"StdErr={w.output_path(story, 'e')}",
        "StdIn=/dev/null",
        f"StdOut={w.output_path(story, 'o')}",
        *gpus,
    ]


def _number(row: JobRow) -> str:
    array = array_of(row.id)
    if array:
        return f"{w.number_of(row)} ArrayJobId={array} ArrayTaskId={w.task_id(row)}"
    if row.array is not None:
        return f"{row.id} ArrayJobId={row.id} ArrayTaskId={w.task_id(row)}"
    return str(row.id)


def _command(story: JobStory) -> str:
    return " ".join(story.arguments) or "(null)"


def _eligible(story: JobStory) -> str:
    return w.slurm_time(max(story.row.submitted_s, story.start_after_s))


def _each(amount: int, places: int) -> int:
    return -(-amount // max(1, places))


def _tres(row: JobRow, nodes: int) -> str:
    parts = [f"cpu={row.cpus}"]
    parts += [f"mem={row.memory_bytes >> 20}M"] if row.memory_bytes else []
    parts += [f"node={nodes}", f"billing={row.cpus}"]
    parts += [f"gres/gpu={row.gpus}"] if row.gpus else []
    return ",".join(parts)


def _with_number(name: str, number: int | None) -> str:
    """Return ``alice(1000)``; without the number where the name is unknown here."""
    return name if number is None else f"{name}({number})"
