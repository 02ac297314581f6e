"""The options of gsub, for the command line and for directives alike."""

from collections.abc import Callable

import click
from msgspec import Struct, structs

from gsched.cli.common import Callback

PRIORITY_LEAST, PRIORITY_MOST = -1024, 1023  # POSIX qsub
# Terms of -l that say how many places there are: those of the command line replace, all together,
# those of the script, because mixed ones would contradict each other.
_PLACE_TERMS = frozenset({"nodes", "select", "place", "ncpus", "procs"})


class SubmitOptions(Struct, frozen=True, kw_only=True):
    """What one command line, or all directives of a script, say; None or empty: nothing."""

    start_after: str | None = None
    account: str | None = None
    checkpoint: str | None = None
    stderr: str | None = None
    hold: bool = False
    join: str | None = None
    keep: str | None = None
    mail_points: str | None = None
    mail_to: str | None = None
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
    gpus: int | None = None
    mem: str | None = None
    walltime: str | None = None
    every_node: bool = False
    exclusive: bool = False
    grace: str | None = None
    kind: str | None = None
    python: str | None = None

    @property
    def resource_texts(self) -> tuple[str, ...]:
        """Return the texts for ``-l``, those of the sugar options last."""
        sugar: list[str] = []
        if self.nodes is not None:
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
    mine, theirs = command_line.resource_texts, script.resource_texts
    if _PLACE_TERMS & _term_names(mine):
        theirs = tuple(_without_places(text) for text in theirs)
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
    }
    return structs.replace(command_line, **fields)


def _term_names(texts: tuple[str, ...]) -> set[str]:
    return {part.partition("=")[0].strip() for text in texts for part in text.split(",")}


def _without_places(text: str) -> str:
    parts = [part for part in text.split(",") if part.partition("=")[0].strip() not in _PLACE_TERMS]
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
    _text("-A", metavar="ACCOUNT", text="Account, kept with the job.", target="account"),
    _text("-c", metavar="WHEN", text="Checkpoints: read for compatibility, without effect.",
          target="checkpoint"),
    _text("-d", "-w", metavar="DIR", text="Start in DIR, not in this directory.",
          target="workdir"),
    _text("-e", metavar="PATH", text="File or directory of stderr.", target="stderr"),
    _text("-F", metavar="ARGS", text="Arguments of the script, as one text.",
          target="script_arguments"),
    _flag("-h", text="Hold the job until grls releases it.", target="hold"),
    _text("-j", metavar="oe|eo|n", text="Join: oe all into stdout, eo all into stderr.",
          target="join"),
    _text("-k", metavar="KEEP", text="Keep output: read for compatibility, without effect.",
          target="keep"),
    _list("-l", metavar="LIST", text="Resources: nodes=2:ppn=4:gpus=1,walltime=1:00:00.",
          target="resources"),
    _text("-m", metavar="POINTS", text="Mail at: a abort, b begin, e end, f failure, n never.",
          target="mail_points"),
    _text("-M", metavar="USERS", text="Whom to mail.", target="mail_to"),
    _text("-N", metavar="NAME", text="Name of the job.", target="name"),
    _text("-o", metavar="PATH", text="File or directory of stdout.", target="stdout"),
    click.option("-p", "priority", default=None, metavar="PRIORITY",
                 type=click.IntRange(PRIORITY_LEAST, PRIORITY_MOST),
                 help="Priority, -1024 to 1023; higher starts first."),
    _text("-q", metavar="QUEUE", text="Queue.", target="queue"),
    _text("-r", metavar="y|n", text="Whether the job may be run again from its start.",
          target="rerunnable"),
    _text("-S", metavar="PATH", text="Shell that runs the script.", target="shell"),
    _text("-u", metavar="USER", text="User who runs the job: only yourself.", target="users"),
    _list("-v", metavar="LIST", text="Variables for the job: NAME=VALUE,NAME.",
          target="variables"),
    _flag("-V", text="Give the job the whole environment.", target="export_all"),
    _list("-W", metavar="LIST", text="More attributes: umask=MASK, block=true.", target="extras"),
    _flag("-z", text="Do not print the job's id.", target="no_id"),
    _count("--nodes", metavar="N", text="Number of nodes, like -l nodes=N.", least=1),
    _count("--cpus", metavar="N", text="CPUs (on each node).", least=1),
    _count("--gpus", metavar="N", text="GPUs (on each node).", least=0),
    _text("--mem", metavar="SIZE", text="Memory of the whole job, like 4gb.", target="mem"),
    _text("--walltime", metavar="TIME", text="Limit, like 1:30:00 or 90m.", target="walltime"),
    _flag("--every-node", text="Run the script or command once on every node.",
          target="every_node"),
    _flag("--exclusive", text="Have the nodes to itself.", target="exclusive"),
    _text("--grace", metavar="TIME", text="Time from TERM to KILL when the job is ended.",
          target="grace"),
    _text("--kind", metavar="NAME", text="Kind of work, for predictions of run time.",
          target="kind"),
    _text("--python", metavar="PATH", text="Interpreter for --torchrun.", target="python"),
)  # fmt: skip


def job_options(function: Callback) -> Callback:
    """Add every option that states something about the job: legal in directives, too."""
    for option in reversed(_JOB_OPTIONS):
        function = option(function)
    return function
