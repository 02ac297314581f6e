"""What a batch script's directives say, and what is told of those that do not count."""

from collections.abc import Sequence

import click

from gsched.cli.common import QuickCommand
from gsched.cli.running import usage_message
from gsched.cli.submit.directives import Directive, Scan, prefixes_for, scan
from gsched.cli.submit.options import merged, read_options
from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.rows import directive_options
from gsched.cli.submit.scripts import Script
from gsched.cli.submit.stated import StatedOptions
from gsched.config.environment import environment
from gsched.errors import BadResourceError, BadScriptError, GschedError


class _DirectiveReader(QuickCommand):
    """Reads the options of a line; click would look at the default of each of the others, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a line into the parameters of the context."""
        values, rest, given = self.make_parser(ctx).parse_args(args)
        for parameter in dict.fromkeys(given):
            parameter.handle_parse_result(ctx, values, rest)
        ctx.args = rest
        return rest


class ScriptOptions:
    """The directives of a script, read.

    Attributes:
        stated: what they state together.
        warnings: about lines without effect.
        environment: variables for the job, of a script for Slurm.
    """

    __slots__ = ("_resources", "environment", "stated", "warnings")

    def __init__(self) -> None:
        self.stated = StatedOptions()
        self.warnings: list[str] = []
        self.environment: dict[str, str] = {}
        self._resources: list[tuple[str, tuple[str, ...]]] = []  # where, and texts of -l

    def add(self, where: str, stated: StatedOptions) -> None:
        """Add what one directive states; later ones win."""
        self._resources.append((where, stated.layout_texts))
        self.stated = merged(stated, self.stated)

    def located(self, error: GschedError) -> GschedError:
        """Return an error of the head with the line that names the resource that it is about."""
        if not isinstance(error, BadResourceError):
            return error
        for where, texts in self._resources:
            names = {term.partition("=")[0].strip() for text in texts for term in text.split(",")}
            if any(f"{name!r}" in error.message for name in names):
                return BadScriptError(f"{where}: {error.message}", hint=error.hint)
        return error


def read_directives(script: Script, *, prefix: str | None, place: SubmitContext) -> ScriptOptions:
    """Return what the script's directives say.

    Args:
        script: the script.
        prefix: of ``-C``.
        place: of submission.

    Raises:
        BadScriptError: an option that is none, or a bad value; the file and the line are named.
    """
    read = ScriptOptions()
    prefixes = prefixes_for(prefix, environment("PBS_DPREFIX"))
    found = scan(script.text, prefixes=prefixes, where=script.where)
    if found.late_line:
        late = f"{script.where}:{found.late_line}"
        read.warnings.append(f"{late}: a directive after the first command has no effect")
    directives = [*found.directives, *_of_others(script, found, prefixes, place, read)]
    if not directives:
        return read
    reader = _DirectiveReader("gsub", params=directive_options(), add_help_option=False)
    for directive in directives:
        where = f"{script.where}:{directive.line}"
        try:
            stated = _stated(reader, directive, place)
            check_resources(stated.layout_texts)
        except GschedError as error:
            raise BadScriptError(f"{where}: {error.message}", hint=error.hint) from None
        read.add(where, stated)
    return read


def _of_others(
    script: Script, found: Scan, prefixes: Sequence[str], place: SubmitContext, read: ScriptOptions
) -> Sequence[Directive]:
    """Return what the directives of another scheduler mean, if the script has none of ours.

    Raises:
        BadScriptError: one asks for what gsched does not have, or cannot be read.
    """
    if not any(mark in script.text for mark in ("#SBATCH", "#BSUB", "#$")):
        return ()
    from gsched.cli.submit.foreign import foreign_lines  # late: few scripts have any
    from gsched.cli.submit.foreign_directives import translated

    lines = foreign_lines(script.text, own=prefixes)
    if lines and found.directives:  # it is written for several schedulers
        marks = " and ".join(dict.fromkeys(line.mark for line in lines))
        text = f"{marks} lines are ignored: the script has lines for gsched, too"
        read.warnings.append(f"{script.where}: {text}")
        return ()
    result = translated(lines, where=script.where, submit_dir=place.cwd)
    read.warnings += result.warnings
    read.environment = result.environment
    return result.directives


def _stated(reader: click.Command, directive: Directive, place: SubmitContext) -> StatedOptions:
    """Return what one directive states.

    Raises:
        GschedError: it has an option, an operand or a value that it cannot have.
    """
    words = list(directive.words)
    hint = "correct the directive on that line"
    try:
        context = reader.make_context("gsub", words.copy(), allow_extra_args=True)
    except click.NoSuchOption as error:
        from gsched.cli.submit.refusals import refusal_of  # late: only a mistake needs it

        refused = refusal_of(error.option_name, words, "")
        if refused is not None:
            raise BadScriptError(refused.message, hint=refused.hint) from None
        raise BadScriptError(usage_message(error), hint=hint) from None
    except click.UsageError as error:
        raise BadScriptError(usage_message(error), hint=hint) from None
    if context.args:
        raise BadScriptError(
            f"{context.args[0]!r} is not an option",
            hint="a directive contains only options; quote values that contain blanks",
        )
    return read_options(context.params, place)


def check_resources(texts: Sequence[str]) -> None:
    """Refuse values of resources that cannot be read; which names there are only the head knows.

    Raises:
        BadResourceError: a value that is none, or terms that contradict each other.
    """
    if not texts:
        return
    from gsched.model.request import parse_resources  # late: many scripts ask for nothing

    parse_resources(texts, generic_names=(), warn_unknown=True)
