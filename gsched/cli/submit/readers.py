"""What reads the values of gsub's options: each once, where it stands.

A reader takes a value as its user wrote it, and where the job is submitted. It raises a
`GschedError` of a value that cannot be. What few jobs need is imported late.
"""

import os
import pwd
import re
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gsched.cli.dialect import spoken
from gsched.cli.submit.job_environment import parse_variables
from gsched.cli.submit.place import SubmitContext, absolute
from gsched.cli.times import parse_start_time, read_duration_s
from gsched.errors import InvalidRequestError, NotPermittedError, UnknownUserError, UsageError
from gsched.model.limits import MAX_NAME
from gsched.model.mail import checked_points, checked_recipients
from gsched.model.patterns import pattern
from gsched.model.units import parse_count, parse_duration_s, parse_interval_s, parse_size_bytes

if TYPE_CHECKING:
    from gsched.cli.submit.deadline import Deadline
    from gsched.model.job import EarlySignal

_JOIN: Final = {"o": "oe", "e": "eo", "n": "n"}
_KEEP: Final = pattern(r"n|d?[oe]{1,2}d?|d")
_EARLY_MOST_S: Final = 65_535.0  # Slurm's limit


class Output(NamedTuple):
    """Where output goes: the path, as it was written, and whether a host stands before it."""

    path: str
    text: str
    names_host: bool


def _of_text(read: Callable[[str], Any]) -> Callable[[str, SubmitContext], Any]:
    return lambda text, _place: read(text)


#: Readers that look at nothing but the text.
duration_s: Final = _of_text(parse_duration_s)
interval_s: Final = _of_text(parse_interval_s)
count: Final = _of_text(parse_count)
variables: Final = _of_text(parse_variables)
appends: Final = _of_text(lambda text: text == "append")
queue: Final = _of_text(lambda text: text.partition("@")[0])  # of queue@server


# --- names and moments ---


def job_name(text: str, _place: SubmitContext) -> str:
    """Return the name of a job, of ``-N``, which is one word.

    Raises:
        UsageError: blanks or control characters in it, of OpenPBS also slashes, or too long.
    """
    refused = spoken().refused_in_names
    if not text or not text.isprintable() or set(refused) & set(text):
        slashes = " or slashes" if "/" in refused else ""
        raise UsageError(
            f"-N: invalid job name {text!r}",
            hint=f"use one word of at most {MAX_NAME} characters, without blanks{slashes}",
        )
    if len(text) > MAX_NAME:
        raise UsageError(
            f"-N: the job name has {len(text)} characters",
            hint=f"use one word of at most {MAX_NAME} characters",
        )
    return text


def default_name(text: str) -> str:
    """Return the name of a job that has none: one word, made of its script's or program's name."""
    words = "".join(each if _is_word(each) else "_" for each in text)
    return words[:MAX_NAME] or "job"


def _is_word(text: str) -> bool:
    """Return whether a listing shows ``text`` as one word, and a file can have it in its name."""
    return text != "" and text.isprintable() and not {" ", "/"} & set(text)


def start_after(text: str, place: SubmitContext) -> float:
    """Return the earliest start, seconds since the epoch."""
    return parse_start_time(text, now_s=place.now_s)


def rerunnable(text: str, _place: SubmitContext) -> bool:
    """Return whether a job is rerunnable, of ``-r``.

    Raises:
        UsageError: neither y nor n.
    """
    if text not in {"y", "Y", "n", "N"}:
        raise UsageError(f"-r: invalid value {text!r}", hint="write y or n")
    return text not in {"n", "N"}


def own_user(text: str, _place: SubmitContext) -> str:
    """Return the user of ``-u``: the head runs jobs as the users who submit them.

    Raises:
        UnknownUserError: no such user here.
        NotPermittedError: somebody else.
    """
    user = text.split(",", maxsplit=1)[0].partition("@")[0]
    try:
        uid = pwd.getpwnam(user).pw_uid if text else os.getuid()
    except KeyError:
        raise UnknownUserError(f"-u: unknown user {user!r}", hint="omit -u") from None
    if uid != os.getuid():
        raise NotPermittedError(
            f"-u {user}: jobs run as the submitting user", hint=f"omit -u, or submit as {user}"
        )
    return user


# --- numbers ---


def walltime(text: str, _place: SubmitContext) -> str:
    """Return a walltime that can be read, as it stands: it is a part of the request."""
    parse_duration_s(text)
    return text


def memory(text: str, _place: SubmitContext) -> str:
    """Return a size that can be read, as it stands."""
    parse_size_bytes(text)
    return text


