"""scontrol: shows jobs, nodes, partitions and the configuration, and changes jobs and nodes."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gsched.cli.common import patient_head, printable
from gsched.cli.slurm import reservations
from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import INVALID_JOB, VERSION, SlurmError, error_words
from gsched.cli.slurm.fields import ends_s, group_id, group_name, user_id
from gsched.cli.slurm.sinfo import state_of, whole_state
from gsched.cli.submit.foreign import NO_LIMIT, TIME, Words, meaning_of, slurm_time
from gsched.cli.times import parse_start_time
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.config.environment import environment
from gsched.errors import HeadUnreachableError, UnknownJobError, UsageError
from gsched.model.host_lists import compact, expanded, in_order
from gsched.model.ids import array_of
from gsched.model.units import parse_duration_s
from gsched.protocol.actions import (
    Alteration,
    AlterJob,
    DrainNode,
    HoldJob,
    ReleaseJob,
    RerunJob,
    ResumeNode,
)
from gsched.protocol.job_rows import JobRow, JobStory
from gsched.protocol.node_rows import NodeRow

_OnJobs = HoldJob | ReleaseJob | RerunJob | AlterJob
_OPTIONS: Final = frozenset({"-a", "--all", "-d", "-dd", "--details", "-Q", "--quiet", "--hide"})
_ONE_LINE: Final = frozenset({"-o", "--oneliner"})
_PARTITION_FLAGS: Final = "RootOnly=NO ReqResv=NO OverSubscribe=NO"
_ENTITIES: Final = (
    *("config", "hostlist", "hostnames", "hostlistsorted", "jobs", "nodes", "partitions"),
    *("steps", "reservations", "licenses", "topology", "users", "daemons", "assoc_mgr", "bbstat"),
)


def scontrol(words: Sequence[str]) -> int:
    """Carry out one request.

    Raises:
        SlurmError: the request is none, or is refused.
    """
    one_line = any(word in _ONE_LINE for word in words)
    rest = [word for word in words if word not in _ONE_LINE and word not in _OPTIONS]
    if rest and rest[0].startswith("-"):
        raise SlurmError(f"unrecognized option '{rest[0]}'", status=1)
    verb, *operands = rest or [""]
    verb = verb.lower()
    if verb == "version":
        print(VERSION)
        return 0
    if verb == "ping":
        return _ping()
    if verb in {"hold", "uhold", "release", "requeue", "requeuehold"}:
        return _act(verb, operands)
    if verb == "update":
        return update(operands)
    if verb in {"create", "delete"}:
        return reservations.change_words(verb, operands, _start)
    if verb == "show":
        return _show(operands, one_line=one_line)
    raise SlurmError(f"invalid keyword: {verb}", plain=True)


# --- the controller ---


def _ping() -> int:
    """Print whether the head answers."""
    try:
        patient_head(command="scontrol").status()
    except HeadUnreachableError:
        print(f"Slurmctld(primary) at {os.uname().nodename} is DOWN")
        return 1
    print(f"Slurmctld(primary) at {os.uname().nodename} is UP")
    return 0


def _show_config() -> int:
    """Print what is Slurm's configuration here, in Slurm's names."""
    status = patient_head(command="scontrol").status()
    nodes = patient_head(command="scontrol").nodes().nodes
    gpus = any(node.gpus for node in nodes)
    values = {
        "AccountingStorageEnforce": "none",
        "AccountingStorageType": "(null)",
        "AuthType": "(null)",
        "ClusterName": status.server,
        "EnforcePartLimits": "ALL",
        "GresTypes": "gpu" if gpus else "(null)",
        "JobRequeue": "1",
        "KillWait": "30 sec",
        "MinJobAge": "300 sec",
        "MpiDefault": "none",
        "PreemptMode": "OFF",
        "PriorityType": "priority/basic",
        "SchedulerType": "sched/backfill",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_MEMORY",
        "SLURM_VERSION": VERSION.split()[1],
        "SlurmctldHost[0]": os.uname().nodename,
        "TmpFS": "/tmp",  # noqa: S108 - Slurm's own default
    }
    print(f"Configuration data as of {w.slurm_time(SystemClock().wall_s())}")
    for name, value in values.items():
        print(f"{name:<23} = {value}")
    print(f"\nSlurmctld(primary) at {os.uname().nodename} is UP")
    return 0


# --- show ---


def _show(operands: Sequence[str], *, one_line: bool) -> int:
    word, *names = operands or [""]
    found = [each for each in _ENTITIES if word and each.startswith(word.lower())]
    if word.lower() in {"job", "jobid", "jobs"}:
        return _show_job(names, one_line=one_line)
    entity = found[0] if found else ""
    name = names[0] if names else ""
    if entity in {"hostlist", "hostnames", "hostlistsorted"}:
        return _show_hosts(entity, names)
    if entity == "config":
        return _show_config()
    if entity in {"jobs", "nodes", "partitions"}:
        shows: dict[str, Callable[..., int]] = {
            "jobs": lambda: _show_job(names, one_line=one_line),
            "nodes": lambda: _show_nodes(name, one_line=one_line),
            "partitions": lambda: _show_partitions(name, one_line=one_line),
        }
        return shows[entity]()
    if entity == "reservations":
        return reservations.show(names, lambda lines: _print_record(lines, one_line=one_line))
    if entity == "licenses":
        print("No licenses in the system")
        return 0
    raise SlurmError(f"invalid entity:{word} for keyword:show ", plain=True)


def _show_hosts(entity: str, names: Sequence[str]) -> int:
    """Print a list of nodes, one on a line or in its short form.

    Raises:
        SlurmError: there is no list, or it cannot be read.
    """
    if len(names) > 1:
        raise SlurmError("too many arguments for keyword:show", plain=True)
    if entity == "hostnames":
        text = names[0] if names else environment("SLURM_JOB_NODELIST")
        if not text:
            print("scontrol: error: host list is empty", file=sys.stderr)
            return 0
        print("\n".join(_hosts(text)))
        return 0
    if not names:
        raise SlurmError("invalid encode argument", plain=True)
    found: Sequence[str] = _hosts(_listed(names[0]))
    print(compact(in_order(found) if entity == "hostlistsorted" else found))
    return 0


def _listed(text: str) -> str:
    """Return a list, or what the file of that absolute path lists."""
    if not text.startswith("/"):
        return text
    try:
        with open(text, encoding="utf-8") as file:
            return ",".join(file.read().split())
    except (OSError, UnicodeDecodeError):
        raise SlurmError(f"Can not open {text}", plain=True) from None


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return expanded(text, option="hostnames")
    except UsageError:
        raise SlurmError(f"Invalid hostlist: {text}", plain=True) from None


def _print_record(lines: Sequence[str], *, one_line: bool) -> None:
    """Print a record of ``NAME=VALUE``: indented lines and a blank one, or a single line."""
    shown = [printable(line) for line in lines]
    print(" ".join(shown) if one_line else "\n   ".join(shown) + "\n")


def _show_nodes(name: str, *, one_line: bool) -> int:
    head = patient_head(command="scontrol")
    wanted = expanded(name, option="nodes") if name else ()
    rows = {row.name: row for row in head.nodes().nodes}
    for each in wanted:
        if each not in rows:
            raise SlurmError(f"Node {each} not found", plain=True)
    queues = ",".join(row.name for row in head.status().queue_rows)
    for row in rows.values():
        if not wanted or row.name in wanted:
            _print_record(_node_lines(row, queues), one_line=one_line)
    return 0


def _node_lines(row: NodeRow, queues: str) -> list[str]:
    load = f"{row.load.load1:.2f}" if row.load is not None else "N/A"
    used = row.cpus - row.cpus_free
    features = ",".join(row.features) or "(null)"
    memory, free = row.memory_bytes >> 20, row.memory_free_bytes >> 20
    gpus_used = row.gpus - row.gpus_free
    return [
        f"NodeName={row.name} Arch={os.uname().machine} CoresPerSocket={row.cpus} ",
        f"CPUAlloc={used} CPUEfctv={row.cpus} CPUTot={row.cpus} CPULoad={load}",
        f"AvailableFeatures={features}",
        f"ActiveFeatures={features}",
        f"Gres={'gpu:' + str(row.gpus) if row.gpus else '(null)'}",
        f"NodeAddr={row.address} NodeHostName={row.name} Version={row.version}",
        f"RealMemory={memory} AllocMem={memory - free} FreeMem={free} Sockets=1 Boards=1",
        f"State={whole_state(row)} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"Partitions={queues} ",
        f"CfgTRES={_tres(row.cpus, memory, row.gpus)}",
        f"AllocTRES={_tres(used, memory - free, gpus_used) if row.jobs else ''}",
        *([f"Reason={row.reason}{_by(row)}"] if row.reason else []),
    ]


def _by(row: NodeRow) -> str:
    """Return who gave the reason of a node and when: `` [root@2026-11-23T14:20:00]``."""
    return f" [{row.reason_by or 'root'}@{w.slurm_time(row.reason_s)}]" if row.reason_s else ""


def _tres(cpus: int, memory_mib: int, gpus: int) -> str:
    found = f"cpu={cpus},mem={memory_mib}M,billing={cpus}"
    return found + (f",gres/gpu={gpus}" if gpus else "")


def _show_partitions(name: str, *, one_line: bool) -> int:
    head = patient_head(command="scontrol")
    nodes = head.nodes().nodes
    rows = head.status().queue_rows
    if name and name not in {row.name for row in rows}:
        raise SlurmError(f"Partition {name} not found", plain=True)
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    memory = sum(node.memory_bytes for node in nodes) >> 20
    for index, row in enumerate(rows):
        if name and row.name != name:
            continue
        limit = _limit(row.max_walltime_s, "UNLIMITED")
        default = _limit(row.default_walltime_s, "NONE")
        state = "UP" if row.enabled and row.started else "DRAIN" if row.started else "INACTIVE"
        lines = [
            f"PartitionName={row.name}",
            "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
            f"AllocNodes=ALL Default={'NO' if index else 'YES'} QoS=N/A",
            f"DefaultTime={default} DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
            f"MaxNodes=UNLIMITED MaxTime={limit} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
            f"Nodes={compact(in_order(node.name for node in nodes))}",
            f"PriorityJobFactor=1 PriorityTier={row.priority} {_PARTITION_FLAGS}",
            "OverTimeLimit=NONE PreemptMode=OFF",
            f"State={state} TotalCPUs={cpus} TotalNodes={len(nodes)} SelectTypeParameters=NONE",
            "JobDefaults=(null)",
            "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
            f"TRES=cpu={cpus},mem={memory}M,node={len(nodes)},billing={cpus}"
            + (f",gres/gpu={gpus}" if gpus else ""),
        ]
        _print_record(lines, one_line=one_line)
    return 0


def _limit(seconds: float, none: str) -> str:
    return w.slurm_days(seconds) if seconds else none


# --- jobs ---


def _act(verb: str, operands: Sequence[str]) -> int:
    ids = tuple(w.job_ids(operands))
    if not ids:
        raise SlurmError(f"too few arguments for keyword:{verb}", plain=True)
    actions: dict[str, list[_OnJobs]] = {
        "requeue": [RerunJob(ids=ids)],
        "requeuehold": [HoldJob(ids=ids), RerunJob(ids=ids)],
        "release": [ReleaseJob(ids=ids)],
    }
    behind = "" if verb.startswith("requeue") else "slurm_suspend error: "
    return _carry_out(actions.get(verb, [HoldJob(ids=ids)]), behind=behind)


def _carry_out(requests: Sequence[_OnJobs], *, behind: str = "") -> int:
    """Carry out actions; tell of each job that refuses one, in Slurm's words."""
    head = patient_head(command="scontrol")
    status = 0
    for request in requests:
        for result in head.act(request).results:
            if result.error is None:
                continue
            words = error_words(result.error)
            print(f"{words} for job {w.slurm_name(result.id)}", file=sys.stderr)
            if behind:
                print(f"{behind}{words}", file=sys.stderr)
            status = 1
    return status


