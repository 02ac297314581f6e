"""The options of gsub, for the command line and for directives alike."""

from collections.abc import Callable

import click
from msgspec import Struct, structs

from gsched.cli.common import Callback
from gsched.model.container import RUNTIMES
from gsched.model.states import ShareClass
from gsched.model.training import Scaling, Urgency

PRIORITY_LEAST, PRIORITY_MOST = -1024, 1023  # POSIX qsub
# Terms of -l that say how many places there are: those of the command line replace, all together,
# those of the script, because mixed ones would contradict each other.
_PLACE_TERMS = frozenset({"nodes", "select", "ncpus", "procs"})  # place= is merged by its name
_GPU_TERMS = frozenset({"gpus", "ngpus"})  # a range of GPUs replaces these, too


class SubmitOptions(Struct, frozen=True, kw_only=True):
    """What one command line, or all directives of a script, say; None or empty: nothing."""

    start_after: str | None = None
    account: str | None = None
    project: str | None = None
    comment: str | None = None
    checkpoint: str | None = None
    stderr: str | None = None
    hold: bool = False
    join: str | None = None
    keep: str | None = None
    mail_points: str | None = None
    mail_to: str | None = None
    notify: str | None = None
    name: str | None = None
    stdout: str | None = None
    priority: int | None = None
    queue: str | None = None
    rerunnable: str | None = None
    shell: str | None = None
    users: str | None = None
    variables: tuple[str, ...] = ()
    export_all: bool = False
    extras: tuple[str, ...] = ()
    no_id: bool = False
    resources: tuple[str, ...] = ()
    script_arguments: str | None = None
    workdir: str | None = None
    torchrun: str | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: str | None = None
    gpu_share: str | None = None
    share_class: str | None = None
    mem: str | None = None
    walltime: str | None = None
    every_node: bool = False
    exclusive: bool = False
    grace: str | None = None
    kind: str | None = None
    python: str | None = None
    deadline: str | None = None
    urgency: str | None = None
    elastic: bool = False
    training: str | None = None
    params: str | None = None
    samples: str | None = None
    batch: str | None = None
    epochs: str | None = None
    step_time: str | None = None
    reject_if_late: bool = False
    profile: bool = False
    adaptive: bool = False
    non_preemptible: bool = False
    inference: bool = False
    latency: str | None = None
    requests: str | None = None
    batch_max: str | None = None
    batch_per_gpu_max: str | None = None
    gpu_types: str | None = None
    scaling: str | None = None
    replica_gpus: str | None = None
    checkpoint_dir: str | None = None
    checkpoint_interval: str | None = None
    checkpoint_signal: str | None = None
    requeue_on: str | None = None
    lease: str | None = None
    signal: str | None = None
    open_mode: str | None = None
    detach_timeout: str | None = None
    snapshot: bool = False
    container: str | None = None
    container_mounts: tuple[str, ...] = ()
    container_workdir: str | None = None
    container_runtime: str | None = None
    dependency: str | None = None
    array: str | None = None
    each_line: str | None = None
    places_max: int = 0

    @property
    def gpus_most(self) -> int:
        """Return how many GPUs an elastic training takes at most, each a place; 0: none is."""
        return gpu_range(self.gpus or "0")[1] or self.places_max

    @property
    def speaks_of_training(self) -> bool:
        """Return whether anything is said of a training's size or deadline."""
        texts = (self.deadline, self.urgency, self.training, self.params, self.samples)
        batch = None if self.adaptive else self.batch
        return any(each is not None for each in (*texts, batch, self.epochs, self.step_time))

    @property
    def speaks_of_adaptation(self) -> bool:
        """Return whether anything is said of batch sizes that follow the GPUs."""
        sizes = (self.batch_max, self.batch_per_gpu_max, self.gpu_types, self.scaling)
        texts = (*sizes, self.replica_gpus, self.latency, self.requests)
        flags = self.adaptive or self.non_preemptible or self.inference
        return flags or any(each is not None for each in texts)

    @property
    def speaks_of_container(self) -> bool:
        """Return whether anything is said of a container."""
        texts = (self.container, self.container_workdir, self.container_runtime)
        return bool(self.container_mounts) or any(each is not None for each in texts)

    @property
    def speaks_of_saving(self) -> bool:
        """Return whether anything is said of checkpoints, of starting anew, or of a lease."""
        texts = (self.checkpoint_dir, self.checkpoint_interval, self.checkpoint_signal)
        return any(each is not None for each in (*texts, self.requeue_on, self.lease))

    @property
    def resource_texts(self) -> tuple[str, ...]:
        """Return the texts for ``-l``, those of the sugar options last.

        Raises:
            GschedError: a share of a GPU that cannot be.
        """
        texts = self.layout_texts
        if self.gpu_share is None and self.share_class is None:
            return texts
        from gsched.cli.submit.sharing import share_term  # late: few jobs share a GPU

        return texts + share_term(self.gpu_share, self.share_class, texts)

    @property
    def layout_texts(self) -> tuple[str, ...]:
        """Return these texts without the share of a GPU."""
        sugar: list[str] = []
        least, most = gpu_range(self.gpus or "0")
        if most:
            cpus = "" if self.cpus is None else f":ncpus={self.cpus}"
            sugar.append(f"select={least}{cpus}:ngpus=1")
        elif self.nodes is not None:
            cpus = "" if self.cpus is None else f":ppn={self.cpus}"
            gpus = "" if self.gpus is None else f":gpus={self.gpus}"
            sugar.append(f"nodes={self.nodes}{cpus}{gpus}")
        else:
            sugar.extend([] if self.cpus is None else [f"ncpus={self.cpus}"])
            sugar.extend([] if self.gpus is None else [f"gpus={self.gpus}"])
        sugar.extend([] if self.mem is None else [f"mem={self.mem}"])
        sugar.extend([] if self.walltime is None else [f"walltime={self.walltime}"])
        return self.resources + tuple(sugar)


