"""gsub: submit a job."""

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from gsched.cli.common import (
    QuickCommand,
    command_name,
    connected,
    gsched_command,
    print_json,
    print_note,
)
from gsched.cli.dialect import spoken
from gsched.cli.running import runner
from gsched.cli.submit.extras import combined
from gsched.cli.submit.job_environment import job_environment
from gsched.cli.submit.options import merged, read_options
from gsched.cli.submit.place import SubmitContext, absolute
from gsched.cli.submit.readers import find_program
from gsched.cli.submit.rows import gsub_options, write_options
from gsched.cli.submit.script_options import ScriptOptions, read_directives
from gsched.cli.submit.scripts import STDIN_NAME, Script, read_script
from gsched.cli.submit.stated import StatedOptions
from gsched.cli.submit.submission import (
    Workload,
    check_output,
    check_training_script,
    check_workdir,
    compatibility_notes,
    make_job,
    submit_place,
)
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.config.environment import full_environment
from gsched.errors import UsageError
from gsched.head_calls import error_from
from gsched.model.ids import format_array_id, format_job_id
from gsched.protocol.submissions import SubmitJob, SubmitReply, SubmitResult

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NAME = "gsub"
_EPILOG = """\b
Examples:
  gsub train.sh                          a script with #PBS or #GSCHED lines
  gsub -l nodes=1:ppn=4,walltime=2:00:00 train.sh
  gsub --gpus 1 --wait -- python train.py --epochs 3
  gsub -l nodes=2:ppn=1:gpus=2 --torchrun train.py --lr 0.1
  gsub --deadline 8h --gpus 1..8 --elastic --training size.toml --torchrun train.py
  echo 'date; hostname' | gsub -N now
  gsub -I --gpus 1                       a shell with a GPU in this terminal
"""


class GsubCommand(QuickCommand):
    """gsub's grammar: what stands after ``--`` or ``--torchrun SCRIPT`` is not ours to read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut off the command or the training script's arguments, and parse what is left."""
        own, tail = split_tail(args)
        if own and own[-1] == "--torchrun" and not tail and not ctx.resilient_parsing:
            raise click.UsageError("--torchrun needs a training script", ctx)
        try:
            rest = super().parse_args(ctx, own.copy())
        except click.NoSuchOption as error:
            from gsched.cli.submit.refusals import refusal_of  # late: only a mistake needs it

            refused = refusal_of(error.option_name, own, self._first_operand(own))
            if refused is None:
                raise
            raise refused from None
        ctx.params["tail"] = tuple(tail)
        ctx.params["words"] = tuple(own)
        return rest

    def _first_operand(self, words: list[str]) -> str:
        """Return the first word that is neither an option nor its value; empty if there is none."""
        context = self.make_context(
            NAME, words.copy(), resilient_parsing=True, ignore_unknown_options=True
        )
        operands = context.params.get("operands") or ()
        return next((word for word in operands if not word.startswith("-")), "")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups: there are too many for one list."""
        write_options(self, ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Return our options, but none behind the training script: options there are its own."""
        return [] if ctx.params.get("torchrun") else super().shell_complete(ctx, incomplete)


