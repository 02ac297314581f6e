"""squeue, sacct, sinfo, scancel and scontrol, as programs use them; and where all of them start."""

import os
import pwd
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from gsched.cli.common import print_error
from gsched.cli.dialect import Dialect, speak
from gsched.cli.slurm import words as w
from gsched.cli.slurm.sbatch import sbatch
from gsched.cli.slurm.srun import srun
from gsched.cli.slurm.sstat import sstat
from gsched.client import Head, error_from
from gsched.config import environment
from gsched.errors import GschedError, UnknownJobError, UsageError
from gsched.model.states import JobState, NodeState
from gsched.protocol.actions import DeleteJob, HoldJob, ReleaseJob, RerunJob, SignalJob
from gsched.protocol.api import JobList, JobRow

_Action = DeleteJob | SignalJob | RerunJob | HoldJob | ReleaseJob
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
    valued = {
        **dict.fromkeys(("-j", "--job", "--jobs"), "jobs"),
        **dict.fromkeys(("-u", "--user", "--users"), "users"),
        **dict.fromkeys(("-o", "--format"), "format"),
        **dict.fromkeys(("-t", "--states"), "states"),
        **dict.fromkeys(("-n", "--name"), "name"),
        **dict.fromkeys(("-p", "--partition"), "partition"),
    }
    options, operands = w.parse(words, flags=flags, valued=valued)
    if operands:
        raise UsageError(f"unexpected operand {operands[0]!r}")
    head = Head()
    named = w.job_ids([options["jobs"]]) if "jobs" in options else []
    reply = head.jobs(named)
    if named and len(named) == len(reply.errors):
        raise UnknownJobError("Invalid job id specified")
    rows = [row for row in reply.jobs if row.state != JobState.DONE]
    rows = [row for row in rows if _is_wanted(row, options)]
    form = options.get("format") or environment("SQUEUE_FORMAT") or _DEFAULT_FORM
    shown = JobList(server=reply.server, now_s=reply.now_s, jobs=tuple(rows))
    sys.stdout.write("".join(w.squeue_lines(shown, form, header="noheader" not in options)))
    return 0


def _is_wanted(row: JobRow, options: Mapping[str, str]) -> bool:
    users = set(options.get("users", "").split(",")) - {""}
    if "me" in options:
        users.add(_own_name())
    states = {each.upper() for each in options.get("states", "").split(",")} - {"", "ALL"}
    names = set(options.get("name", "").split(",")) - {""}
    queues = set(options.get("partition", "").split(",")) - {""}
    return (
        (not users or row.user in users)
        and (not states or bool(states & set(w.state_of(row))))
        and (not names or row.name in names)
        and (not queues or row.queue in queues)
    )


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
        found.append((*field, int(width.strip("-")) if width.strip("-").isdecimal() else 10))
    return found


def sinfo(words: Sequence[str]) -> int:
    """List partitions with their nodes."""
    flags = dict.fromkeys(("-h", "--noheader"), "noheader") | dict.fromkeys(("-s",), "summary")
    options, _ = w.parse(words, flags=flags, valued=dict.fromkeys(("-o", "--format"), "format"))
    form = options.get("format", "%P %a %l %D %t %N")
    titles = {"P": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES", "t": "STATE",
              "N": "NODELIST"}  # fmt: skip
    head = Head()
    status, nodes = head.status(), head.nodes().nodes
    lines = [] if "noheader" in options else [titles]
    for index, queue in enumerate(status.queue_rows):
        states: dict[str, list[str]] = {}
        for node in nodes:
            states.setdefault(_node_state(node.state, node.drained, node.jobs), []).append(
                node.name
            )
        limit = w.slurm_duration(int(queue.max_walltime_s)) if queue.max_walltime_s else "infinite"
        for state, names in states.items():
            lines.append(
                {"P": queue.name + "*" * (index == 0), "a": "up" if queue.started else "inact",
                 "l": limit, "D": str(len(names)), "t": state, "N": ",".join(names)}
            )  # fmt: skip
    for line in lines:
        text = form
        for letter, value in line.items():
            text = text.replace(f"%{letter}", value)
        print(text)
    return 0


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
    return _report(head, request)


def scontrol(words: Sequence[str]) -> int:
    """Carry out requeue, hold, release, and show hostnames or a job."""
    verb, *operands = [*words, "", ""]
    ids = tuple(w.job_ids([each for each in operands if each]))
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
    if (verb, operands[0]) == ("show", "job") and operands[1]:
        head = Head()
        story = head.job(*w.job_ids(operands[1:2]))
        row = story.row
        listing = JobList(server=story.server, now_s=story.now_s, jobs=(row,))
        print(f"JobId={row.id} JobName={row.name}")
        print(f"   UserId={row.user} Account={row.account or '(null)'} Priority={row.priority}")
        print(f"   JobState={w.state_of(row)[0]} Reason={w.reason_of(row).strip('()')}")
        print(f"   RunTime={w.elapsed_of(row, listing.now_s)} TimeLimit={w.limit_of(row)}")
        print(f"   Partition={row.queue} NodeList={','.join(row.nodes) or '(null)'}")
        print(f"   NumNodes={len(row.nodes) or row.places} NumCPUs={row.cpus}")
        print(f"   WorkDir={story.workdir}\n   StdErr={story.stderr_path}")
        print(f"   StdOut={story.stdout_path}\n")
        return 0
    raise UsageError(
        f"unknown request: {' '.join(words)}",
        hint="valid: requeue, hold, release JOB; show hostnames LIST; show job JOB",
    )


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