# --- update ---

Assignments = Mapping[str, tuple[str, str]]  # by name in lower case: as it was written


def update(words: Sequence[str]) -> int:
    """Change a job or nodes: ``jobid=12 timelimit=30``, ``nodename=n1 state=drain reason=disk``.

    Raises:
        SlurmError: it is refused.
    """
    if not words:
        raise SlurmError("too few arguments for update keyword", plain=True)
    rest = list(words)
    if len(rest) > 1 and "=" not in rest[0]:  # update job 12 timelimit=30
        rest = [f"{rest[0]}={rest[1]}", *rest[2:]]
    stated = reservations.assignments(rest)
    if set(reservations.NAMES) & set(stated) and not {"jobid", "job"} & set(stated):
        return reservations.change("update", stated, _start)
    for name in ("jobid", "job"):
        if name in stated:
            _, ids = stated.pop(name)
            return _update_job(ids, stated)
    for name in ("nodename", "node"):
        if name in stated:
            _, names = stated.pop(name)
            return _update_nodes(names, stated)
    if {"partitionname", "partition"} & set(stated):
        raise SlurmError(
            "Partitions are the queues of gsched.toml; qmgr and gsched queues start and stop them",
            plain=True,
        )
    raise SlurmError(
        "No valid entity in update command\n"
        'Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or '
        '"SlurmctldDebug"',
        plain=True,
    )