def split_tail(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own words, and the words of the command or of the training script.

    ``--torchrun`` stays among our own words when it has a value; the script itself is the value.
    """
    for at, word in enumerate(args):
        if word == "--":
            return list(args[:at]), list(args[at:])
        if word == "--torchrun" and at + 1 < len(args):
            return [*args[:at], f"--torchrun={args[at + 1]}"], list(args[at + 2 :])
        if word.startswith("--torchrun="):
            return list(args[: at + 1]), list(args[at + 1 :])
    return list(args), []


@gsched_command(NAME, cls=GsubCommand, epilog=_EPILOG)
@click.argument("operands", nargs=-1, metavar="[SCRIPT | - | -- COMMAND...]")
@gsub_options
@connected
def gsub(head: HeadClient, /, **given: object) -> int:
    """Submit a job: a script, a command after --, or a training script for torchrun.

    Prints the job id on stdout. A script can contain options, too, in #PBS or #GSCHED lines before
    its first command; options on the command line take precedence.
    """
    request = _Request.from_click(given)
    place = _place()
    options = read_options(given, place)
    _check_interactive(request, options, given)
    if request.interactive:
        head.transport.address.check_sessions()
    script = _script(request)
    warnings = _Warnings(silent=request.as_json)
    read = ScriptOptions()
    if script:
        warnings.add(script.warnings)
        read = read_directives(script, prefix=request.prefix, place=place)
        warnings.add(read.warnings)
        options = merged(options, read.stated)
    if "workdir" not in options and spoken().starts_at_home:
        options["workdir"] = absolute("~", place)
    job = _job(request, options, script, place, warnings)
    job = msgspec.structs.replace(job, environment=job.environment | read.environment)
    has_place = not request.dry_run or job.stage_in or job.stage_out
    if head.transport.address.path and has_place:
        job = msgspec.structs.replace(job, place=submit_place(options, place))
    job = _with_snapshot(job, request, options, head, warnings)
    reply = _submitted(head, job, dry_run=request.dry_run)
    result = reply.results[0]
    if result.error is not None:
        raise read.located(error_from(result.error))
    warnings.add(result.warnings)
    if request.dry_run:
        return _report_dry_run(job, result, warnings.texts, as_json=request.as_json)
    job_id = (format_array_id if job.array else format_job_id)(result.id, reply.server)
    return _after_submission(
        head, request, options, job_id=job_id, result=result, server=reply.server, warnings=warnings
    )


def _submitted(head: HeadClient, job: SubmitJob, *, dry_run: bool) -> SubmitReply:
    """Submit a job; Ctrl-C says whether the head may have it."""
    head.transport.has_sent = False
    try:
        return head.submit([job], dry_run=dry_run)
    except KeyboardInterrupt:
        if not dry_run and head.transport.has_sent:
            words = "interrupted before the head answered: the job may be submitted; see gstat"
        else:
            words = "interrupted: no job was submitted"
        print_note(words, command=command_name())
        raise


def _after_submission(  # noqa: PLR0913 - what is known of the job
    head: HeadClient,
    request: "_Request",
    options: StatedOptions,
    *,
    job_id: str,
    result: SubmitResult,
    server: str,
    warnings: "_Warnings",
) -> int:
    """Print the job's id and do what the user waits for; return the exit code."""
    if request.interactive:
        from gsched.cli.session.attaching import attach  # late: most submit batch jobs

        return attach(head, result.id, shown=job_id, is_own=True)
    follows = request.wait or request.watch or combined(options["extras"] or ()).block
    if not follows:
        if request.as_json:
            print_json(
                {"id": result.id, "job_id": job_id, "server": server, "warnings": warnings.texts}
                | _plan_of(result)
            )
        else:
            _tell_id(job_id, result, options)
        return 0
    # Late, as most only submit; before the id, after which users may interrupt the command.
    from gsched.cli.follow import wait_for_one

    def announce() -> None:
        if request.as_json:
            print_note(job_id, command=command_name())  # stdout is for one document, at the end
        else:
            _tell_id(job_id, result, options)

    watch, as_json = request.watch, request.as_json
    return wait_for_one(head, result.id, announce=announce, watch=watch, as_json=as_json)


def _tell_id(job_id: str, result: SubmitResult, options: StatedOptions) -> None:
    if not options["no_id"]:
        print(job_id, flush=True)
    _tell_plan(result)


def _plan_of(result: SubmitResult) -> dict[str, object]:
    """Return what the head expects of a training, for JSON."""
    names = ("deadline_s", "planned_gpus", "predicted_end_s", "meets_deadline", "late_reason")
    return {name: getattr(result, name) for name in names}


def _has_plan(result: SubmitResult) -> bool:
    return result.deadline_s is not None or result.predicted_end_s is not None


def _tell_plan(result: SubmitResult) -> None:
    """Print on stderr what the head expects of a training; stdout is for the id alone."""
    if not _has_plan(result):
        return
    from gsched.cli.submit.deadline import planned_words  # late: most jobs have no plan

    print_note(planned_words(result, now_s=SystemClock().wall_s()), command=command_name())


def _report_dry_run(
    job: SubmitJob, result: SubmitResult, warnings: Sequence[str], *, as_json: bool
) -> int:
    """Print what would be submitted, and what would become of it; return the exit code."""
    if as_json:
        start_s = result.predicted_start_s
        print_json(
            {"dry_run": True, "job": job, "predicted_start_s": start_s, "warnings": warnings}
            | {"start": result.start}
            | _plan_of(result)
        )
        return 0
    print(f"would submit: {job.name} ({job.launch}) in {job.workdir}")
    print(f"resources: {','.join(job.resources) or 'defaults'}")
    if result.start is not None or result.predicted_start_s is not None:
        from gsched.cli.times import basis_words, format_start, local_times

        now_s = SystemClock().wall_s()
        words = format_start(result.start, result.predicted_start_s, now_s=now_s)
        words = local_times(words, now_s=now_s)
        print(f"expected start: {words}")
        if result.start is not None and (basis := basis_words(result.start)):
            print(f"    {basis}")
    if _has_plan(result):
        from gsched.cli.submit.deadline import planned_words

        print(f"plan: {planned_words(result, now_s=SystemClock().wall_s())}")
    return 0


def _check_interactive(
    request: "_Request", options: StatedOptions, given: dict[str, object]
) -> None:
    """Refuse what does not go with an interactive job, or only with one.

    Raises:
        UsageError: there is something.
    """
    if request.interactive:
        from gsched.cli.session.console import require_terminal  # late: most submit batch jobs
        from gsched.cli.submit.interactive import check_combination

        check_combination(given)
        if not request.dry_run:
            require_terminal("an interactive job (-I)")
        return
    for option, is_given in (
        ("-x", request.executes),
        ("--detach-timeout", "detach_timeout" in options),
    ):
        if is_given:
            raise UsageError(f"{option} is for interactive jobs", hint="add -I")


def _with_snapshot(
    job: SubmitJob,
    request: "_Request",
    options: StatedOptions,
    head: HeadClient,
    warnings: "_Warnings",
) -> SubmitJob:
    if not options["snapshot"]:
        return job
    from gsched.cli.submit.snapshot import with_snapshot  # late: few ask for one

    job, notes = with_snapshot(job, head, dry_run=request.dry_run)
    warnings.add(notes)
    return job


class _Warnings:
    """What the user should know although the job is taken; on stderr, or in the JSON document."""

    __slots__ = ("_silent", "texts")

    def __init__(self, *, silent: bool):
        self._silent = silent
        self.texts: list[str] = []

    def add(self, texts: Iterable[str]) -> None:
        """Print the texts, or keep them for the document."""
        for text in texts:
            self.texts.append(text)
            if not self._silent:
                print_note(f"warning: {text}", command=command_name())


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says apart from the job's own options.

    Attributes:
        tail: the words behind ``--`` or behind the training script.
        words: those before.
    """

    operands: tuple[str, ...]
    tail: tuple[str, ...]
    words: tuple[str, ...]
    prefix: str | None
    torchrun: str | None
    dry_run: bool
    interactive: bool
    executes: bool
    wait: bool
    watch: bool
    as_json: bool

    @classmethod
    def from_click(cls, given: dict[str, object]) -> "_Request":
        """Sort click's parameters."""
        own = {name: value for name, value in given.items() if name in cls.__struct_fields__}
        return msgspec.convert(own, cls)


def _place() -> SubmitContext:
    cwd = os.getcwd()
    variables = full_environment()
    shown = variables.get("PWD", "")
    # The path the user sees, with its links, as long as it is the same directory.
    if shown.startswith("/") and _leads_here(shown, if_closed=False):
        cwd = shown
    elif not _leads_here(cwd, if_closed=True):
        raise FileNotFoundError(cwd)
    umask = os.umask(0o077)
    os.umask(umask)
    return SubmitContext(cwd=cwd, environment=variables, now_s=SystemClock().wall_s(), umask=umask)


def _leads_here(path: str, *, if_closed: bool) -> bool:
    """Return whether a path leads to the current directory; ``if_closed``: it cannot be seen."""
    try:
        return os.path.samefile(path, ".")
    except PermissionError:
        return if_closed
    except OSError:
        return False


def _script(request: _Request) -> Script | None:
    """Return the batch script, or None where a command or a training script runs.

    Raises:
        UsageError: two of them at once, or a second operand.
    """
    operands = request.operands
    if request.torchrun is not None:
        if operands:
            raise UsageError(
                f"script {operands[0]!r} and --torchrun {request.torchrun} are mutually exclusive",
                hint="give one of them; arguments of the training script follow its name",
            )
        return None
    if not operands and (request.tail or request.interactive):
        return None
    if request.interactive:
        from gsched.cli.submit.interactive import is_command  # late: most submit batch jobs

        is_program = request.executes and is_command(operands, full_environment().get("PATH", ""))
        return None if is_program else read_script(operands[0])
    if len(operands) > 1:
        from gsched.cli.submit.refusals import (  # late: a mistake
            command_without_dashes,
            names_command,
        )

        if names_command(operands[0]):
            raise command_without_dashes(request.words, operands[0])
        raise UsageError(
            f"unexpected operand {operands[1]!r}: only one script can be submitted at a time",
            hint=f'pass arguments to the script with -F "…", or after --: '
            f"gsub {operands[0]} -- {' '.join(operands[1:])}",
        )
    operand = operands[0] if operands else "-"
    if operand == "-" and sys.stdin.isatty():
        print_note(
            "reading the script from the terminal; press Ctrl-D to end it", command=command_name()
        )
    return read_script(operand)


def _work(
    request: _Request,
    options: StatedOptions,
    script: Script | None,
    place: SubmitContext,
    workdir: str,
) -> Workload:
    tail = request.tail[1:] if request.tail[:1] == ("--",) else request.tail
    if request.torchrun is not None:
        return _torchrun_work(request.torchrun, request.tail, options, place, workdir)
    if request.interactive:
        from gsched.cli.submit.interactive import interactive_work  # late, as above

        return interactive_work(
            executes=request.executes, operands=request.operands, tail=tail, script=script
        )
    if script is None:
        if not tail:
            raise UsageError("no command after --", hint="write: gsub -- COMMAND ARGUMENTS")
        return Workload("command", default_name=os.path.basename(tail[0]), arguments=tail)
    arguments = (*(options["script_arguments"] or ()), *tail)
    name = STDIN_NAME if script.where == STDIN_NAME else os.path.basename(script.where)
    return Workload("script", default_name=name, script=script, arguments=arguments)


def _torchrun_work(
    script: str,
    arguments: tuple[str, ...],
    options: StatedOptions,
    place: SubmitContext,
    workdir: str,
) -> Workload:
    path = place.environment.get("PATH", "")
    if "python" in options:
        program = str(options["python"])
        python = find_program(os.path.expanduser(program), path)
    else:
        python = find_program("python", path) or find_program("python3", path)
        program = "python"
    if not python:
        raise UsageError(
            f"--torchrun: {program!r} is not on your PATH",
            hint="activate the environment that has PyTorch, or name its Python with --python",
        )
    if script == "-m":  # a module, as python -m has it
        name = arguments[0] if arguments else "-m"
        return Workload("torchrun", default_name=name, arguments=("-m", *arguments), python=python)
    # From where the user stands, unless it lies only where the job starts.
    full = absolute(script, place)
    if not os.path.exists(full) and os.path.exists(os.path.join(workdir, script)):
        full = os.path.join(workdir, script)
    check_training_script(full)
    return Workload(
        "torchrun",
        default_name=os.path.basename(script),
        arguments=(full, *arguments),
        python=os.path.abspath(python),
    )


def _job(
    request: _Request,
    options: StatedOptions,
    script: Script | None,
    place: SubmitContext,
    warnings: _Warnings,
) -> SubmitJob:
    workdir = options["workdir"] or place.cwd
    check_workdir(workdir)
    variables, notes = job_environment(
        environment=place.environment,
        lists=options["variables"] or (),
        export_all=bool(options["export_all"]),
        workdir=place.cwd,
        queue=options["queue"] or "",
        submit_args=shlex.join(sys.argv[1:]) if spoken().tells_submit_args else "",
    )
    job = make_job(options, _work(request, options, script, place, workdir), place, variables)
    if spoken().is_queue_of_reservation(job.queue):
        job = msgspec.structs.replace(job, queue="", reservation=job.queue)
    warnings.add(compatibility_notes(options, place) + notes)
    if job.array and request.watch:
        raise UsageError(
            "--watch shows the output of one job, and this is an array",
            hint="wait with --wait, and show an element with gpeek 'JOB[0]'",
        )
    if job.movable or job.checkpoint_signal:
        from gsched.cli.submit.elastic_program import elastic_notes  # late: few can migrate

        warnings.add(elastic_notes(job))
    if request.interactive:
        from gsched.cli.submit.interactive import with_terminal  # late, as above

        return with_terminal(job, options["detach_timeout"])
    check_output(job, place, options)
    return job


main = runner(gsub)

if __name__ == "__main__":
    main()
