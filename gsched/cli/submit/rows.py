"""The options of gsub, a row for each: names, help, value, completion, galter, other schedulers.

The help, directives, completion, galter and the meaning of options of Slurm, LSF and Grid Engine
are made of these rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import click

from gsched.cli.common import Callback, QuickOption
from gsched.cli.submit import readers as r
from gsched.cli.submit.extras import read_extras
from gsched.cli.submit.place import SubmitContext, absolute
from gsched.cli.submit.stated import gpu_range
from gsched.model.container import RUNTIMES
from gsched.model.states import ShareClass
from gsched.model.training import Scaling, Urgency

PRIORITY_LEAST, PRIORITY_MOST = -1024, 1023  # POSIX qsub


class Row(NamedTuple):
    """One option.

    Attributes:
        names: separated by blanks.
        field: its name in what is stated.
        help: what it does, for ``--help``.
        metavar: its value, for ``--help``; empty: it is a flag.
        type: what click checks of its value.
        many: it may be given several times.
        read: what reads its value; None: it is a text, a number of ``type``, or a flag.
        job: the fields of `SubmitJob` that are what is read; empty: it is read with others.
        complete: what completes its value, by the names of `gsched.cli.completing.SOURCES`.
        alter: its name among the options of galter; empty: a job's attribute that stays as it is.
        alter_help: its help there, where it is another one.
        directive: it may stand in a script.
        note: why it changes nothing, of an option that only PBS has; the help does not show it.
        slurm, lsf, sge: options of Slurm, LSF and Grid Engine with the same value, and blanks.
    """

    names: str
    field: str
    help: str
    metavar: str = ""
    type: Any = None
    many: bool = False
    read: Callable[[str, SubmitContext], object] | None = None
    job: str = ""
    complete: str = ""
    alter: str = ""
    alter_help: str = ""
    directive: bool = True
    note: str = ""
    slurm: str = ""
    lsf: str = ""
    sge: str = ""

    def option(self, *, galter: bool = False) -> click.Option:
        """Return the option of gsub, or that of galter."""
        text = self.alter_help if galter and self.alter_help else self.help
        words = [*self.names.split(), self.alter if galter else self.field]
        if not self.metavar:
            return QuickOption(words, is_flag=True, help=text, hidden=not text)
        return QuickOption(
            words,
            default=None,
            multiple=self.many,
            type=self.type,
            metavar=self.metavar,
            help=text,
            hidden=not text,
        )


def _gpu_count(text: str) -> str:
    """Return the text of ``--gpus`` as it is, for click.

    Raises:
        BadParameter: it is neither a number nor a range.
    """
    try:
        gpu_range(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}: write 4, or 1..8 for 1 to 8") from None
    return text


_PRIORITY: Final = click.IntRange(PRIORITY_LEAST, PRIORITY_MOST)
_COUNT: Final = click.IntRange(min=1)


def _words(*kinds: str) -> Any:
    return click.Choice([str(each) for each in kinds])


#: By the headings of ``--help``, the most used first.
SECTIONS: Final[Mapping[str, Sequence[Row]]] = {
    "Options": (
        Row("-N", "name", "Job name.", "NAME", alter="name", sge="-N", read=r.job_name, job="name"),
        Row("-q", "queue", "Queue of the job.", "QUEUE", complete="queues", alter="queue",
            lsf="-q", sge="-q", read=r.queue, job="queue"),
        Row("-A", "account", "Project of the job; without projects, a text.", "PROJECT",
            alter="account",
            slurm="--account -A", lsf="-P", sge="-P", job="account"),
        Row("-P", "project", "As -A, which has precedence.", "PROJECT"),
        Row("--qos", "qos", "Quality of service.", "QOS", alter="qos", slurm="--qos -q",
            job="qos"),
        Row("-p", "priority", "Priority, -1024 to 1023; higher starts first.", "PRIORITY",
            _PRIORITY, alter="priority", sge="-p", job="priority"),
        Row("-a", "start_after", "Do not start before [[[[CC]YY]MM]DD]hhmm[.SS].", "DATE",
            alter="start_after", read=r.start_after, job="start_after_s"),
        Row("-h", "hold", "Submit the job on hold; grls releases it.", slurm="--hold -H"),
        Row("-r", "rerunnable", "Whether the job can be rerun from its start.", "y|n",
            complete="y n", alter="rerunnable", sge="-r", read=r.rerunnable, job="rerunnable"),
        Row("-u", "users", "User to run the job as: only yourself.", "USER", alter="_users",
            read=r.own_user),
        Row("-z", "no_id", "Do not print the job's id."),
        Row("--kind", "kind", "Kind of work, for predicting the run time.", "NAME", job="kind"),
        Row("--reservation", "reservation", "Start in this reservation: gres list shows them.",
            "NAME", complete="reservations", alter="reservation",
            alter_help="Start in this reservation; '' for none.", slurm="--reservation",
            lsf="-U", sge="-ar", job="reservation"),
        Row("--comment", "comment", "Text to keep with the job.", "TEXT", alter="comment",
            alter_help="Text to keep with the job; '' removes it.", slurm="--comment",
            job="comment"),
        Row("--dry-run --test-only", "dry_run",
            "Check the job and show its plan, but do not submit it.", directive=False),
        Row("--wait", "wait", "Wait for the job to end; exit with its exit code.",
            directive=False),
        Row("--watch", "watch", "Wait, and print the job's output as it is written.",
            directive=False),
    ),
    "Resources": (
        Row("-l", "resources", "Resources, such as nodes=2:ppn=4:gpus=1,walltime=1:00:00.", "LIST",
            many=True, complete="resources", alter="resources", alter_help="Resources, as with "
            "gsub; walltime=+1:00:00 adds time, walltime=-30:00 subtracts it."),
        Row("--walltime", "walltime", "Walltime limit, such as 1:30:00 or 90m.", "TIME",
            read=r.walltime),
        Row("--nodes", "nodes", "Number of nodes, like -l nodes=N.", "N", _COUNT),
        Row("--cpus", "cpus", "Number of CPUs (per node).", "N", _COUNT),
        Row("--gpus", "gpus", "Number of GPUs (per node), or a range such as 1..8 on any nodes.",
            "N|LEAST..MOST", _gpu_count),
        Row("--mem", "mem", "Memory of the whole job, such as 4gb.", "SIZE", read=r.memory),
        Row("--exclusive", "exclusive", "Do not share the nodes with other jobs.",
            slurm="--exclusive", lsf="-x", job="exclusive"),
        Row("--gpu-share", "gpu_share", "Part of one GPU, such as 40%,16gb; other jobs use the "
            "rest.", "PERCENT%[,MEMORY]"),
        Row("--share-class", "share_class", "Priority on a shared GPU: high for at most one job "
            "on it [default: low].", "high|low", _words(*ShareClass)),
        Row("--every-node", "every_node", "Run the script or command once on every node.",
            job="every_node"),
    ),
    "Script, code and environment": (
        Row("-F", "script_arguments", "Arguments for the script, as one string.", "ARGS",
            read=r.script_arguments),
        Row("-S", "shell", "Shell that runs the script.", "PATH", complete="file", alter="shell",
            sge="-S", read=r.shell, job="shell"),
        Row("-C", "prefix", "Directive prefix; '' for none.", "PREFIX", directive=False),
        Row("-d -w", "workdir", "Working directory of the job [default: this one].", "DIR",
            complete="dir", slurm="--chdir -D", lsf="-cwd", sge="-wd", read=absolute),
        Row("-v", "variables", "Environment variables of the job: NAME=VALUE,NAME.", "LIST",
            many=True, complete="variables", sge="-v", read=r.variables),
        Row("-V", "export_all", "Export the whole environment to the job.", sge="-V"),
        Row("--snapshot", "snapshot",
            "Run the code as it is now: keep a copy of the working tree with the job."),
        Row("--stage-in", "stage_in", "File or directory below this one that is copied to nodes "
            "without a shared file system.", "PATH", many=True, complete="file",
            read=r.staged_in),
        Row("--stage-out", "stage_out", "File or directory that is copied back from such nodes "
            "when the job has ended.", "PATH", many=True, complete="file", read=r.staged_out),
        Row("--container", "container", "Image in which the job runs: HOST/NAME:TAG or a file.",
            "IMAGE", slurm="--container-image", read=r.container_image),
        Row("--container-mount", "container_mounts",
            "Directory of the node to mount in the container.", "SRC:DST[:ro]", many=True,
            read=r.container_mounts),
        Row("--container-workdir", "container_workdir",
            "Working directory in the container [default: that of the job].", "DIR",
            slurm="--container-workdir", read=r.container_workdir),
        Row("--container-runtime", "container_runtime",
            "podman, apptainer or enroot [default: what the node has].", "NAME",
            _words(*RUNTIMES)),
    ),
    "Output and mail": (
        Row("-o", "stdout", "File or directory for stdout.", "PATH", complete="file",
            alter="stdout_path", alter_help="File for standard output.", read=r.output),
        Row("-e", "stderr", "File or directory for stderr.", "PATH", complete="file",
            alter="stderr_path", alter_help="File for standard error.", read=r.output),
        Row("-j", "join", "Join stdout and stderr: oe into stdout, eo into stderr.", "oe|eo|n",
            complete="oe eo n", alter="join", read=r.join, job="join"),
        Row("-k", "keep", "Keep stdout (o), stderr (e) or both in your home directory on the "
            "node.", "o|e|oe|n", alter="keep", read=r.kept),
        Row("--open-mode", "open_mode", "Whether output is appended to an existing file "
            "[default: truncate].", "append|truncate", _words("append", "truncate"),
            read=r.appends, job="append"),
        Row("-m", "mail_points", "When to send mail: a abort, b begin, e end, f failure, j each "
            "element; n never.", "POINTS", alter="mail_points",
            read=r.mail_points, job="mail_points"),
        Row("-M", "mail_to", "Mail recipients [default: you].", "USERS", alter="mail_to",
            alter_help="Mail recipients; '' for yourself.", slurm="--mail-user", lsf="-u",
            sge="-M", read=r.recipients, job="mail_to"),
        Row("--notify", "notify", "URL to which the job's events are posted as JSON, if the site "
            "allows it.", "URL", alter="notify_url",
            alter_help="URL to which events are posted; '' for none.", job="notify_url"),
    ),
    "Interactive jobs": (
        Row("-I --interactive", "interactive",
            "Run a shell in this terminal, or the command after --.", directive=False),
        Row("-x", "executes", "With -I: run the script or command there instead of a shell.",
            directive=False),
        Row("--detach-timeout", "detach_timeout",
            "With -I: end the job when nobody was attached for so long.", "TIME|none",
            read=r.duration_or_none_s),
    ),
    "Arrays and dependencies": (
        Row("-t -J --array", "array", "Submit an array: a job for each index of 0-99, 1,5,9 or "
            "0-99:2; %5: 5 at once.", "RANGE", slurm="--array -a", sge="-t", read=r.array),
        Row("--each-line", "each_line",
            "Submit an array with an element for each line, in $GSCHED_ARRAY_LINE.", "FILE",
            read=r.each_line, job="lines"),
        Row("--dependency", "dependency",
            "Start after other jobs: afterok:12, afterany:12:13, singleton.",
            "TYPE:JOB[:JOB...],..."),
        Row("-W", "extras", "Additional attributes: depend=TYPE:JOB, umask=MASK, block=true.",
            "LIST", many=True, complete="umask= block=true", read=read_extras),
    ),
    "Signals and failures": (
        Row("-K --grace", "grace", "Time from TERM to KILL when the job is stopped.", "TIME",
            alter="grace", alter_help="Time from TERM to KILL: seconds, MM:SS or 5m.",
            read=r.duration_s, job="grace_s"),
        Row("--signal", "signal", "Signal some time before the walltime ends; B: only to the "
            "script [default: 60s].", "[B:]SIGNAL[@TIME]", slurm="--signal",
            read=r.early_signal, job="early_signal"),
        Row("--requeue-on", "requeue_on",
            "Restart the job after a node or rank failure, at most N times in a row.",
            "node-failure[:N]", complete="node-failure",
            read=r.requeue_on, job="requeue_on requeue_limit"),
        Row("--lease", "lease",
            "Longest time for which the job runs while its node cannot reach the head.",
            "TIME|none", read=r.duration_or_none_s, job="lease_s"),
    ),
    "Distributed and elastic training": (
        Row("--torchrun", "torchrun", "Start SCRIPT under torchrun on all nodes.", "SCRIPT",
            complete="file", directive=False),
        Row("--python", "python", "Interpreter for --torchrun.", "PATH", complete="file"),
        Row("--elastic", "elastic", "The job can checkpoint and resume on other nodes or GPUs.",
            job="movable"),
        Row("--checkpoint-dir", "checkpoint_dir", "Directory for checkpoints of an elastic job.",
            "DIR", complete="dir", read=absolute, job="checkpoint_dir"),
        Row("--checkpoint-interval", "checkpoint_interval", "Time between periodic checkpoints.",
            "TIME", read=r.duration_s, job="checkpoint_interval_s"),
        Row("--checkpoint-signal", "checkpoint_signal",
            "Signal at which the job saves a checkpoint and exits, within --grace.", "SIGNAL",
            complete="signals", read=r.checkpoint_signal, job="checkpoint_signal"),
        Row("-c", "checkpoint",
            "c=MINUTES: time between checkpoints of an elastic job; else no effect.", "WHEN",
            alter="_checkpoint", alter_help="Accepted for compatibility; no effect."),
        Row("--profile", "profile", "Run on the fewest GPUs until the step time is measured.",
            job="profile"),
    ),
    "Deadlines": (
        Row("--deadline", "deadline", "Deadline: 8h from now, or '2027-03-01 08:00'.", "WHEN",
            alter="deadline",
            alter_help="Deadline: 8h from now, or '2027-03-01 08:00'; none removes it.",
            read=r.deadline, job="deadline_s deadline_after_s"),
        Row("--urgency", "urgency",
            "Derive the deadline from the run time: urgent, normal or relaxed.", "WORD",
            _words(*Urgency), alter="urgency", alter_help="Derive the deadline from the "
            "remaining run time: urgent, normal or relaxed.", job="urgency"),
        Row("--reject-if-late", "reject_if_late",
            "Submit the job only if its deadline is expected to be met.", job="reject_if_late"),
        Row("--training", "training",
            "TOML file with a [training] table that describes the workload.", "FILE",
            complete="file", read=r.training_file),
        Row("--params", "params", "Number of model parameters, such as 138M.", "N", read=r.count),
        Row("--samples", "samples", "Number of samples in the data set.", "N", read=r.count),
        Row("--batch", "batch",
            "Samples per step on each GPU; with --adaptive on all GPUs together.", "N",
            read=r.count),
        Row("--epochs", "epochs", "Number of epochs.", "N", read=r.count),
        Row("--step-time", "step_time", "Duration of one step on one GPU, such as 35ms.", "TIME",
            read=r.interval_s),
    ),
    "Adaptive training and inference": (
        Row("--adaptive", "adaptive",
            "gsched chooses batch size, number and type of GPUs for the best goodput."),
        Row("--batch-max", "batch_max",
            "Largest batch size of an adaptive job, on all GPUs together.", "N", read=r.samples),
        Row("--batch-per-gpu-max", "batch_per_gpu_max",
            "Samples that fit into the memory of a GPU, if known.", "N", read=r.samples),
        Row("--gpu-types", "gpu_types",
            "GPU types that an adaptive job may run on, such as a100,t4.", "any|LIST",
            read=r.gpu_types),
        Row("--scaling", "scaling",
            "What of an adaptive job may change: adaptive, strong or rigid.", "WORD",
            _words(*Scaling)),
        Row("--replica-gpus", "replica_gpus",
            "GPUs of one replica of a model that is split over several.", "TYPE=N,...",
            read=r.replica_gpus),
        Row("--non-preemptible", "non_preemptible",
            "No policy migrates the adaptive job once it runs."),
        Row("--inference", "inference", "The adaptive job answers requests and does not train."),
        Row("--latency", "latency",
            "Time that a batch of an inference job may take, such as 50ms.", "TIME",
            read=r.interval_s),
        Row("--requests", "requests", "Samples that arrive each second, of an inference job.",
            "N", read=r.count),
    ),
}  # fmt: skip
#: Options of qsub of Torque and OpenPBS that need not be known to use gsub.
_OF_PBS: Final = (
    Row("-n", "node_exclusive", "", job="exclusive"),
    Row("-b", "server_timeout", "", "SECONDS", note="gsub waits for the head by itself"),
    Row("-D", "root_directory", "", "PATH", note="jobs see all file systems of their nodes"),
    Row("-f", "fault_tolerant", "", note="a job ends with the first of its nodes that fails"),
    Row("-G", "gui", "", note="there is no graphical session"),
    Row("-R", "remove_files", "", "e|o|oe", note="output files are kept"),
    Row("-T", "prologue", "", "NAME", note="users choose no prologue"),
    Row("-X", "x11", "", note="X11 is not forwarded"),
)  # fmt: skip
ROWS: Final = (*(row for rows in SECTIONS.values() for row in rows), *_OF_PBS)


@cache
def _options() -> Mapping[str, click.Option]:
    """Return the options of gsub by their fields."""
    return {row.field: row.option() for row in ROWS}


def gsub_options(function: Callback) -> Callback:
    """Add the options of all rows to gsub."""
    return _with(function, list(_options().values()))


def directive_options() -> list[click.Parameter]:
    """Return the options that may stand in a script."""
    return [_options()[row.field] for row in ROWS if row.directive]


def galter_options(function: Callback) -> Callback:
    """Add the options of what can be changed of a job to galter."""
    return _with(function, [row.option(galter=True) for row in ROWS if row.alter])


def _with(function: Callback, options: Sequence[click.Option]) -> Callback:
    """Add options as `click.option` does, which has no way to add one that is there."""
    added: list[click.Parameter] = list(getattr(function, "__click_params__", []))
    function.__click_params__ = added + list(reversed(options))  # type: ignore[attr-defined] # click's
    return function


def write_options(command: click.Command, context: click.Context, out: click.HelpFormatter) -> None:
    """Write the options of gsub below headings; those of all commands end the first list."""
    records = {
        option.name: record
        for option in command.get_params(context)
        if isinstance(option, click.Option)
        and (record := option.get_help_record(context)) is not None
    }
    listed = [
        (heading, [records.pop(row.field) for row in rows]) for heading, rows in SECTIONS.items()
    ]
    listed[0][1].extend(records.values())
    for heading, lines in listed:
        with out.section(heading):
            out.write_dl(lines)


def equal_options(scheduler: str) -> Iterator[tuple[str, str]]:
    """Yield options of another scheduler, and gsub's with the same value: ``-q``, ``-q {}``."""
    for row in ROWS:
        form = row.names.split()[0] + (" {}" if row.metavar else "")
        for name in getattr(row, scheduler).split():
            yield name, form