def _refused(word: str) -> SlurmError:
    return SlurmError(
        f"Update of this parameter is not supported: {word}\nRequest aborted", plain=True
    )


def _update_job(ids: str, stated: Assignments) -> int:
    """Change jobs.

    Raises:
        SlurmError: a parameter cannot be changed, or its value cannot be read.
    """
    numbers = tuple(w.job_ids([ids]))
    if not all(w.is_job_id(each) for each in numbers) or not numbers:
        raise SlurmError(f"Invalid JobId value: {ids}" if ids else INVALID_JOB)
    changes: dict[str, object] = {}
    for name, (word, value) in stated.items():
        if name == "timelimit":
            changes["resources"] = (f"walltime={_new_limit(numbers, value)}",)
        elif name in _READERS:
            field, read = _READERS[name]
            changes[field] = read(value)
        else:
            raise _refused(word)
    if not changes:
        raise SlurmError("No changes specified", plain=True)
    return _carry_out([AlterJob(ids=numbers, alteration=Alteration(**changes))])  # type: ignore[arg-type]  # by the readers


def _new_limit(numbers: Sequence[str], value: str) -> str:
    """Return a time limit for ``walltime=``; ``+10`` and ``-10`` change that of one job."""
    sign = value[:1] if value[:1] in {"+", "-"} and value != "-1" else ""
    text = value.removeprefix(sign)
    if TIME.fullmatch(text) is None or text.lower() in NO_LIMIT:
        raise SlurmError("Invalid TimeLimit value")
    meaning = slurm_time(text).pbs.rpartition("=")[2]
    if not sign:
        return meaning
    rows = patient_head(command="scontrol").jobs([numbers[0]]).jobs
    if not rows or rows[0].walltime_s is None:
        raise SlurmError(f"{INVALID_JOB} for job {numbers[0]}", plain=True)
    seconds = parse_duration_s(meaning) * (1 if sign == "+" else -1)
    if rows[0].walltime_s + seconds <= 0:
        raise SlurmError("Invalid TimeLimit value")
    return str(int(rows[0].walltime_s + seconds))