def duration_or_none_s(text: str, _place: SubmitContext) -> float:
    """Return a time in seconds, 0 for ``none``."""
    return 0.0 if text == "none" else parse_duration_s(text)


def samples(text: str, _place: SubmitContext) -> int:
    """Return a number of samples such as ``4096`` or ``4k``."""
    from gsched.cli.submit.sections import whole_samples

    return whole_samples(parse_count(text))


# --- paths and output ---


def output(text: str, place: SubmitContext) -> Output:
    """Return the absolute path of ``[host:]path``; empty for the default.

    A relative path is taken from the directory of submission, with a host from the user's home.

    Raises:
        UsageError: a host without a path.
    """
    host, colon, path = text.partition(":")
    names_host = bool(colon) and "/" not in host
    if not names_host:
        return Output(absolute(text, place) if text else "", text, names_host=False)
    if not path:
        raise UsageError(f"-o or -e: {text!r} names a host but no path", hint="write HOST:PATH")
    path = os.path.join(os.path.expanduser("~"), os.path.expanduser(path))
    return Output(path, text, names_host=True)


def join(text: str, _place: SubmitContext) -> str:
    """Return how output is joined, of ``-j``: the first letter is the file that gets both.

    Raises:
        UsageError: ``n`` beside another letter, or no such letter.
    """
    if text not in {"n", "o", "e", "oe", "eo"}:
        raise UsageError(
            f"-j: invalid value {text!r}",
            hint="valid: oe (both into stdout), eo (both into stderr), n",
        )
    return _JOIN[text[0]]


def kept(text: str, _place: SubmitContext) -> str:
    """Return which of ``o`` and ``e`` ``-k`` keeps on the execution host.

    OpenPBS's ``d`` asks for what gsched does anyway: output is written straight to its files, or
    returns while the job runs. With ``n`` it returns at the end, as with Torque.

    Raises:
        UsageError: an unknown value.
    """
    if not _KEEP.fullmatch(text):
        raise UsageError(f"-k: invalid value {text!r}", hint="valid: e, o, eo, n; d behind them")
    return "" if "d" in text else text


def mail_points(text: str, _place: SubmitContext) -> str:
    """Return the letters of ``-m``: when to send mail.

    Raises:
        UsageError: an unknown letter, or ``n`` or ``p`` beside others.
    """
    try:
        return checked_points(text)
    except InvalidRequestError as error:
        raise UsageError(error.message, hint=error.hint) from None


def recipients(text: str, _place: SubmitContext) -> str:
    """Return the recipients of ``-M``; where unknown ones are only warned of, the head does.

    Raises:
        UsageError: too many, or one that is no address.
    """
    try:
        if not spoken().ignores_unknown:
            checked_recipients(text)
    except InvalidRequestError as error:
        raise UsageError(error.message, hint=error.hint) from None
    return text


# --- what runs ---


def shell(text: str, place: SubmitContext) -> str:
    """Return the path in ``path[@host],…`` that names no host, or the first one.

    Raises:
        UsageError: no such program.
    """
    entries = text.split(",")
    chosen = next((entry for entry in entries if "@" not in entry), entries[0].partition("@")[0])
    path = os.path.expanduser(chosen)
    if not path or path.startswith("/"):
        return path
    found = find_program(path, place.environment.get("PATH", ""))
    if not found:
        raise UsageError(f"-S: shell {chosen!r} is not on your PATH", hint="give its full path")
    return found


