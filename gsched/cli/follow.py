"""Waiting for jobs and reading their output; what gwait, gpeek and gsub --wait share."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import IO

from msgspec import structs

from gsched.cli.common import command_name, print_json, print_note, printable
from gsched.cli.terminal_text import to_stdout
from gsched.cli.times import local_times
from gsched.client import WAIT_RETRY_S, HeadClient, outlast
from gsched.clock import SystemClock
from gsched.errors import GschedError, HeadUnreachableError, InvalidRequestError, TryAgainError
from gsched.head_calls import RETRY_S
from gsched.model.arrays import indices, read_spans
from gsched.model.ids import array_of, short_job_id
from gsched.model.limits import MAX_STORIES
from gsched.model.states import HoldKind, JobState, OutcomeKind
from gsched.model.wording import outcome_words
from gsched.protocol.api import MAX_OUTPUT_CHUNK_BYTES, OutputChunk
from gsched.protocol.job_rows import JobRow, JobStory
from gsched.transport import pause

STDOUT, STDERR = "stdout", "stderr"
SEARCHED_LINES = 300  # of a failed job's error output, in which its error is looked for
_TITLE = "Traceback (most recent call last):"
_RANK = re.compile(r"\[rank\d+\]:")
SEARCHED_ELEMENTS = 2000  # of an array, of which the failed ones are looked for
SHOWN_ELEMENTS = 5
HELD_LOOK_S = 10.0  # how often it is looked whether a job is held
TAIL_LINES = 10  # of a failing job: enough for the last lines of a Python traceback
_LOOK_S = 0.5  # how often a growing file is looked at; the head asks the node each time
_LOOK_IDLE_S = 2.0  # and a job that has not started
_LOOKS_UNTIL_IDLE = 20
_LOOKS_UNTIL_HELD = 5  # of idle ones, until it is looked whether the job is held
_TAIL_WINDOW_BYTES = 16 * 1024
_UNSTARTED = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING})


def exit_status(story: JobStory) -> int:
    """Return what a shell would say of a job that is done; 1 if it ended without an outcome."""
    if story.row.outcome is None:
        return 1
    return story.row.outcome.shell_status & 0xFF


def ending_words(story: JobStory) -> str:
    """Return how a job ended: ``rank 1 on n2 failed with exit code 3``."""
    outcome = story.row.outcome
    if outcome is None:
        return "ended without an outcome"
    return outcome_words(outcome, walltime_s=story.row.walltime_s, grace_s=story.grace_s)


class Teller:
    """Says on stderr why a job does not go on: once for each state of the matter.

    Attributes:
        held: the job, or some elements of it, were held at the last look.
    """

    def __init__(self, head: HeadClient, *, silent: bool) -> None:
        self.held = False
        self._head = head
        self._silent = silent
        self._last_words = ""

    def look(self, story: JobStory) -> None:
        """Look at a job, and say what is new."""
        row = story.row
        words = ""
        self.held = row.state == JobState.HELD and set(story.holds) != {HoldKind.DEPENDENCY}
        if self.held:
            words = f"job {short_job_id(row.id)} is {row.reason}"
        elif row.next_try_s is not None:
            words = f"job {short_job_id(row.id)} waits: {row.reason}"
        elif row.array is not None and row.state != JobState.DONE:
            words = self._of_elements(row.id)
            self.held = bool(words)
        kind = words.partition("; next try")[0]
        if words and kind != self._last_words and not self._silent:
            print_note(local_times(words), command=command_name())
        self._last_words = kind

    def _of_elements(self, array: int) -> str:
        """Return that elements of an array are held, in words: the first of them."""
        rows = self._head.jobs(states=[JobState.HELD], elements=True).jobs
        held = [row for row in rows if array_of(row.id) == array]
        if not held:
            return ""
        more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
        return f"job {short_job_id(held[0].id)}{more} is {held[0].reason}"


def wait_for_head(head: HeadClient) -> None:
    """Let each call wait as long for a head that is restarted as waits for jobs do."""
    head.transport.patience_s = max(head.transport.patience_s, WAIT_RETRY_S)


def wait_and_report(
    head: HeadClient,
    job: str,
    tell: Teller,
    *,
    deadline_s: float | None = None,
    fail_held: bool = False,
) -> JobStory:
    """Return the story of a job when it has ended, at the deadline, or as soon as it is held.

    A head that is restarted meanwhile is waited for, for up to WAIT_RETRY_S.
    """
    wait_for_head(head)
    clock = SystemClock()
    look_s = 0.0  # at first what is so now

    def look() -> JobStory:
        left_s = look_s if deadline_s is None else max(0.0, deadline_s - clock.monotonic_s())
        story = head.wait([job], timeout_s=min(left_s, look_s))[0]
        if story.row.state != JobState.DONE:
            tell.look(story)
        return story

    while True:
        story = outlast(look, until_s=deadline_s)
        is_late = deadline_s is not None and clock.monotonic_s() >= deadline_s
        if story.row.state == JobState.DONE or (fail_held and tell.held) or is_late:
            return story
        look_s = HELD_LOOK_S


def wait_for_one(
    head: HeadClient, job: int, *, announce: Callable[[], None], watch: bool, as_json: bool
) -> int:
    """Announce a job just submitted, wait for its end and return its exit code (gsub --wait)."""
    job_id = str(job)
    try:
        announce()  # who reads the id may interrupt at once
        if watch:
            follow(head, job, stream=STDOUT, out=to_stdout(sys.stdout))
        story = wait_and_report(head, job_id, Teller(head, silent=False))
    except KeyboardInterrupt:
        print_note(
            f"detached: job {job_id} continues; wait for it with gwait {job_id}, or end it with "
            f"gdel {job_id}",
            command=command_name(),
        )
        raise
    status = exit_status(story)
    if as_json:
        print_json({"id": job, "server": story.server, "exit_status": status, "story": story})
    elif status:
        report_failure(head, story)
    return status


def report_failure(head: HeadClient, story: JobStory, *, is_reported: bool = False) -> None:
    """Say on stderr how a job failed, unless it ``is_reported``, with the tail of what it wrote."""
    name = command_name()
    if not is_reported:
        print_note(f"job {story.row.shown_id(story.server)}: {ending_words(story)}", command=name)
    if story.row.array is not None:
        _report_elements(head, story)
        return
    stream = STDOUT if story.join == "oe" else STDERR
    outcome = story.row.outcome
    is_cancelled = outcome is not None and outcome.kind == OutcomeKind.CANCELLED
    if is_cancelled and story.row.started_s is None:
        return  # it has written nothing
    node = outcome.node if outcome is not None and len(story.row.nodes) > 1 else ""
    try:
        chunk, _ = _tail_chunk(head, story.row.id, stream=stream, lines=SEARCHED_LINES, node=node)
    except GschedError as error:
        print_note(f"{stream} of the job cannot be read: {error.message}", command=name)
        return
    text = chunk.data.decode(errors="backslashreplace")
    lines = telling_lines(text, rank=outcome.rank if outcome is not None else None)
    if lines:
        where = f" on {node}" if node else ""
        print_note(f"last lines of {stream}{where}:", command=name)
        for line in lines:
            print(f"  | {printable(line.replace(chr(9), '    '))}", file=sys.stderr)


def _report_elements(head: HeadClient, story: JobStory) -> None:
    """Say which elements of an array failed, the first ones, and what the first has written."""
    assert story.row.array is not None, "it is an array"
    failed: list[JobRow] = []
    every = islice(indices(read_spans(story.row.array.indices)), SEARCHED_ELEMENTS)
    while chunk := list(islice(every, MAX_STORIES)):
        rows = head.jobs([f"{story.row.id}[{index}]" for index in chunk]).jobs
        failed += [row for row in rows if _has_failed(row)]
        if len(failed) >= min(SHOWN_ELEMENTS, story.row.array.failed):
            break
    for row in failed[1:SHOWN_ELEMENTS]:
        assert row.outcome is not None, "it has failed"
        words = f"{short_job_id(row.id)} {outcome_words(row.outcome, walltime_s=row.walltime_s)}"
        print_note(words, command=command_name())
    for row in failed[:1]:
        first = head.job(short_job_id(row.id))
        print_note(f"{short_job_id(row.id)} {ending_words(first)}", command=command_name())
        report_failure(head, first, is_reported=True)


def _has_failed(row: JobRow) -> bool:
    ended = row.outcome
    if row.state != JobState.DONE or ended is None:
        return False
    return bool(ended.shell_status) and ended.kind != OutcomeKind.CANCELLED


def telling_lines(text: str, *, rank: int | None = None) -> list[str]:
    """Return the last lines of an error output that say what went wrong.

    torchrun writes a summary of its own after the error of a rank. Where the text holds Python
    tracebacks, these are the last lines of the last one that is not torchrun's, of the failed rank
    if its lines say of which they are.
    """
    lines = text.splitlines()
    found = [block for block in _tracebacks(lines) if not _is_launchers(block)]
    of_rank = [block for block in found if block[0].startswith(f"[rank{rank}]:")]
    block = (of_rank or found or [lines])[-1]
    return block[-TAIL_LINES:]


def _tracebacks(lines: list[str]) -> Iterator[list[str]]:
    """Yield each traceback: from its title to the line that names the exception."""
    for begin, line in enumerate(lines):
        prefix, title, _ = line.partition(_TITLE)
        if not title or (prefix.strip() and not _RANK.fullmatch(prefix.strip())):
            continue
        block = [line]
        for each in lines[begin + 1 :]:
            if prefix.strip() and not each.startswith(prefix.strip()):
                continue  # of another rank: their lines are mixed
            block.append(each)
            if not each.removeprefix(prefix).startswith((" ", "\t")):
                break
        yield block


def _is_launchers(block: list[str]) -> bool:
    """Return whether a traceback is torchrun's own, which only says that a rank failed."""
    last = block[-1]
    return "ChildFailedError" in last or "SignalException" in last


