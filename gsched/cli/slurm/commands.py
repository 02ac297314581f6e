"""squeue, sacct, sinfo, scancel and scontrol, as programs use them; and where all of them start."""

import os
import pwd
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

import msgspec
from msgspec import structs

from gsched.cli.common import check_width, print_error
from gsched.cli.dialect import Dialect, speak
from gsched.cli.show.arrays import all_elements
from gsched.cli.slurm import words as w
from gsched.cli.slurm.accounts import sacctmgr, sshare
from gsched.cli.slurm.interactive import salloc
from gsched.cli.slurm.sbatch import sbatch
from gsched.cli.slurm.show_job import show_config, show_job
from gsched.cli.slurm.srun import srun
from gsched.cli.slurm.sstat import sstat
from gsched.client import Head, error_from
from gsched.config import environment
from gsched.errors import GschedError, UnknownJobError, UsageError
from gsched.model.ids import array_of
from gsched.model.limits import MAX_HISTORY_ROWS
from gsched.model.states import JobState, NodeState
from gsched.protocol.actions import DeleteJob, HoldJob, ReleaseJob, RerunJob, SignalJob
from gsched.protocol.api import JobList, JobRow, NodeRow

_Action = DeleteJob | SignalJob | RerunJob | HoldJob | ReleaseJob
MIN_JOB_AGE_S: Final = 300.0  # for which squeue -t all shows jobs that have ended, as Slurm's
_DEFAULT_FORM: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"


class SlurmDialect(Dialect):
    """``sbatch: error: …``; exit code 1 for every error, as Slurm has it."""

    name = "slurm"
    ignores_unknown = True

    def exit_code(self, error: GschedError) -> int:
        """Return 1."""
        del error
        return 1

    def lines(self, error: GschedError, *, command: str, operand: str) -> tuple[str, ...] | None:
        """Return ``error: MESSAGE``, and the hint."""
        del command, operand
        hint = (f"error: {error.hint}",) if error.hint else ()
        return (f"error: {' '.join(error.message.split())}", *hint)


# --- lists ---


def squeue(words: Sequence[str]) -> int:
    """List unfinished jobs."""
    flags = {"-h": "noheader", "--noheader": "noheader", "--me": "me", "-a": "all", "--all": "all"}
    flags |= {"-r": "array", "--array": "array", "-l": "long", "--long": "long"}
    flags |= {"--json": "json", "--start": "start"}
    valued = {
        **dict.fromkeys(("-j", "--job", "--jobs"), "jobs"),
        **dict.fromkeys(("-u", "--user", "--users"), "users"),
        **dict.fromkeys(("-o", "--format"), "format"),
        **dict.fromkeys(("-O", "--Format"), "long_format"),
        **dict.fromkeys(("-S", "--sort"), "sort"),
        **dict.fromkeys(("-M", "--clusters"), "clusters"),
        **dict.fromkeys(("-A", "--account"), "account"),
        **dict.fromkeys(("-w", "--nodelist"), "nodelist"),
        **dict.fromkeys(("-t", "--states"), "states"),
        **dict.fromkeys(("-n", "--name"), "name"),
        **dict.fromkeys(("-p", "--partition"), "partition"),
    }
    options, operands = w.parse(words, flags=flags, valued=valued)
    if operands:
        raise UsageError(f"unexpected operand {operands[0]!r}")
    head = Head()
    named = w.job_ids([options["jobs"]]) if "jobs" in options else []
    reply = head.jobs(
        named, finished=_wants_finished(options) and not named, forecast="start" in options
    )
    if "array" in options:
        reply = all_elements(head, reply)
    elif any(row.array is not None for row in reply.jobs):
        reply = _with_running_elements(head, reply)
    if named and len(named) == len(reply.errors):
        raise UnknownJobError("Invalid job id specified")
    since_s = reply.now_s - (MIN_JOB_AGE_S if _wants_finished(options) else 0.0)
    rows = [row for row in reply.jobs if row.state != JobState.DONE or _ended_s(row) > since_s]
    rows = [row for row in rows if _is_wanted(row, options)]
    shown = JobList(server=reply.server, now_s=reply.now_s, jobs=tuple(rows))
    if "json" in options:
        print(msgspec.json.encode(w.squeue_json(shown)).decode())
        return 0
    form = options.get("format") or environment("SQUEUE_FORMAT") or _DEFAULT_FORM
    if "long_format" in options:
        form = w.long_form(options["long_format"])
    directories: dict[int, str] = {}
    if w.asks_for_directories(form):
        stories = head.stories([row.id for row in rows]).jobs
        directories = {story.row.id: story.workdir for story in stories}
    lines = w.squeue_lines(shown, form, header="noheader" not in options, directories=directories)
    sys.stdout.write("".join(lines))
    return 0


