"""``srun`` inside a job: starts a job step on its nodes, with Slurm's variables and files."""

import fcntl
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from gsched import step_process
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.steps.job import JobNodes, job_nodes
from gsched.cli.steps.tasks import TaskRequest, Tasks, write_through
from gsched.cli.submit.readers import find_program
from gsched.cli.submit.slurm_options import OPTIONS, parse
from gsched.config.environment import environment, full_environment
from gsched.errors import UsageError
from gsched.model.counts import repeated
from gsched.model.host_lists import compact, expanded

#: What an option is called below; the others of Slurm change nothing in a step.
_NAMES: Final = {
    "--label": "label",
    "--ntasks": "tasks",
    "--nodes": "nodes",
    "--nodelist": "nodelist",
    "--exclude": "exclude",
    "--ntasks-per-node": "per_node",
    "--tasks-per-node": "per_node",
    "--input": "input",
    "--output": "output",
    "--error": "error",
    "--chdir": "chdir",
    "--cpus-per-task": "cpus",
    "--open-mode": "open_mode",
    "--kill-on-bad-exit": "kill",
    "--mpi": "mpi",
}
_NEXT_PART: Final = ":"
_NO_PMI: Final = """\
--mpi={}: steps have no PMI: each task of an MPI program would be a program of one rank
start it with mpirun or mpiexec in the job: they use all of its nodes"""
_MPI_LIBRARIES: Final = (b"libmpi.so", b"libmpich.so", b"libmpi_cxx.so", b"libmpifort.so")
_LOOKED_AT_BYTES: Final = 32 * 1024 * 1024
#: gsched sends signals to all processes of a job, tasks included: srun only waits for them.
_LEFT_TO_TASKS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
_STEP_FILE: Final = "srun-steps"


def srun(arguments: Sequence[str]) -> int:
    """Start a command as many times as the step has tasks; return the highest exit code.

    Raises:
        GschedError: it does not run in a job, or a task cannot be started.
    """
    if "--pty" in arguments and not environment("SLURM_JOB_ID"):
        from gsched.cli.slurm.interactive import srun_pty  # late: most run in a job

        return srun_pty(arguments)
    read = parse(arguments, OPTIONS["srun"])
    options = {_NAMES[name]: value for name, value in read.options if name in _NAMES}
    stated = {name for name, _ in read.options}
    kind = options.get("mpi", environment("SLURM_MPI_TYPE"))
    if kind == "list":
        print("MPI plugin types are...\n\tnone")
        return 0
    command = read.operands
    if not command:
        raise SlurmError("srun: fatal: No command given to execute.", plain=True)
    if "--multi-prog" in stated or _NEXT_PART in arguments[: len(arguments) - len(command)]:
        raise SlurmError("--multi-prog and heterogeneous steps are not supported")
    if "--async" in stated:
        raise SlurmError("--async is not supported by gsched: write srun ... & and wait")
    variables = full_environment()
    if "SLURM_JOB_ID" not in variables:
        raise UsageError(
            "srun runs inside a job only", hint="submit the command: gsub --watch -- COMMAND"
        )
    job = _job(variables)
    counts = layout(job, options)
    tasks = sum(counts.values())
    if kind not in {"", "none", "openmpi"}:
        raise SlurmError(_NO_PMI.format(kind))
    if tasks > 1 and not kind and is_mpi_program(command[0], variables.get("PATH", "")):
        for line in _NO_PMI.format("none").split("\n"):
            print(f"srun: warning: {command[0]} uses MPI; {line}", file=sys.stderr)
    step = _Step(job, counts, command, options, variables, number=_step_number(variables))
    return step.run(kills="kill" in options and options["kill"] != "0")


def is_mpi_program(name: str, path: str) -> bool:
    """Return whether a program is linked with a library of MPI."""
    found = name if "/" in name else find_program(name, path)
    try:
        with open(found, "rb") as file:
            if file.read(4) != b"\x7fELF":
                return False
            data = file.read(_LOOKED_AT_BYTES)
    except OSError:
        return False
    return any(library in data for library in _MPI_LIBRARIES)


