"""Directives of Slurm, LSF and Grid Engine, as directives of ours. Pure.

``#SBATCH`` lines are read as Slurm means them: resources together, stderr into the file of ``-o``
unless ``-e`` is there. ``#BSUB`` and ``#$`` lines are read one by one, with a warning. A line that
asks for what gsched does not have is named; one that would make another job of it is refused.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from gsched.cli.submit.directives import Directive
from gsched.cli.submit.foreign import (
    NO_LIMIT,
    NO_NAMED_ARRAYS,
    SBATCH,
    TIME,
    DirectiveLine,
    Words,
    advice,
    meaning_of,
    options_of,
)
from gsched.cli.submit.slurm_request import NAMES, OPTIONS, SYNONYMS, SlurmRequest
from gsched.errors import BadScriptError, GschedError, UsageError
from gsched.model.arrays import count, read_array
from gsched.model.ids import INDICES

LINES_MOST: Final = 10  # named one by one; more only fill the screen
#: Options of Slurm without which the job is the same.
_WITHOUT_EFFECT: Final = frozenset(
    {
        *("--wckey", "--get-user-env", "--parsable", "--no-kill", "-k"),
        *("--kill-on-invalid-dep", "--threads-per-core", "--hint", "--verbose", "-v"),
        *("--propagate", "--ntasks-per-core", "--ntasks-per-socket"),
        *("--cores-per-socket", "--distribution", "-m", "--overcommit", "-O", "--quiet", "-Q"),
        *("--cpu-freq", "--profile", "--reboot", "--spread-job", "--clusters", "-M", "--bell"),
        *("--gpu-bind", "--gpu-freq", "--mem-bind", "--cpu-bind", "--accel-bind", "--gres-flags"),
        *("--acctg-freq", "--contiguous", "--switches", "--core-spec", "-S", "--thread-spec"),
        *("--network", "--power", "--prefer", "--use-min-nodes", "--delay-boot", "--time-min"),
        *("--ignore-pbs", "--test-only", "--oversubscribe", "-s", "--extra", "--mcs-label", "-I"),
        *("--extra-node-info", "-B", "--sockets-per-node", "--priority", "--ntasks-per-gpu"),
        *("--kill-on-bad-exit", "--kill-on-invalid-dependency", "--immediate"),
    }
)


class Translated(Struct):
    """What foreign directives come to.

    Attributes:
        environment: variables that Slurm sets from them.
    """

    directives: list[Directive]
    warnings: list[str]
    environment: dict[str, str]


def translated(lines: Sequence[DirectiveLine], *, where: str, submit_dir: str) -> Translated:
    """Return the directives that lines of other schedulers mean.

    Args:
        lines: in their order.
        where: the script's name.
        submit_dir: from where it is submitted: the mark by which nodes set ``SLURM_*``.

    Raises:
        BadScriptError: one cannot be read, or asks for a job array.
    """
    result = Translated([], [], {})
    request, request_line, joins = SlurmRequest(), 0, False
    unknown: list[str] = []
    notes: list[str] = []
    for line in lines:
        try:
            words, resources = _read(line, request)
            notes += _notes(line, where)
        except GschedError as error:
            message = f"{where}:{line.number}: {error.message}"
            raise BadScriptError(message, hint=error.hint) from None
        if resources:
            request_line = request_line or line.number
        if words is None:
            place = f"{where}:{line.number}: {line.mark} " if line.number else ""
            unknown.append(f"{place}{line.text} is ignored; {advice(line)}")
        elif words:
            result.directives.append(Directive(line.number, words))
            joins = joins or (line.mark == SBATCH and "-o" in words)
    if request.text:
        result.directives.append(Directive(request_line, ["-l", request.text]))
    if joins and not any("-e" in each.words for each in result.directives):
        result.directives.append(Directive(lines[0].number, ["-j", "oe"]))
    if any(line.mark == SBATCH for line in lines):
        result.environment = request.environment() | {"SLURM_SUBMIT_DIR": submit_dir}
        result.environment |= _array_environment(result.directives)
    _join_points(lines, result.directives)
    result.warnings = _warnings(lines, unknown, where) + notes
    return result


def _array_environment(directives: Sequence[Directive]) -> dict[str, str]:
    """Return what Slurm tells each task of an array about all of them; empty: there is none."""
    stated = [each.words[each.words.index("-t") + 1] for each in directives if "-t" in each.words]
    if not stated:
        return {}
    try:
        spans = read_array(stated[-1], most=INDICES).spans
    except GschedError:
        return {}  # it is refused where it is read for good
    first, last = min(span.first for span in spans), max(span.last for span in spans)
    numbers = {"MIN": first, "MAX": last, "COUNT": count(spans), "STEP": spans[0].step}
    return {f"SLURM_ARRAY_TASK_{name}": str(number) for name, number in numbers.items()}


def _notes(line: DirectiveLine, where: str) -> list[str]:
    """Return what gsched does not have of a line that it reads."""
    meanings = (meaning_of(line.mark, *_named(line, *each)) for each in options_of(line))
    notes = (each.note for each in meanings if isinstance(each, Words) and each.note)
    return [f"{where}:{line.number}: {note}" for note in notes]


def _join_points(lines: Sequence[DirectiveLine], directives: Sequence[Directive]) -> None:
    """Let mail points of LSF add up: ``-B`` and ``-N`` are lines of their own there."""
    if not any(line.mark == "#BSUB" for line in lines):
        return
    stated = [each for each in directives if each.words[:1] == ["-m"]]
    points = "".join(sorted({each.words[1] for each in stated}))
    for each in stated:
        each.words[1] = points


def _warnings(lines: Sequence[DirectiveLine], unknown: Sequence[str], where: str) -> list[str]:
    others = dict.fromkeys(line.mark for line in lines if line.mark != SBATCH)
    texts = [
        f"{where}: {mark} lines are read as far as gsched knows them; see gsub --dry-run"
        for mark in others
    ]
    texts += unknown[:LINES_MOST]
    if len(unknown) > LINES_MOST:
        texts.append(f"{where}: {len(unknown) - LINES_MOST} more such lines are ignored")
    return texts


def _read(line: DirectiveLine, request: SlurmRequest) -> tuple[list[str] | None, bool]:
    """Return a directive's words, None for an unknown one, and whether it has resources.

    Slurm's resources go into ``request`` instead.
    """
    others: list[tuple[str, str]] = []
    for name, value in (_named(line, *each) for each in options_of(line)):
        if line.mark == SBATCH and name == "--time":
            _check_time(value)
        if line.mark == SBATCH and name in NAMES:
            request.take(name, value)
        else:
            others.append((name, value))
    has_resources = len(others) < len(options_of(line))
    return _words(line, others), has_resources


def _check_time(value: str) -> None:
    if value.lower() not in NO_LIMIT and TIME.fullmatch(value) is None:
        raise UsageError(
            f"--time: invalid time {value!r}", hint="write minutes, HH:MM:SS or D-HH:MM:SS"
        )


def _named(line: DirectiveLine, name: str, value: str) -> tuple[str, str]:
    """Return an option of Slurm by its long name where resources are read together."""
    if line.mark == SBATCH:
        name = SYNONYMS.get(name, OPTIONS.get(name, name))
    return name, value


def _words(line: DirectiveLine, options: Sequence[tuple[str, str]]) -> list[str] | None:
    """Return the words of a directive; None if one of the options is not known.

    Raises:
        BadScriptError: it requests a job array, which would be another job.
    """
    words: list[str] = []
    for name, value in options:
        if line.mark == SBATCH and name in _WITHOUT_EFFECT:
            continue
        meaning = meaning_of(line.mark, name, value)
        if isinstance(meaning, Words):
            words += shlex.split(meaning.pbs)
        elif meaning == NO_NAMED_ARRAYS:
            raise BadScriptError(
                f"{line.mark} {line.text}: {NO_NAMED_ARRAYS}",
                hint="write the range in a #PBS -t line, or on the command line of gsub",
            )
        elif not re.match(r"not needed", meaning):
            return None
    return words