def whole(head: HeadClient, job: int | str, *, stream: str, node: str = "") -> Iterator[bytes]:
    """Yield all of a job's output as it is now."""
    offset = 0
    while True:
        chunk = read_output(head, job, stream=stream, offset=offset, node=node)
        yield chunk.data
        offset = chunk.offset + len(chunk.data)
        if not chunk.data or offset >= chunk.size_bytes:
            return


def tail(
    head: HeadClient, job: int | str, *, stream: str, lines: int, node: str = ""
) -> Iterator[bytes]:
    """Yield the last ``lines`` lines of a job's output as it is now."""
    chunk, start = _tail_chunk(head, job, stream=stream, lines=lines, node=node)
    yield chunk.data[start:]


def read_output(
    head: HeadClient,
    job: int | str,
    *,
    stream: str,
    offset: int,
    max_bytes: int = MAX_OUTPUT_CHUNK_BYTES,
    node: str = "",
) -> OutputChunk:
    """Return bytes of a job's output: from its node while it runs, then from its file.

    Of jobs that have ended the head says where the file is, which is the user's own and which this
    process, being the user's, can read if it is on this machine. Else its host reads it.

    Raises:
        InvalidRequestError: the job is done and its file cannot be read anywhere.
        TryAgainError: the node cannot be asked, and the file is not here either.
    """
    try:
        chunk = head.output(job, stream=stream, offset=offset, max_bytes=max_bytes, node=node)
    except TryAgainError as error:
        if node:
            raise  # the story tells only where the files of the first node are
        story = head.job(job)
        path = story.stderr_path if stream == STDERR else story.stdout_path
        local = _local_chunk(path, offset, max_bytes)
        if local is None:
            raise
        print_note(f"{error.message}; reading {path} here", command=command_name())
        ended = story.row.state == JobState.DONE
        return structs.replace(local, ended=ended)
    if chunk.size_bytes or not chunk.path:
        return chunk
    local = _local_chunk(chunk.path, offset, max_bytes)
    if local is not None:
        return structs.replace(local, ended=chunk.ended)
    if chunk.ended:
        served = _served_chunk(
            head, job, stream=stream, offset=offset, max_bytes=max_bytes, of=chunk
        )
        if served is not None:
            return served
        raise InvalidRequestError(
            f"job {job} has finished, but its {stream} is not readable here: {chunk.path}",
            hint=f"read it on {chunk.node}, where the job ran",
        )
    return chunk