def _job(variables: Mapping[str, str]) -> JobNodes:
    """Return the nodes of the job; one without a node file of ours has this node only."""
    if variables.get("PBS_NODEFILE"):
        return job_nodes(variables, command="srun")
    here = variables.get("SLURMD_NODENAME") or os.uname().nodename
    return JobNodes(here=here, hosts=(here,), slots=(here,))


def _count(text: str, option: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not int(text):
        raise UsageError(f"{option}: invalid number {text!r}")
    return int(text)


def layout(job: JobNodes, options: Mapping[str, str]) -> dict[str, int]:
    """Return how many tasks of a step run on each node, in the order of their ranks.

    As with Slurm's block distribution, each node gets one task and then as many as its CPUs allow;
    ranks are consecutive on a node.

    Raises:
        UsageError: there are no such nodes, or too few.
    """
    hosts = _step_hosts(job, options)
    per_node = options.get("per_node")
    if per_node is None and "tasks" not in options:
        per_node = environment("SLURM_NTASKS_PER_NODE").partition("(")[0] or None
    stated = options.get("tasks")
    if per_node is not None:
        each = _count(per_node, "--ntasks-per-node")
        total = _count(stated, "--ntasks") if stated else each * len(hosts)
        if total > each * len(hosts):
            raise UsageError(
                f"--ntasks={total}: {len(hosts)} nodes with {each} tasks each are fewer"
            )
        return _filled(hosts, total, dict.fromkeys(hosts, each))
    default = environment("SLURM_NTASKS", "1") if "nodes" not in options else str(len(hosts))
    total = _count(stated or default, "--ntasks")
    cpus = _count(options.get("cpus") or environment("SLURM_CPUS_PER_TASK", "1"), "--cpus-per-task")
    room = {host: max(1, job.slots.count(host) // cpus) for host in hosts}
    return _filled(hosts, total, room)


def _step_hosts(job: JobNodes, options: Mapping[str, str]) -> list[str]:
    hosts = list(job.hosts)
    if "nodelist" in options:
        hosts = [job.find(name) for name in expanded(options["nodelist"], option="--nodelist")]
        hosts = list(dict.fromkeys(hosts))
    if "exclude" in options:
        left_out = {job.find(name) for name in expanded(options["exclude"], option="--exclude")}
        hosts = [host for host in hosts if host not in left_out]
    if "nodes" in options:
        wanted = _count(options["nodes"].partition("-")[0], "--nodes")
        if wanted > len(hosts):
            raise UsageError(
                f"--nodes={wanted}: the step can have {len(hosts)} nodes",
                hint=f"nodes of the job: {', '.join(job.hosts)}",
            )
        hosts = hosts[:wanted]
    if not hosts:
        raise UsageError("no node is left for the step")
    return hosts


def _filled(hosts: Sequence[str], total: int, room: Mapping[str, int]) -> dict[str, int]:
    """Spread tasks over nodes: one after another while there is room, then beyond it."""
    counts = dict.fromkeys(hosts[: min(total, len(hosts))], 1)
    left = total - len(counts)
    while left:
        free = [host for host in counts if counts[host] < room[host]] or list(counts)
        for host in free[:left]:
            counts[host] += 1
        left -= len(free[:left])
    return counts


def _step_number(variables: Mapping[str, str]) -> int:
    """Return the number of this step among those of the job on this node."""
    directory = variables.get("GSCHED_JOB_DIR", "")
    if not directory:
        return 0
    try:
        fd = os.open(os.path.join(directory, _STEP_FILE), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        number = int(os.read(fd, 20) or b"0")
        os.pwrite(fd, str(number + 1).encode(), 0)
    except (OSError, ValueError):
        return 0
    else:
        return number
    finally:
        os.close(fd)


class _Step:
    """One call of srun."""

    def __init__(
        self,
        job: JobNodes,
        counts: Mapping[str, int],
        command: Sequence[str],
        options: Mapping[str, str],
        variables: Mapping[str, str],
        *,
        number: int,
    ) -> None:
        self._job = job
        self._command = tuple(command)
        self._options = options
        self._variables = variables
        self._number = number
        self._places = [
            (node, rank, local) for rank, node in enumerate(counts) for local in range(counts[node])
        ]
        self._counts = counts
        self._begun: dict[tuple[int, bytes], bool] = {}

    def run(self, *, kills: bool) -> int:
        label = "label" in self._options
        tasks = Tasks(
            self._job,
            on_output=self._label if label else write_through,
            on_end=self._on_end if kills else None,
            relay=label,
        )
        self._tasks = tasks
        step_process.leave_signals(_LEFT_TO_TASKS)
        tasks.open(self._counts)
        try:
            for task in range(len(self._places)):
                tasks.start(self._wanted(task))
            tasks.wait()
            return max(tasks.codes.values())
        finally:
            tasks.close()

    def _on_end(self, _task: int, code: int) -> None:
        if code:
            self._tasks.signal(signal.SIGTERM)

    def _label(self, task: int, kind: bytes, data: bytes) -> None:
        """Write what a task says with its number before each line."""
        prefix = f"{task:>{len(str(len(self._places) - 1))}}: ".encode()
        begun = self._begun.get((task, kind), False)
        lines = data.splitlines(keepends=True)
        text = b"".join((b"" if begun and not i else prefix) + line for i, line in enumerate(lines))
        self._begun[task, kind] = not data.endswith(b"\n")
        write_through(task, kind, text)

    def _wanted(self, task: int) -> TaskRequest:
        node, rank, local = self._places[task]
        own = {**self._variables, **self._own_variables(task, rank, local)}
        stated = self._options.get("input", "")
        return TaskRequest(
            number=task,
            node=node,
            argv=self._command,
            env=own,
            cwd=self._options.get("chdir", ""),
            has_input=task == (int(stated) if stated.isdecimal() else 0) and stated != "none",
            stdout_path=self._path("output", task, rank, node),
            stderr_path=self._path("error", task, rank, node),
            append=self._options.get("open_mode", "truncate").startswith("a"),
        )

    def _own_variables(self, task: int, rank: int, local: int) -> dict[str, str]:
        total, nodes = str(len(self._places)), list(self._counts)
        first = sum(self._counts[each] for each in nodes[:rank])
        per_node = repeated(self._counts.values())
        cpus = self._options.get("cpus", "")
        return {
            **({"SLURM_CPUS_PER_TASK": cpus} if cpus else {}),
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(rank),
            "SLURM_GTIDS": ",".join(str(first + i) for i in range(self._counts[nodes[rank]])),
            "SLURM_NTASKS": total,
            "SLURM_NPROCS": total,
            "SLURM_NNODES": str(len(nodes)),
            "SLURM_TASKS_PER_NODE": per_node,
            "SLURM_STEP_NUM_TASKS": total,
            "SLURM_STEP_NUM_NODES": str(len(nodes)),
            "SLURM_STEP_NODELIST": compact(nodes),
            "SLURM_STEP_TASKS_PER_NODE": per_node,
            "SLURM_STEP_ID": str(self._number),
            "SLURM_STEPID": str(self._number),
        }

    def _path(self, option: str, task: int, rank: int, node: str) -> str:
        pattern = self._options.get(option, "")
        if not pattern:
            return ""
        variables = self._variables
        names = {
            "t": str(task),
            "n": str(rank),
            "N": node,
            "s": str(self._number),
            "u": variables.get("USER", ""),
            "x": variables.get("SLURM_JOB_NAME", "").replace("/", "_"),
            "a": variables.get("SLURM_ARRAY_TASK_ID", "0"),
            "A": variables.get("SLURM_ARRAY_JOB_ID", variables["SLURM_JOB_ID"]),
            **dict.fromkeys(("j", "J"), variables["SLURM_JOB_ID"]),
            "%": "%",
        }
        return re.sub(r"%([tnNsuxaAjJ%])", lambda match: names[match[1]], pattern)
