"""What a submission brings: its size, texts, environment, files and array."""

from collections.abc import Sequence
from typing import Final

from gsched.errors import InvalidRequestError, TryAgainError
from gsched.model import limits
from gsched.model.arrays import Array, read_array
from gsched.model.job import StagedFile, Stated
from gsched.model.states import STATED_HOLDS, LaunchKind
from gsched.model.units import format_size
from gsched.protocol.submissions import SubmitJob
from gschedd.core.apply.jobs import argument_bytes
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State

_TEXTS: Final = limits.texts_of(SubmitJob)
_STATED_TEXTS: Final = tuple(name for name, _ in limits.texts_of(Stated))
_LAUNCHES: Final = frozenset(kind.value for kind in LaunchKind)


def checked_array(
    submitted: SubmitJob, caller: Caller, state: State, settings: Settings
) -> Array | None:
    """Check all that a submission brings, and return the elements of its array, None for a job.

    Its size is checked first, so that further work is bounded.

    Raises:
        InvalidRequestError: it is too much, or cannot be used.
        TryAgainError: the head's memory does not suffice for the arguments.
    """
    check_content(submitted, caller, state)
    return _array_of(submitted, settings)


def check_content(submitted: SubmitJob, caller: Caller, state: State) -> None:
    """Check the size of a submission, its texts, environment and files.

    Raises:
        InvalidRequestError, TryAgainError: as `checked_array`.
    """
    _check_size(submitted)
    _check_values(submitted)
    _check_files(submitted)
    check_arguments(submitted.arguments, caller, state)


def _check_size(submitted: SubmitJob) -> None:
    limits.check_texts(submitted, _TEXTS)
    limits.check_bytes(
        "arguments",
        submitted.arguments,
        count=limits.MAX_ARGUMENTS,
        size_bytes=limits.MAX_ARGUMENT_BYTES,
    )
    limits.check_words("holds", submitted.holds, most=len(STATED_HOLDS), longest=limits.MAX_WORD)
    if limits.byte_count(submitted.lines) > limits.MAX_LINES_BYTES:
        raise InvalidRequestError(f"the lines have more than {limits.MAX_LINES_BYTES} bytes")
    if limits.byte_count(submitted.script) > limits.MAX_SCRIPT_BYTES:
        raise InvalidRequestError(f"the script has more than {limits.MAX_SCRIPT_BYTES} bytes")
    if len(submitted.environment) > limits.MAX_VARIABLES:
        raise InvalidRequestError(
            f"the environment has {len(submitted.environment)} variables, "
            f"{limits.MAX_VARIABLES} are the limit",
            hint="pass single variables with -v instead of all with -V",
        )
    if submitted.training is not None and len(submitted.training.rates) > limits.MAX_RATES:
        raise InvalidRequestError(
            f"{len(submitted.training.rates)} rates of a training, {limits.MAX_RATES} are the limit"
        )


def _check_values(submitted: SubmitJob) -> None:
    check_name(submitted.name)
    if not submitted.workdir.startswith("/"):
        raise InvalidRequestError(
            f"working directory {limits.shown(submitted.workdir)} is not absolute"
        )
    if submitted.launch not in _LAUNCHES:
        raise InvalidRequestError(
            f"launch {submitted.launch!r} is not known", hint="say script, command or torchrun"
        )
    if submitted.launch == LaunchKind.SCRIPT and not submitted.script.strip():
        raise InvalidRequestError("the script is empty", hint="give a script with commands")
    is_shell = submitted.interactive is not None and submitted.launch == LaunchKind.COMMAND
    if submitted.launch != LaunchKind.SCRIPT and not submitted.arguments and not is_shell:
        raise InvalidRequestError(f"a {submitted.launch} job without anything to run")
    _check_environment(submitted)


def _check_environment(submitted: SubmitJob) -> None:
    size = sum(
        limits.byte_count(name) + limits.byte_count(value)
        for name, value in submitted.environment.items()
    )
    if size > limits.MAX_ENVIRONMENT_BYTES:
        raise InvalidRequestError(
            f"the environment has {size} bytes, {limits.MAX_ENVIRONMENT_BYTES} are the limit",
            hint="pass single variables with -v instead of all with -V",
        )
    for name, value in submitted.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidRequestError(
                f"environment variable {limits.shown(name)} has no usable name or value"
            )
    check_texts(
        *(getattr(submitted, name) for name in _STATED_TEXTS),
        *(submitted.workdir, submitted.queue, submitted.checkpoint_dir, submitted.lines),
        *submitted.arguments,
    )