def _served_chunk(
    head: HeadClient, job: int | str, *, stream: str, offset: int, max_bytes: int, of: OutputChunk
) -> OutputChunk | None:
    """Return bytes of a file of a finished job from its host; None: the head does not know how."""
    chunk = head.output(
        job, stream=stream, offset=offset, max_bytes=max_bytes, node=of.node, finished=True
    )
    return chunk if chunk.served else None


def _local_chunk(path: str, offset: int, max_bytes: int) -> OutputChunk | None:
    """Return bytes of a file of this machine as the head would, or None if it cannot be read."""
    try:
        if not os.path.isfile(path):  # opening a pipe would wait for ever
            return None
        with open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            start = max(0, size_bytes + offset) if offset < 0 else offset
            file.seek(start)
            data = file.read(max_bytes)
    except OSError:
        return None
    return OutputChunk(
        path=path, node="", offset=start, size_bytes=size_bytes, data=data, ended=False
    )


def _tail_chunk(
    head: HeadClient, job: int | str, *, stream: str, lines: int, node: str = ""
) -> tuple[OutputChunk, int]:
    """Return the end of the output and where in it the last ``lines`` lines begin."""
    window = _TAIL_WINDOW_BYTES
    while True:
        chunk = read_output(head, job, stream=stream, offset=-window, max_bytes=window, node=node)
        start = _lines_start(chunk.data, lines)
        if start > 0 or chunk.offset == 0 or window >= MAX_OUTPUT_CHUNK_BYTES:
            return chunk, start
        window = min(window * 4, MAX_OUTPUT_CHUNK_BYTES)


