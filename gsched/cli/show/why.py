"""gstat --why JOB: why a job waits, its position, its predicted start, and a remedy."""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from gsched.cli.common import is_terminal, printable
from gsched.cli.show.jobfields import is_for_its_hold
from gsched.cli.show.render import terminal_width
from gsched.cli.times import basis_words, format_start, local_times
from gsched.model.ids import short_job_id
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.model.wording import counted, outcome_words
from gsched.protocol.job_rows import AheadRow, JobStory

#: How a reason goes on behind the name of its job; others stand behind its state and a colon.
_SENTENCES: Final = (("needs ", ""), ("waits ", ""), ("held ", "is "), ("waiting ", "is "))
_INDENT: Final = 4
_LABEL: Final = 16  # characters of the longest label, with what follows it


def print_why(story: JobStory) -> None:
    """Print a sentence, and a line for each other thing there is to say of a job that waits."""
    width = terminal_width() if is_terminal(sys.stdout) else 0
    print(_wrapped(printable(why_sentence(story)), width, indent=_INDENT))
    for label, text in why_lines(story):
        head = f"{label}:" if label else ""
        line = f"{'':{_INDENT}}{head:{_LABEL}}{printable(text)}"
        print(_wrapped(line, width, indent=_INDENT + _LABEL))


def _wrapped(text: str, width: int, *, indent: int) -> str:
    """Return a line as a terminal of this width shows it best; 0: there is none."""
    if len(text) <= width or not width:
        return text
    return textwrap.fill(
        text,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def why_sentence(story: JobStory) -> str:
    """Return what a job waits for, or what it does: ``Job 7.head (train) needs 2 GPUs ...``."""
    row = story.row
    name = f"Job {row.shown_id(story.server)} ({row.name})"
    cause = local_times(_cause(story))
    if row.outcome is not None:
        cause = outcome_words(row.outcome, walltime_s=row.walltime_s, grace_s=story.grace_s)
    for begins, verb in _SENTENCES:
        if cause.startswith(begins):
            return f"{name} {verb}{cause}"
    return f"{name} is {row.state}" + (f": {cause}" if cause else "")


def why_lines(story: JobStory) -> Iterator[tuple[str, str]]:
    """Yield labels and texts; a line without a label goes on with the one before it."""
    row = story.row
    if story.ahead is not None and row.state == JobState.QUEUED:
        yield "position", _position(story)
        yield from (("", line) for line in _ahead(story))
    starts = _start(story)
    if starts:
        yield "expected start", starts
        basis = "" if row.start is None else basis_words(row.start)
        if basis:
            yield "based on", basis
    if story.remedy:
        yield "remedy", story.remedy
    if story.advice:
        yield "advice", story.advice


def _cause(story: JobStory) -> str:
    return story.cause or story.row.reason  # of a head that does not tell them apart


def _position(story: JobStory) -> str:
    row, ahead = story.row, story.ahead_jobs
    place = f"{(story.ahead or 0) + 1} in queue {row.queue}"
    if not story.ahead:
        return f"{place}, no jobs ahead"
    many = f"{place}, {counted(story.ahead, 'job')} ahead"
    if ahead is None:  # of a head that does not name them
        return many
    gpus = f" and {counted(ahead.gpus, 'GPU')}" if ahead.gpus else ""
    return f"{many} with {counted(ahead.cpus, 'CPU')}{gpus} in total"


def _ahead(story: JobStory) -> Sequence[str]:
    """Return which jobs are ahead: who, and how much; aligned."""
    if story.ahead_jobs is None or not story.ahead:
        return ()
    first = story.ahead_jobs.first
    cells = [(short_job_id(each.id), each.name, each.user, _request(each)) for each in first]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    more = story.ahead - len(first)
    return [*lines, f"and {more} more"] if more > 0 else lines


def _request(each: AheadRow) -> str:
    words = [counted(each.cpus, "CPU")]
    if each.gpus:
        words.append(counted(each.gpus, "GPU"))
    if each.places > 1:
        words.append(counted(each.places, "chunk"))
    if each.walltime_s:
        words.append(f"walltime {format_duration(each.walltime_s)}")
    if each.priority:
        words.append(f"priority {each.priority}")
    return ", ".join(words)


def _start(story: JobStory) -> str:
    """Return when the job starts, with the uncertainty; a reason that was told is not repeated."""
    row, cause = story.row, _cause(story)
    words = format_start(row.start, row.predicted_start_s, now_s=story.now_s)
    unknown = "" if row.start is None else row.start.unknown
    if is_for_its_hold(row.state, unknown):
        return "cannot be predicted before it is released"
    if unknown and words.endswith(f": {unknown}") and (unknown in cause or cause in unknown):
        words = words.removesuffix(f": {unknown}")
    return local_times(words)
