"""What the options of gsub state, on the command line and in directives alike."""

from collections.abc import Mapping
from typing import Final

from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.rows import ROWS, Row
from gsched.cli.submit.stated import StatedOptions
from gsched.errors import BadResourceError, GschedError, UsageError

# Terms of -l that say how many places there are: those of the command line replace, all together,
# those of the script, because mixed ones would contradict each other.
_PLACE_TERMS = frozenset({"nodes", "select", "ncpus", "procs"})  # place= is merged by its name
_GPU_TERMS = frozenset({"gpus", "ngpus"})  # a range of GPUs replaces these, too
#: Options that `Stated.layout_texts` writes as terms of ``-l``.
_JOINED: Final = ("variables", "extras")
_SUGAR: Final = ("nodes", "cpus", "gpus", "mem", "walltime")


def read_options(given: Mapping[str, object], place: SubmitContext) -> StatedOptions:
    """Return what the parameters of click state about the job, each value read.

    Raises:
        GschedError: a value that cannot be, or two that contradict each other.
    """
    stated = StatedOptions()
    for row in ROWS:
        value = given.get(row.field)
        if row.directive and value is not None and value is not False and value != ():
            stated[row.field] = read_value(row, value, place)
    if stated.any_of("deadline") and stated.any_of("urgency"):
        raise UsageError("--deadline and --urgency are mutually exclusive", hint="give one of them")
    _check_range(stated)
    return stated


def read_value(row: Row, value: object, place: SubmitContext) -> object:
    """Return the value of an option.

    Raises:
        GschedError: it cannot be read; the message begins with the option.
    """
    if row.read is None:
        return value
    try:
        if isinstance(value, tuple):
            return tuple(row.read(each, place) for each in value)
        return row.read(str(value), place)
    except GschedError as error:
        option = row.names.rpartition(" ")[2]
        if error.message.startswith("-") or not isinstance(error, BadResourceError | UsageError):
            raise
        raise type(error)(f"{option}: {error.message}", hint=error.hint) from None


def _check_range(stated: StatedOptions) -> None:
    """Refuse a range of GPUs beside places that are stated in another way.

    Raises:
        UsageError: they contradict each other.
    """
    if "gpus" not in stated or not stated.gpus_most:
        return
    others = ["--nodes"] if "nodes" in stated else []
    terms = (part for text in stated["resources"] or () for part in text.split(","))
    names = (term.partition("=")[0].strip() for term in terms)
    others += [f"-l {name}" for name in names if name in _PLACE_TERMS | _GPU_TERMS]
    if others:
        raise UsageError(
            f"--gpus {stated['gpus']} and {others[0]} are mutually exclusive: each GPU of a "
            "range is a separate chunk, on any node",
            hint="give one of them; --cpus N requests N CPUs for each GPU",
        )


def merged(command_line: StatedOptions, script: StatedOptions) -> StatedOptions:
    """Return what holds when both speak: the command line beats the script, option by option.

    Lists (-l, -v, -W) are joined, the command line's part last, where it wins name by name.
    """
    mine, theirs = command_line.layout_texts, script.layout_texts
    places_max = command_line.gpus_most
    if _PLACE_TERMS & _term_names(mine) or ("gpus" in command_line and script.gpus_most):
        dropped = _PLACE_TERMS | (_GPU_TERMS if command_line.gpus_most else frozenset())
        theirs = tuple(_without(text, dropped) for text in theirs)
    else:
        places_max = script.gpus_most
    both = StatedOptions({**script, **command_line})
    for name in _JOINED:
        if name in both:
            both[name] = (script[name] or ()) + (command_line[name] or ())
    for name in _SUGAR:
        both.pop(name, None)
    both |= {"resources": (*filter(None, theirs), *mine), "places_max": places_max}
    replaced: tuple[str, ...] = ()
    if "gpu_share" in _term_names(mine):
        replaced += ("gpu_share", "share_class")
    if command_line.any_of("deadline", "urgency"):
        replaced += ("deadline", "urgency")
    for name in replaced:
        if name not in command_line:
            both.pop(name, None)
    return both


def _term_names(texts: tuple[str, ...]) -> set[str]:
    return {part.partition("=")[0].strip() for text in texts for part in text.split(",")}


def _without(text: str, names: frozenset[str]) -> str:
    parts = [part for part in text.split(",") if part.partition("=")[0].strip() not in names]
    return ",".join(parts)