def _check_files(submitted: SubmitJob) -> None:
    """Refuse too many files, and names that cannot be.

    Raises:
        InvalidRequestError: there are, or the job has a snapshot and a container.
    """
    if submitted.snapshot is not None and submitted.container is not None:
        raise InvalidRequestError(
            "a code snapshot cannot be unpacked in a container yet",
            hint="leave out --snapshot or the container",
        )
    place = submitted.place
    if place is not None and len(place.mark) + len(place.kept) > limits.MAX_MARK:
        raise InvalidRequestError(
            "the mark of the directory of submission is too long", hint="leave it out"
        )
    for name, files in (("stagein", submitted.stage_in), ("stageout", submitted.stage_out)):
        if len(files) > limits.MAX_RESOURCE_TEXTS:
            raise InvalidRequestError(
                f"{name}: {len(files)} files; the limit is {limits.MAX_RESOURCE_TEXTS}",
                hint="copy a directory instead",
            )
        for each in files:
            long = (
                len(each.host) > limits.MAX_WORD
                or max(map(len, (each.local, each.remote))) > limits.MAX_PATH
            )
            text = f"{each.local}{each.host}{each.remote}"
            wrong = not (each.local and each.remote) or each.host.startswith("-")
            if long or wrong or "\0" in text:
                raise InvalidRequestError(
                    f"{name}: a file with an invalid name", hint="write LOCAL@HOST:REMOTE"
                )
            _check_passage(submitted, each)


def _check_passage(submitted: SubmitJob, file: StagedFile) -> None:
    """Refuse a file that would pass the head from or to nowhere.

    Raises:
        InvalidRequestError: its host of submission is unknown, or it is not below its directory.
    """
    if file.host:
        return
    if submitted.place is None:
        raise InvalidRequestError(
            f"{file.remote} is staged from the host of submission, which must be in the cluster",
            hint="submit on a login host, or write -W stagein=LOCAL@HOST:PATH",
        )
    top = submitted.submit_dir or submitted.workdir
    parts = file.remote.split("/")
    if file.local != file.remote or "" in parts or "." in parts or ".." in parts:
        raise InvalidRequestError(
            f"{file.remote}: it is not a path below the directory of submission",
            hint="without a host both paths are one, without .. and .",
        )
    if submitted.workdir != top or submitted.container is not None:
        raise InvalidRequestError(
            f"{file.remote}: it is staged for jobs that start in the directory of submission",
            hint="leave out the working directory and the container",
        )


def check_texts(*texts: str | None) -> None:
    """Check paths, arguments and words: the kernel and its programs end a text at a NUL byte.

    Raises:
        InvalidRequestError: one holds a NUL byte.
    """
    for text in texts:
        if text is not None and "\0" in text:
            raise InvalidRequestError(f"{limits.shown(text)} holds a NUL byte")


def check_name(name: str) -> None:
    """Check a job name: a word; nodes write `_` for its slashes in names of files.

    Raises:
        InvalidRequestError: it does not.
    """
    if len(name) > limits.MAX_NAME or name.split() != [name] or not name.isprintable():
        raise InvalidRequestError(
            f"job name {limits.shown(name)} cannot be used",
            hint=f"up to {limits.MAX_NAME} characters without blanks and control characters",
        )


def check_arguments(arguments: Sequence[str], caller: Caller, state: State) -> None:
    """Check that the head has memory for the arguments of one more job of a user.

    Raises:
        TryAgainError: the user's jobs would take too much.
    """
    held_bytes = state.argument_bytes_by_user.get(caller.uid, 0) + argument_bytes(arguments)
    most_bytes = limits.MAX_USER_ARGUMENT_BYTES
    if held_bytes > most_bytes:
        raise TryAgainError(
            f"the arguments of {caller.user}'s unfinished jobs would take {format_size(held_bytes)}"
            f" of the head's memory, and {format_size(most_bytes)} is the limit",
            hint="give long lists in a file, or wait until some jobs have ended",
        )


def _array_of(submitted: SubmitJob, settings: Settings) -> Array | None:
    """Return the elements of an array, None for an ordinary job.

    Raises:
        InvalidRequestError: they cannot be, or say something that an array cannot have.
    """
    if not submitted.array:
        if submitted.lines:
            raise InvalidRequestError("lines without an array", hint="state its indices, too")
        return None
    array = read_array(submitted.array, most=settings.config.head.max_array_elements)
    if submitted.reject_if_late:
        raise InvalidRequestError(
            "an array cannot be refused for its deadline: its elements are judged one by one",
            hint="leave out --reject-if-late",
        )
    if submitted.lines:
        most = max(span.last for span in array.spans)
        lines = submitted.lines.count("\n") + (not submitted.lines.endswith("\n"))
        longest = max(map(limits.byte_count, submitted.lines.split("\n")))
        if longest > limits.MAX_LINE_BYTES:
            raise InvalidRequestError(
                f"a line has {longest} bytes; the limit is {limits.MAX_LINE_BYTES}",
                hint="name a file in the line instead",
            )
        if most >= lines:
            raise InvalidRequestError(
                f"element {most} of the array has no line: there are {lines}",
                hint="the indices are those of the lines, from 0 on",
            )
    return array