def _start(value: str) -> float:
    meaning = meaning_of("#SBATCH", "--begin", value)
    now_s = SystemClock().wall_s()
    if not isinstance(meaning, Words):
        raise SlurmError("Invalid StartTime value")
    return (
        parse_start_time(meaning.gsub.removeprefix("-a "), now_s=now_s) if meaning.gsub else now_s
    )


def _flag(value: str) -> bool:
    if value not in {"0", "1"}:
        raise SlurmError("Invalid Requeue value")
    return value == "1"


def _number(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,6}", value):
        raise SlurmError(f"Invalid numeric value: {value}")
    return int(value)


def _dependency(value: str) -> tuple[str, ...]:
    if not value:
        return ()
    meaning = meaning_of("#SBATCH", "--dependency", value)
    return (meaning.pbs.removeprefix("-W depend="),) if isinstance(meaning, Words) else ()


_READERS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "partition": ("queue", str),
    **dict.fromkeys(("jobname", "name"), ("name", str)),
    "account": ("account", str),
    "comment": ("comment", str),
    "priority": ("priority", _number),
    "nice": ("priority", lambda value: -_number(value or "100")),
    **dict.fromkeys(("starttime", "eligibletime"), ("start_after_s", _start)),
    "requeue": ("rerunnable", _flag),
    "dependency": ("depends", _dependency),
    "stdout": ("stdout_path", str),
    "stderr": ("stderr_path", str),
    **dict.fromkeys(("reservationname", "reservation"), ("reservation", str)),
}
_DRAINED: Final = frozenset({"drain", "down", "fail", "failing"})
_RESUMED: Final = frozenset({"resume", "idle", "undrain"})