def merged(command_line: SubmitOptions, script: SubmitOptions) -> SubmitOptions:
    """Return what holds when both speak: the command line beats the script, option by option.

    Lists (-l, -v, -W) are joined, the command line's part last, where it wins name by name.
    """
    mine, theirs = command_line.layout_texts, script.layout_texts
    places_max = command_line.gpus_most
    if _PLACE_TERMS & _term_names(mine) or (command_line.gpus is not None and script.gpus_most):
        dropped = _PLACE_TERMS | (_GPU_TERMS if command_line.gpus_most else frozenset())
        theirs = tuple(_without(text, dropped) for text in theirs)
    else:
        places_max = script.gpus_most
    fields: dict[str, object] = {}
    for field in structs.fields(SubmitOptions):
        stated = getattr(command_line, field.name)
        fields[field.name] = getattr(script, field.name) if stated == field.default else stated
    fields |= {
        "resources": tuple(filter(None, theirs)) + mine,
        "variables": script.variables + command_line.variables,
        "extras": script.extras + command_line.extras,
        "nodes": None,
        "cpus": None,
        "gpus": None,
        "mem": None,
        "walltime": None,
        "places_max": places_max,
    }
    if "gpu_share" in _term_names(mine):
        fields |= {"gpu_share": command_line.gpu_share, "share_class": command_line.share_class}
    if command_line.deadline is not None or command_line.urgency is not None:
        fields |= {"deadline": command_line.deadline, "urgency": command_line.urgency}
    return structs.replace(command_line, **fields)


def gpu_range(text: str) -> tuple[int, int]:
    """Return the least and the most of ``1..8``; of a plain number the most is 0.

    Raises:
        ValueError: it is neither.
    """
    least, dots, most = text.partition("..")
    if not all(
        word.isascii() and word.isdigit() and len(word) < 7 for word in (least, most or "0")
    ):
        raise ValueError(f"{text!r} is not a number of GPUs or a range")
    if not dots:
        return int(least), 0
    if not most or not 1 <= int(least) <= int(most):
        raise ValueError(f"{text!r} is not a valid range of GPUs")
    return int(least), int(most)


def gpu_count(text: str) -> str:
    """Return the text of ``--gpus`` as it is, for click.

    Raises:
        BadParameter: it is neither a number nor a range.
    """
    try:
        gpu_range(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}: write 4, or 1..8 for 1 to 8") from None
    return text


def _term_names(texts: tuple[str, ...]) -> set[str]:
    return {part.partition("=")[0].strip() for text in texts for part in text.split(",")}


def _without(text: str, names: frozenset[str]) -> str:
    parts = [part for part in text.split(",") if part.partition("=")[0].strip() not in names]
    return ",".join(parts)


def _text(*names: str, metavar: str, text: str, target: str) -> Callable[[Callback], Callback]:
    return click.option(*names, target, default=None, metavar=metavar, help=text)


def _list(name: str, *, metavar: str, text: str, target: str) -> Callable[[Callback], Callback]:
    return click.option(name, target, multiple=True, metavar=metavar, help=text)


def _flag(*names: str, text: str, target: str) -> Callable[[Callback], Callback]:
    return click.option(*names, target, is_flag=True, help=text)


def _count(name: str, *, metavar: str, text: str, least: int) -> Callable[[Callback], Callback]:
    return click.option(
        name, default=None, type=click.IntRange(min=least), metavar=metavar, help=text
    )