def _wants_finished(options: Mapping[str, str]) -> bool:
    """Return whether jobs that have ended lately are to be listed, as Slurm keeps them a while."""
    states = {each.upper() for each in options.get("states", "").split(",")}
    return bool(states & w.FINISHED_STATES)


def _ended_s(row: JobRow) -> float:
    return row.ended_s or 0.0


def _is_wanted(row: JobRow, options: Mapping[str, str]) -> bool:
    users = set(options.get("users", "").split(",")) - {""}
    if "me" in options:
        users.add(_own_name())
    states = {each.upper() for each in options.get("states", "").split(",")} - {"", "ALL"}
    names = set(options.get("name", "").split(",")) - {""}
    queues = set(options.get("partition", "").split(",")) - {""}
    accounts = set(options.get("account", "").split(",")) - {""}
    nodes = set(options.get("nodelist", "").split(",")) - {""}
    return (
        (not users or row.user in users)
        and (not accounts or row.account in accounts)
        and (not nodes or bool(nodes & set(row.nodes)))
        and (not states or bool(states & set(w.state_of(row))))
        and (not names or row.name in names)
        and (not queues or row.queue in queues)
    )


def _with_running_elements(head: Head, reply: JobList) -> JobList:
    """Return a list with the elements of its arrays that run; the array stands for the others."""
    arrays = {row.id for row in reply.jobs if row.array is not None}
    every = head.jobs(elements=True).jobs
    running = [r for r in every if array_of(r.id) in arrays and r.state not in _RESTING]
    rows = [
        structs.replace(row, state=JobState.QUEUED.value) if _has_waiting(row) else row
        for row in reply.jobs
        if row.array is None or row.state == JobState.DONE or _has_waiting(row)
    ]
    return structs.replace(reply, jobs=(*rows, *running))


def _has_waiting(row: JobRow) -> bool:
    return row.array is not None and row.state == JobState.RUNNING and row.array.waiting > 0


_RESTING: Final = (JobState.QUEUED, JobState.HELD, JobState.WAITING)


def _with_elements(head: Head, reply: JobList) -> JobList:
    """Return a list in which the elements of arrays stand beside those that still wait."""
    arrays = [row for row in reply.jobs if row.array is not None]
    if not arrays:
        return reply
    past = head.history(ids=",".join(f"{row.id}[]" for row in arrays), limit=str(MAX_HISTORY_ROWS))
    ended = sorted((r for r in past.jobs if array_of(r.id)), key=lambda each: each.id)
    seen = _with_running_elements(head, reply)
    known = {array_of(row.id) for row in ended}
    rows = [r for r in seen.jobs if r.state != JobState.DONE or r.id not in known]
    return structs.replace(reply, jobs=(*rows, *ended))


def _own_name() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def sacct(words: Sequence[str]) -> int:
    """Print fields of jobs, finished or not."""
    flags = {
        **dict.fromkeys(("-X", "--allocations"), "allocations"),
        **dict.fromkeys(("-n", "--noheader"), "noheader"),
        **dict.fromkeys(("-p", "--parsable"), "parsable"),
        **dict.fromkeys(("-P", "--parsable2"), "parsable2"),
        **dict.fromkeys(("-L", "--allclusters"), "clusters"),
        **dict.fromkeys(("-a", "--allusers"), "allusers"),
    }
    valued = {
        **dict.fromkeys(("-j", "--job", "--jobs"), "jobs"),
        **dict.fromkeys(("-o", "--format"), "format"),
        **dict.fromkeys(("-u", "--user", "--uid"), "users"),
        **dict.fromkeys(("-M", "--clusters"), "clusters"),
        **dict.fromkeys(("-S", "--starttime"), "since"),
        **dict.fromkeys(("-E", "--endtime"), "until"),
        "--name": "name",
    }
    if "--helpformat" in words or "-e" in words:
        print("\n".join(title for title, _ in w.SACCT.values()))
        return 0
    options, operands = w.parse(words, flags=flags, valued=valued)
    fields = _sacct_fields(options.get("format", "JobID,JobName,Partition,State,ExitCode"))
    named = w.job_ids([options.get("jobs", ""), *operands])
    head = Head()
    reply = head.jobs(named, finished=not named)
    rows = reply.jobs
    if not named and "allusers" not in options:
        rows = tuple(row for row in rows if row.user == options.get("users", _own_name()))
    if "name" in options:
        rows = tuple(row for row in rows if row.name in options["name"].split(","))
    reply = _with_elements(head, structs.replace(reply, jobs=tuple(rows)))
    rows = reply.jobs
    lines = [[title for title, _, _ in fields]] if "noheader" not in options else []
    lines += [[read(row, reply) for _, read, _ in fields] for row in rows]
    w.print_table(lines, [width for _, _, width in fields], options)
    return 0