def find_program(name: str, path: str) -> str:
    """Return where a program lies on ``path``, or nothing; links are kept, as a venv needs it.

    `shutil.which` does the same, but importing it costs 3 ms.
    """
    if "/" in name:
        return name if os.access(name, os.X_OK) and not os.path.isdir(name) else ""
    for directory in path.split(":"):
        candidate = os.path.join(os.path.abspath(directory or "."), name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return ""


def script_arguments(text: str, _place: SubmitContext) -> tuple[str, ...]:
    """Return the words of ``-F``, split as a shell does.

    Raises:
        UsageError: a quotation mark without its partner.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"-F: {str(error).lower()}: {text!r}") from None


def staged_in(text: str, place: SubmitContext) -> str:
    """Return the path of ``--stage-in``, from the directory of submission."""
    from gsched.cli.submit.staged import path_in, stated_path

    return path_in(stated_path("--stage-in", text, place), place)


def staged_out(text: str, place: SubmitContext) -> str:
    """Return the path of ``--stage-out``, from the directory of submission."""
    from gsched.cli.submit.staged import stated_path

    return stated_path("--stage-out", text, place)


def container_image(text: str, place: SubmitContext) -> str:
    """Return an image, that of a file with its full path."""
    from gsched.cli.submit.sections import image_of

    return image_of(text, place)


def container_mounts(text: str, _place: SubmitContext) -> Sequence[str]:
    """Return the mounts of ``SRC:DST,SRC:DST:ro``."""
    from gsched.cli.submit.sections import mounts_of

    return mounts_of(text)


def container_workdir(text: str, _place: SubmitContext) -> str:
    """Return a directory in the container.

    Raises:
        UsageError: it is not absolute.
    """
    if text and not text.startswith("/"):
        raise UsageError(
            f"--container-workdir: {text!r} is not absolute",
            hint="give its full path in the container",
        )
    return text


# --- arrays, signals, failures ---


def array(text: str, _place: SubmitContext) -> str:
    """Return the indices of an array as the head takes them; those of ``%5`` come from a file."""
    from gsched.cli.submit.sections import checked_array

    return text if text.startswith("%") else checked_array(text)


def each_line(text: str, place: SubmitContext) -> str:
    """Return the lines of a file."""
    from gsched.cli.submit.sections import read_lines

    return read_lines(text, place)


def early_signal(text: str, _place: SubmitContext) -> "EarlySignal":
    """Return what ``USR1``, ``B:USR1@120`` or ``10@5m`` says of ``--signal``.

    Raises:
        UsageError: an unknown signal, or a time that cannot be.
    """
    from gsched.cli.operands import parse_signal
    from gsched.model.job import EarlySignal

    head, colon, rest = text.rpartition(":")
    letters = set(head.upper())
    if (colon and not letters) or letters - {"B", "R"}:
        raise UsageError(f"--signal: invalid value {text!r}", hint="write [B:]SIGNAL[@TIME]")
    name, at, time = rest.partition("@")
    number = parse_signal(name, "--signal")
    if not number:
        raise UsageError("--signal: signal 0 is never sent", hint="write USR1, for example")
    before_s = read_duration_s("--signal", time) if at else 60.0
    if before_s > _EARLY_MOST_S:
        raise UsageError(f"--signal: {time} is too long", hint="at most 65535 seconds")
    return EarlySignal(signal=number, before_s=before_s, script_only="B" in letters)


def checkpoint_signal(text: str, _place: SubmitContext) -> int:
    """Return the number of a signal."""
    from gsched.cli.operands import parse_signal

    return parse_signal(text, "--checkpoint-signal")


def requeue_on(text: str, _place: SubmitContext) -> tuple[str, int | None]:
    """Return the word and the number of ``node-failure:5``.

    Raises:
        UsageError: another word, or no number.
    """
    word, colon, limit = text.partition(":")
    if word != "node-failure" or (colon and not re.fullmatch("[1-9][0-9]{0,3}", limit)):
        raise UsageError(
            f"--requeue-on: invalid value {text!r}",
            hint="write node-failure, or node-failure:5 for at most five restarts in a row",
        )
    return word, int(limit) if colon else None


# --- training ---


def deadline(text: str, place: SubmitContext) -> "Deadline":
    """Return the deadline: a moment, or a time from now."""
    from gsched.cli.submit.deadline import parse_deadline

    return parse_deadline(text, now_s=place.now_s)


def training_file(text: str, place: SubmitContext) -> dict[str, Any]:
    """Return the fields of a workload that a file states."""
    from gsched.cli.submit.deadline import from_file

    return from_file(text, place.cwd)


def gpu_types(text: str, _place: SubmitContext) -> tuple[str, ...]:
    """Return the GPU types of ``a100,t4``; none for ``any``.

    Raises:
        UsageError: an empty name, or ``any`` beside others.
    """
    if text.strip() == "any":
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names) or "any" in names:
        raise UsageError(
            f"--gpu-types: {text!r} is not a list of GPU types",
            hint="write any, or names such as a100,t4: gnodes -v shows the types of this cluster",
        )
    return names


def replica_gpus(text: str, _place: SubmitContext) -> tuple[tuple[str, int], ...]:
    """Return the pairs of ``a100=2,t4=8``.

    Raises:
        UsageError: no type, or no number from 1.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, count = part.strip().partition("=")
        if not name or not equals or not count.isascii() or not count.isdigit() or int(count) < 1:
            raise UsageError(
                f"--replica-gpus: {part!r} is not a GPU type with a number of GPUs",
                hint="write a100=2,t4=8 for a model that is split over 2 or 8 GPUs",
            )
        found[name] = int(count)
    return tuple(sorted(found.items()))