_JOB_OPTIONS = (
    _text("-a", metavar="DATE", text="Do not start before [[[[CC]YY]MM]DD]hhmm[.SS].",
          target="start_after"),
    _text("-A", metavar="ACCOUNT", text="Account to record with the job.", target="account"),
    _text("-c", metavar="WHEN", target="checkpoint",
          text="c=MINUTES: time between checkpoints of an elastic job; else no effect."),
    _text("-d", "-w", metavar="DIR", text="Working directory of the job [default: this one].",
          target="workdir"),
    _text("-e", metavar="PATH", text="File or directory for stderr.", target="stderr"),
    _text("-F", metavar="ARGS", text="Arguments for the script, as one string.",
          target="script_arguments"),
    _flag("-h", text="Submit the job on hold; grls releases it.", target="hold"),
    _text("-j", metavar="oe|eo|n", text="Join stdout and stderr: oe into stdout, eo into stderr.",
          target="join"),
    _text("-k", metavar="o|e|oe|n", target="keep",
          text="Keep stdout (o), stderr (e) or both in your home directory on the node."),
    _list("-l", metavar="LIST", text="Resources, such as nodes=2:ppn=4:gpus=1,walltime=1:00:00.",
          target="resources"),
    _text("-m", metavar="POINTS", target="mail_points",
          text="When to send mail: a abort, b begin, e end, f failure, j each element; n never."),
    _text("-M", metavar="USERS", text="Mail recipients [default: you].", target="mail_to"),
    _text("-N", metavar="NAME", text="Job name.", target="name"),
    _text("-o", metavar="PATH", text="File or directory for stdout.", target="stdout"),
    click.option("-p", "priority", default=None, metavar="PRIORITY",
                 type=click.IntRange(PRIORITY_LEAST, PRIORITY_MOST),
                 help="Priority, -1024 to 1023; higher starts first."),
    _text("-P", metavar="PROJECT", text="Project: recorded as the account, unless -A is given.",
          target="project"),
    _text("-q", metavar="QUEUE", text="Queue of the job.", target="queue"),
    _text("-r", metavar="y|n", text="Whether the job can be rerun from its start.",
          target="rerunnable"),
    _text("-S", metavar="PATH", text="Shell that runs the script.", target="shell"),
    _text("-t", "-J", "--array", metavar="RANGE", target="array",
          text="Submit an array: a job for each index of 0-99, 1,5,9 or 0-99:2; %5: 5 at once."),
    _text("--each-line", metavar="FILE", target="each_line",
          text="Submit an array with an element for each line, in $GSCHED_ARRAY_LINE."),
    _text("-u", metavar="USER", text="User to run the job as: only yourself.", target="users"),
    _list("-v", metavar="LIST", text="Environment variables of the job: NAME=VALUE,NAME.",
          target="variables"),
    _flag("-V", text="Export the whole environment to the job.", target="export_all"),
    _list("-W", metavar="LIST", target="extras",
          text="Additional attributes: depend=TYPE:JOB, umask=MASK, block=true."),
    _flag("-z", text="Do not print the job's id.", target="no_id"),
    _count("--nodes", metavar="N", text="Number of nodes, like -l nodes=N.", least=1),
    _count("--cpus", metavar="N", text="Number of CPUs (per node).", least=1),
    click.option("--gpus", default=None, metavar="N|LEAST..MOST", type=gpu_count,
                 help="Number of GPUs (per node), or a range such as 1..8 on any nodes."),
    _text("--gpu-share", metavar="PERCENT%[,MEMORY]", target="gpu_share",
          text="Part of one GPU, such as 40%,16gb; other jobs use the rest."),
    click.option("--share-class", default=None, metavar="high|low",
                 type=click.Choice([each.value for each in ShareClass]),
                 help="Priority on a shared GPU: high for at most one job on it [default: low]."),
    _text("--mem", metavar="SIZE", text="Memory of the whole job, such as 4gb.", target="mem"),
    _text("--walltime", metavar="TIME", text="Walltime limit, such as 1:30:00 or 90m.",
          target="walltime"),
    _flag("--every-node", text="Run the script or command once on every node.",
          target="every_node"),
    _text("--container", metavar="IMAGE", target="container",
          text="Image in which the job runs: HOST/NAME:TAG or a file."),
    _list("--container-mount", metavar="SRC:DST[:ro]", target="container_mounts",
          text="Directory of the node to mount in the container."),
    _text("--container-workdir", metavar="DIR", target="container_workdir",
          text="Working directory in the container [default: that of the job]."),
    click.option("--container-runtime", default=None, metavar="NAME",
                 type=click.Choice(RUNTIMES),
                 help="podman, apptainer or enroot [default: what the node has]."),
    _flag("--exclusive", text="Do not share the nodes with other jobs.", target="exclusive"),
    _text("--grace", metavar="TIME", text="Time from TERM to KILL when the job is stopped.",
          target="grace"),
    _text("--kind", metavar="NAME", text="Kind of work, for predicting the run time.",
          target="kind"),
    _text("--python", metavar="PATH", text="Interpreter for --torchrun.", target="python"),
    _text("--notify", metavar="URL", target="notify",
          text="URL to which the job's events are posted as JSON, if the site allows it."),
    _text("--comment", metavar="TEXT", text="Text to keep with the job.", target="comment"),
    _text("--deadline", metavar="WHEN", text="Deadline: 8h from now, or '2027-03-01 08:00'.",
          target="deadline"),
    click.option("--urgency", default=None, metavar="WORD",
                 type=click.Choice([each.value for each in Urgency]),
                 help="Derive the deadline from the run time: urgent, normal or relaxed."),
    _flag("--reject-if-late", text="Submit the job only if its deadline is expected to be met.",
          target="reject_if_late"),
    _flag("--elastic", text="The job can checkpoint and resume on other nodes or GPUs.",
          target="elastic"),
    _flag("--adaptive", target="adaptive",
          text="gsched chooses batch size, number and type of GPUs for the best goodput."),
    _text("--batch-max", metavar="N", target="batch_max",
          text="Largest batch size of an adaptive job, on all GPUs together."),
    _text("--batch-per-gpu-max", metavar="N", target="batch_per_gpu_max",
          text="Samples that fit into the memory of a GPU, if known."),
    _text("--gpu-types", metavar="any|LIST", target="gpu_types",
          text="GPU types that an adaptive job may run on, such as a100,t4."),
    click.option("--scaling", default=None, metavar="WORD",
                 type=click.Choice([each.value for each in Scaling]),
                 help="What of an adaptive job may change: adaptive, strong or rigid."),
    _text("--replica-gpus", metavar="TYPE=N,...", target="replica_gpus",
          text="GPUs of one replica of a model that is split over several."),
    _flag("--non-preemptible", target="non_preemptible",
          text="No policy migrates the adaptive job once it runs."),
    _flag("--inference", target="inference",
          text="The adaptive job answers requests and does not train."),
    _text("--latency", metavar="TIME", target="latency",
          text="Time that a batch of an inference job may take, such as 50ms."),
    _text("--requests", metavar="N", target="requests",
          text="Samples that arrive each second, of an inference job."),
    _flag("--profile", text="Run on the fewest GPUs until the step time is measured.",
          target="profile"),
    _text("--checkpoint-dir", metavar="DIR", text="Directory for checkpoints of an elastic job.",
          target="checkpoint_dir"),
    _text("--checkpoint-interval", metavar="TIME", text="Time between periodic checkpoints.",
          target="checkpoint_interval"),
    _text("--checkpoint-signal", metavar="SIGNAL", target="checkpoint_signal",
          text="Signal at which the job saves a checkpoint and exits, within --grace."),
    _text("--signal", metavar="[B:]SIGNAL[@TIME]", target="signal",
          text="Signal some time before the walltime ends; B: only to the script [default: 60s]."),
    click.option("--open-mode", default=None, type=click.Choice(["append", "truncate"]),
                 help="Whether output is appended to an existing file [default: truncate]."),
    _flag("--snapshot", target="snapshot",
          text="Run the code as it is now: keep a copy of the working tree with the job."),
    _text("--requeue-on", metavar="node-failure[:N]", target="requeue_on",
          text="Restart the job after a node or rank failure, at most N times in a row."),
    _text("--dependency", metavar="TYPE:JOB[:JOB...],...", target="dependency",
          text="Start after other jobs: afterok:12, afterany:12:13, singleton."),
    _text("--lease", metavar="TIME|none", target="lease",
          text="Longest time for which the job runs while its node cannot reach the head."),
    _text("--detach-timeout", metavar="TIME|none", target="detach_timeout",
          text="With -I: end the job when nobody was attached for so long."),
    _text("--training", metavar="FILE", target="training",
          text="TOML file with a [training] table that describes the workload."),
    _text("--params", metavar="N", text="Number of model parameters, such as 138M.",
          target="params"),
    _text("--samples", metavar="N", text="Number of samples in the data set.", target="samples"),
    _text("--batch", metavar="N", target="batch",
          text="Samples per step on each GPU; with --adaptive on all GPUs together."),
    _text("--epochs", metavar="N", text="Number of epochs.", target="epochs"),
    _text("--step-time", metavar="TIME", text="Duration of one step on one GPU, such as 35ms.",
          target="step_time"),
)  # fmt: skip


def job_options(function: Callback) -> Callback:
    """Add every option that states something about the job: legal in directives, too."""
    for option in reversed(_JOB_OPTIONS):
        function = option(function)
    return function