def _update_nodes(names: str, stated: Assignments) -> int:
    """Drain nodes, or resume them.

    Raises:
        SlurmError: another change, no reason, or the head refuses it.
    """
    nodes = expanded(names, option="nodename")
    for name, (word, _) in stated.items():
        if name not in {"state", "reason"}:
            raise _refused(word)
    state = stated.get("state", ("", ""))[1].lower()
    reason = stated.get("reason", ("", ""))[1]
    request: DrainNode | ResumeNode
    if state in _DRAINED:
        if not reason:
            raise SlurmError(
                "You must specify a reason when DOWNING or DRAINING a node. Request denied",
                plain=True,
            )
        request = DrainNode(nodes=nodes, reason=reason)
    elif state in _RESUMED:
        request = ResumeNode(nodes=nodes)
    elif not state and reason:
        drained = {
            node.name
            for node in patient_head(command="scontrol").nodes().nodes
            if "dr" in state_of(node)
        }
        if set(nodes) - drained:
            raise SlurmError("a reason is kept with state=drain only", plain=True)
        request = DrainNode(nodes=nodes, reason=reason)
    else:
        raise SlurmError(
            f"Invalid input: state={state}\nRequest aborted\nValid states are: DRAIN DOWN RESUME",
            plain=True,
        )
    status = 0
    for result in patient_head(command="scontrol").node_action(request).results:
        if result.error is not None:
            print(f"slurm_update error: {error_words(result.error)}", file=sys.stderr)
            status = 1
    return status


def _show_job(operands: Sequence[str], *, one_line: bool) -> int:
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
            lines = _job_lines(head.job(number))
        except UnknownJobError:
            raise SlurmError(f"slurm_load_jobs error: {INVALID_JOB}", plain=True) from None
        _print_record(lines, one_line=one_line)
    return 0


def _job_lines(story: JobStory) -> list[str]:
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
    account = row.account or "(null)"
    depends, restarts = story.depends or "(null)", max(0, row.attempt - 1)
    return [
        f"JobId={_job_number(row)} JobName={row.name}",
        f"UserId={user} GroupId={group} MCS_label=N/A",
        f"Priority={row.priority} Nice=0 Account={account} QOS={w.qos_of(row)}",
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
        f"TRES={_job_tres(row, nodes)}",
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


def _job_number(row: JobRow) -> str:
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


def _job_tres(row: JobRow, nodes: int) -> str:
    parts = [f"cpu={row.cpus}"]
    parts += [f"mem={row.memory_bytes >> 20}M"] if row.memory_bytes else []
    parts += [f"node={nodes}", f"billing={row.cpus}"]
    parts += [f"gres/gpu={row.gpus}"] if row.gpus else []
    return ",".join(parts)


def _with_number(name: str, number: int | None) -> str:
    """Return ``alice(1000)``; without the number where the name is unknown here."""
    return name if number is None else f"{name}({number})"