def _sacct_fields(text: str) -> list[tuple[str, w.Field, int]]:
    found = []
    for word in filter(None, text.split(",")):
        name, _, width = word.partition("%")
        field = w.SACCT.get(name.lower())
        if field is None:
            raise UsageError(f"Invalid field requested: {name!r}", hint=", ".join(w.SACCT))
        check_width(width, "--format")
        found.append((*field, int(width.strip("-")) if width.strip("-").isdecimal() else 10))
    return found


def sinfo(words: Sequence[str]) -> int:
    """List partitions with their nodes."""
    flags = dict.fromkeys(("-h", "--noheader"), "noheader") | dict.fromkeys(("-s",), "summary")
    flags |= dict.fromkeys(("-N", "--Node"), "nodes") | dict.fromkeys(("-l", "--long"), "long")
    flags |= dict.fromkeys(("-a", "--all"), "all")
    valued = {
        **dict.fromkeys(("-o", "--format"), "format"),
        **dict.fromkeys(("-p", "--partition"), "partition"),
        **dict.fromkeys(("-n", "--nodes"), "names"),
        **dict.fromkeys(("-t", "--states"), "states"),
        **dict.fromkeys(("-M", "--clusters"), "clusters"),
    }
    options, _ = w.parse(words, flags=flags, valued=valued)
    usual = "%N %D %P %t" if "nodes" in options else "%P %a %l %D %t %N"
    form = options.get("format", usual)
    head = Head()
    status, nodes = head.status(), head.nodes().nodes
    wanted = {each for each in options.get("names", "").split(",") if each}
    states = {each.lower() for each in options.get("states", "").split(",") if each}
    queues = {each for each in options.get("partition", "").split(",") if each}
    chosen = [
        node
        for node in nodes
        if (not wanted or node.name in wanted) and (not states or _state_of(node) in states)
    ]
    lines = [
        line
        for index, queue in enumerate(status.queue_rows)
        if not queues or queue.name in queues
        for line in w.sinfo_rows(
            queue, _grouped(chosen, form, each="nodes" in options), is_default=index == 0
        )
    ]
    sys.stdout.write("".join(w.sinfo_lines(lines, form, header="noheader" not in options)))
    return 0


def _grouped(
    nodes: Sequence[NodeRow], form: str, *, each: bool
) -> list[tuple[str, Sequence[NodeRow]]]:
    """Return nodes by state; one by one where the format tells of single nodes."""
    if each or "%n" in form or "%O" in form:
        return [(_state_of(node), [node]) for node in nodes]
    found: dict[str, list[NodeRow]] = {}
    for node in nodes:
        found.setdefault(_state_of(node), []).append(node)
    return list(found.items())


def _state_of(node: NodeRow) -> str:
    return _node_state(node.state, node.drained, node.jobs)


def _node_state(state: str, drained: bool, jobs: Sequence[int]) -> str:  # noqa: FBT001 - a field
    if state != NodeState.UP:
        return "down"
    if drained:
        return "drng" if jobs else "drain"
    return "mix" if jobs else "idle"


# --- actions ---


def scancel(words: Sequence[str]) -> int:
    """Cancel jobs, or send a signal to them; a job that has ended is no error."""
    flags = dict.fromkeys(("-Q", "--quiet"), "quiet") | dict.fromkeys(
        ("-v", "--verbose"), "verbose"
    )
    flags |= {"--me": "me", "-b": "batch", "--batch": "batch", "-f": "full", "--full": "full"}
    valued = {
        **dict.fromkeys(("-s", "--signal"), "signal"),
        **dict.fromkeys(("-n", "--name"), "name"),
        **dict.fromkeys(("-u", "--user"), "users"),
        **dict.fromkeys(("-t", "--state"), "states"),
        **dict.fromkeys(("-M", "--clusters"), "clusters"),
    }
    options, operands = w.parse(words, flags=flags, valued=valued)
    ids = w.job_ids(operands)
    head = Head()
    if not ids:
        if not {"me", "name", "users", "states"} & set(options):
            raise UsageError("No job identification provided")
        ids = [str(row.id) for row in head.jobs().jobs if _is_wanted(row, options)]
    if not ids:
        return 0
    request: DeleteJob | SignalJob = DeleteJob(ids=tuple(ids))
    if "signal" in options:
        from gsched.cli.operands import parse_signal  # late: most only cancel

        request = SignalJob(ids=tuple(ids), signal=parse_signal(options["signal"], "--signal"))
    if "verbose" in options and "signal" not in options:
        for number in ids:
            print(f"scancel: Terminating job {number}", file=sys.stderr)
    return _report(head, request)