def _lines_start(data: bytes, lines: int) -> int:
    """Return where the last ``lines`` lines of ``data`` begin; 0 if it holds no more than these."""
    if lines <= 0:
        return len(data)
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1


def follow(
    head: HeadClient,
    job: int | str,
    *,
    stream: str,
    out: IO[bytes],
    lines: int | None = None,
    node: str = "",
) -> None:
    """Copy a job's output to ``out`` as it comes, until the job is done.

    Args:
        head: where to ask.
        job: which one; it may still wait.
        stream: ``stdout`` or ``stderr``.
        out: unbuffered or flushed by us.
        lines: begin with this many of the last lines; None: with the first byte.
        node: whose output; empty: that of the job's first node.
    """
    tell = Teller(head, silent=False)
    _until_started(head, job, tell)
    offset = 0
    if lines is not None:
        chunk, start = _tail_chunk(head, job, stream=stream, lines=lines, node=node)
        _copy(out, chunk.data[start:])
        offset = chunk.offset + len(chunk.data)
    quiet = 0
    while True:
        chunk = _output_patiently(head, job, stream=stream, offset=offset, node=node)
        if 0 < chunk.size_bytes < offset:  # the job has truncated its file: begin again
            offset = 0
            continue
        _copy(out, chunk.data)
        if chunk.data:
            offset = chunk.offset + len(chunk.data)
        if offset < chunk.size_bytes and chunk.data:
            continue
        if chunk.ended:
            return
        quiet = 0 if chunk.data else quiet + 1
        if quiet >= _LOOKS_UNTIL_IDLE and quiet % _LOOKS_UNTIL_HELD == 0:
            with contextlib.suppress(HeadUnreachableError):
                tell.look(head.job(job))  # it may be held after a failed start
        pause(_LOOK_S if quiet < _LOOKS_UNTIL_IDLE else _LOOK_IDLE_S)


def _copy(out: IO[bytes], data: bytes) -> None:
    out.write(data)
    out.flush()


def _until_started(head: HeadClient, job: int | str, tell: Teller) -> None:
    """Wait until the job has output to read, and say why it has not: all on a terminal only."""
    last_words = ""
    while True:
        story = head.job(job)
        if story.row.state not in _UNSTARTED or story.attempts:
            return
        words = f"job {story.row.shown_id(story.server)} is {story.row.state}"
        words += f": {local_times(story.row.reason)}" if story.row.reason else ""
        if not os.isatty(sys.stderr.fileno()):
            tell.look(story)
        elif words != last_words:
            print_note(words, command=command_name())
            last_words = words
        pause(_LOOK_IDLE_S)


def _output_patiently(
    head: HeadClient, job: int | str, *, stream: str, offset: int, node: str
) -> OutputChunk:
    """Return the next bytes; a head that restarts meanwhile is waited for, as in `Head.wait`."""
    clock = SystemClock()
    give_up_s = clock.monotonic_s() + RETRY_S
    while True:
        try:
            return read_output(head, job, stream=stream, offset=offset, node=node)
        except HeadUnreachableError:
            if clock.monotonic_s() >= give_up_s:
                raise
        pause(_LOOK_S)