def scontrol(words: Sequence[str]) -> int:
    """Carry out requeue, hold, release, and show hostnames or a job."""
    verb, *operands = [*words, "", ""]
    ids = tuple(w.job_ids([each for each in operands if each and not each.startswith("-")]))
    actions: dict[str, _Action] = {
        "requeue": RerunJob(ids=ids),
        "hold": HoldJob(ids=ids),
        "release": ReleaseJob(ids=ids),
    }
    if verb in actions and ids:
        return _report(Head(), actions[verb])
    if (verb, operands[0]) == ("show", "hostnames"):
        from gsched.cli.submit.slurm_request import hosts_of

        text = operands[1] or environment("SLURM_JOB_NODELIST")
        print("\n".join(hosts_of("hostnames", text)))
        return 0
    if verb in {"-o", "--oneliner"}:  # it may stand anywhere
        return scontrol([*words[1:], verb])
    if (verb, operands[0]) == ("show", "config"):
        return show_config()
    if verb == "show" and operands[0] in {"job", "jobs"}:
        return show_job(operands[1:])
    if verb == "show" and operands[0] in {"node", "nodes"}:
        return _show_nodes(operands[1])
    if verb == "show" and operands[0] in {"partition", "partitions"}:
        return _show_partitions(operands[1])
    raise UsageError(
        f"unknown request: {' '.join(words)}",
        hint="valid: requeue, hold, release JOB; show hostnames LIST, job JOB, node or partition",
    )


def _show_nodes(name: str) -> int:
    rows = [row for row in Head().nodes().nodes if not name or row.name == name]
    if not rows:
        raise UsageError(f"Node {name} not found")
    for row in rows:
        load = f"{row.load.load1:.2f}" if row.load is not None else "N/A"
        print(f"NodeName={row.name} Arch=x86_64 CPUAlloc={row.cpus - row.cpus_free}")
        print(f"   CPUTot={row.cpus} CPULoad={load} AvailableFeatures={','.join(row.features)}")
        print(f"   Gres={'gpu:' + str(row.gpus) if row.gpus else '(null)'} NodeAddr={row.address}")
        print(f"   RealMemory={row.memory_bytes >> 20} FreeMem={row.memory_free_bytes >> 20}")
        print(f"   State={_state_of(row).upper()} Reason={row.reason or '(null)'}\n")
    return 0


def _show_partitions(name: str) -> int:
    head = Head()
    nodes = head.nodes().nodes
    rows = [row for row in head.status().queue_rows if not name or row.name == name]
    if not rows:
        raise UsageError(f"Partition {name} not found")
    for index, row in enumerate(rows):
        limit = w.slurm_duration(int(row.max_walltime_s)) if row.max_walltime_s else "UNLIMITED"
        state = "UP" if row.enabled and row.started else "DRAIN" if row.started else "INACTIVE"
        print(f"PartitionName={row.name}\n   Default={'YES' if not (index or name) else 'NO'}")
        print(f"   MaxTime={limit} Nodes={','.join(node.name for node in nodes)}")
        print(f"   State={state} TotalCPUs={sum(node.cpus for node in nodes)}")
        print(f"   TotalNodes={len(nodes)} PriorityTier={row.priority}\n")
    return 0


def _report(head: Head, request: _Action) -> int:
    status = 0
    for result in head.act(request).results:
        if result.error is not None and "has already finished" not in result.error.message:
            print_error(error_from(result.error), command=_command[0], operand=result.id)
            status = 1
    return status


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
    "sstat": sstat,
}
_command = [""]


def run_slurm(name: str, arguments: Sequence[str]) -> int:
    """Run a command of Slurm; return its exit code."""
    speak(SlurmDialect())
    _command[0] = name
    if "--version" in arguments or "-V" in arguments:
        print("slurm 23.11 (gsched)")
        return 0
    try:
        return COMMANDS[name](arguments)
    except GschedError as error:
        print_error(error, command=name)
        return 1


def main(name: str) -> NoReturn:
    """Run a command of Slurm with this process's arguments."""
    status = run_slurm(name, sys.argv[1:])
    sys.stdout.flush()
    sys.exit(status)
