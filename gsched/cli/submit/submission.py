"""From options to the job the head gets: paths, environment, launch; checked as early as can be."""

import os
import pwd
import re
from collections.abc import Callable

from msgspec import structs

from gsched.cli.dialect import spoken
from gsched.cli.submit.habits import KEPT, kept_streams, notes_of, own_group, with_interval
from gsched.cli.submit.job_environment import parse_variables
from gsched.cli.submit.mail import check_recipients, mail_points
from gsched.cli.submit.options import SubmitOptions
from gsched.cli.submit.place import Place, absolute
from gsched.cli.submit.scripts import Script
from gsched.cli.times import parse_start_time
from gsched.client import new_key
from gsched.errors import BadResourceError, NotPermittedError, UnknownUserError, UsageError
from gsched.model.job import Labels
from gsched.model.units import parse_duration_s, parse_size_bytes
from gsched.protocol.api import SubmitJob

_JOIN = {"o": "oe", "e": "eo", "n": "n"}
_UMASK = re.compile(r"0?[0-7]{1,4}")
_LAYOUT = frozenset({"nodes", "select", "procs", "ncpus", "gpus", "ngpus"})
#: Attributes of Torque and OpenPBS that ``-W`` takes, and why they change nothing.
_WITHOUT_EFFECT = {
    "group_list": "jobs run with the group of the submitting process; submit with newgrp or sg",
    "run_count": "attempts are counted from 1",
    "sandbox": "jobs start in their working directory",
    "suppress_email": "it counts mails of one deletion; write -m n for no mail",
    "x": "no scheduler extension reads it",
}
#: Attributes whose values are lists: their items follow without the name.
_LISTS = frozenset({"depend", "stagein", "stageout"})
_NAME_LENGTH_MOST = 236  # PBS's own limit


class Work:
    """What is to run.

    Attributes:
        launch: ``script``, ``command`` or ``torchrun``.
        script: the script, for ``script``.
        arguments: the command and its arguments, the training script and its, or the script's.
        python: for ``torchrun``.
        default_name: of the job.
    """

    __slots__ = ("arguments", "default_name", "launch", "python", "script")

    def __init__(
        self,
        launch: str,
        *,
        default_name: str,
        script: Script | None = None,
        arguments: tuple[str, ...] = (),
        python: str = "",
    ):
        self.launch = launch
        self.script = script
        self.arguments = arguments
        self.python = python
        self.default_name = default_name


class Extras:
    """What ``-W`` said. ``umask`` is None and ``block`` False where it said nothing.

    ``notes`` tell of attributes without effect; ``depends`` are dependencies as they were stated.
    """

    __slots__ = ("block", "depends", "notes", "stage_in", "stage_out", "umask")

    def __init__(
        self,
        *,
        umask: int | None = None,
        block: bool = False,
        depends: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        stage_in: tuple[str, ...] = (),
        stage_out: tuple[str, ...] = (),
    ):
        self.stage_in = stage_in
        self.stage_out = stage_out
        self.umask = umask
        self.block = block
        self.depends = depends
        self.notes = notes


def make_job(
    options: SubmitOptions, work: Work, place: Place, environment: dict[str, str]
) -> SubmitJob:
    """Return the job that the options state.

    Raises:
        UsageError: a value that cannot be; the message names the option.
        NotPermittedError: ``-u`` with another user.
    """
    refuse_other_user(options.users)
    extras = parse_extras(options.extras)
    workdir = absolute(options.workdir, place) if options.workdir else place.cwd
    kept = kept_streams(options.keep)
    stdout_path = KEPT if "o" in kept else output_path(options.stdout, place)
    stderr_path = KEPT if "e" in kept else output_path(options.stderr, place)
    options = with_interval(options)
    if workdir != place.cwd:
        # Output belongs to where the user submits, wherever the job starts.
        stdout_path = stdout_path or place.cwd.rstrip("/") + "/"
        stderr_path = stderr_path or place.cwd.rstrip("/") + "/"
    job = SubmitJob(
        key=new_key(),
        name=job_name(options.name, work.default_name),
        workdir=workdir,
        resources=options.resource_texts,
        queue=queue_of(options.queue),
        priority=options.priority or 0,
        start_after_s=_start_after_s(options.start_after, place),
        rerunnable=rerunnable_of(options.rerunnable),
        stdout_path=stdout_path,
        stderr_path=stderr_path,
        join=join_of(options.join),
        umask=place.umask if extras.umask is None else extras.umask,
        shell=shell_of(options.shell, place),
        launch=work.launch,
        script=work.script.text if work.script else "",
        arguments=work.arguments,
        every_node=options.every_node,
        exclusive=options.exclusive,
        python=work.python,
        grace_s=None if options.grace is None else parse_duration_s(options.grace),
        mail_points=mail_points(options.mail_points),
        mail_to=options.mail_to or "",
        notify_url=options.notify or "",
        kind=options.kind or "",
        submit_dir=place.cwd,
        warn_unknown=spoken().ignores_unknown,
        environment=environment,
        holds=("user",) if options.hold else (),
        places_max=options.gpus_most,
        movable=options.elastic,
        profile=options.profile,
        reject_if_late=options.reject_if_late,
        depends=(*extras.depends, *([options.dependency] if options.dependency else ())),
    )
    job = structs.replace(job, append=options.open_mode == "append", **_labels(options))
    if extras.stage_in or extras.stage_out:
        from gsched.cli.submit.staging import staged_files  # late: few stage files

        job = structs.replace(
            job,
            stage_in=staged_files("stagein", extras.stage_in),
            stage_out=staged_files("stageout", extras.stage_out),
        )
    if options.signal is not None:
        from gsched.cli.submit.early_signal import early_signal  # late: few ask for one

        job = structs.replace(job, early_signal=early_signal(options.signal))
    if options.speaks_of_container:
        from gsched.cli.submit.container import container_of  # late: few jobs have one

        job = structs.replace(job, container=container_of(options, place))
    if options.array is not None or options.each_line is not None:
        from gsched.cli.submit.array import with_array  # late: few submit arrays

        job = with_array(job, options, place)
    if options.speaks_of_saving:
        from gsched.cli.submit.checkpointing import with_saving  # late: few have checkpoints

        job = with_saving(job, options, place)
    if options.speaks_of_adaptation:
        from gsched.cli.submit.adaptive import with_adaptive  # late, as above

        job = with_adaptive(job, options)
    return with_profile(job, options, place) if options.speaks_of_training else job


def _labels(options: SubmitOptions) -> dict[str, object]:
    """Return the labels that are given; an option has the name of its label."""
    stated = {name: getattr(options, name) for name in Labels.__struct_fields__}
    stated["account"] = options.project if options.account is None else options.account
    return {name: value for name, value in stated.items() if value is not None}


def with_profile(job: SubmitJob, options: SubmitOptions, place: Place) -> SubmitJob:
    """Return a job with what the options say of its training and deadline.

    Raises:
        GschedError: a value that cannot be; the message names the option.
    """
    from gsched.cli.submit.deadline import (  # late: few have one
        Deadline,
        parse_deadline,
        training_of,
    )

    if options.deadline is not None and options.urgency is not None:
        raise UsageError("--deadline and --urgency are mutually exclusive", hint="give one of them")
    deadline = Deadline()
    if options.deadline is not None:
        deadline = parse_deadline(options.deadline, now_s=place.now_s)
    return structs.replace(
        job,
        deadline_s=deadline.at_s,
        deadline_after_s=deadline.after_s,
        urgency=options.urgency or "",
        training=training_of(options, cwd=place.cwd),
    )


def check_range(options: SubmitOptions) -> None:
    """Refuse a range of GPUs beside places that are said in another way.

    Raises:
        UsageError: they contradict each other.
    """
    if options.gpus is None or not options.gpus_most:
        return
    others = [] if options.nodes is None else ["--nodes"]
    terms = (
        part.partition("=")[0].strip() for text in options.resources for part in text.split(",")
    )
    others += [f"-l {name}" for name in terms if name in _LAYOUT]
    if others:
        raise UsageError(
            f"--gpus {options.gpus} and {others[0]} are mutually exclusive: each GPU of a range is "
            "a separate chunk, on any node",
            hint="give one of them; --cpus N requests N CPUs for each GPU",
        )


def check_values(options: SubmitOptions, place: Place) -> None:
    """Refuse a value that can be seen wrong by itself, so that its directive can be named.

    Raises:
        GschedError: as the functions that read the values for good.
    """
    refuse_other_user(options.users)
    parse_extras(options.extras)
    if options.name is not None:
        job_name(options.name, "")
    output_path(options.stdout, place)
    output_path(options.stderr, place)
    shell_of(options.shell, place)
    _start_after_s(options.start_after, place)
    rerunnable_of(options.rerunnable)
    join_of(options.join)
    mail_points(options.mail_points)
    if not spoken().ignores_unknown:  # else the head warns of them
        check_recipients(options.mail_to)
    compatibility_notes(options, place)
    for text in options.variables:
        parse_variables(text)
    check_range(options)
    if options.signal is not None:
        from gsched.cli.submit.early_signal import early_signal  # late, as above

        early_signal(options.signal)
    if options.speaks_of_container:
        from gsched.cli.submit.container import container_of  # late, as above

        container_of(options, place, is_all=False)
    if options.array is not None and not options.array.startswith("%"):
        from gsched.cli.submit.array import checked_array  # late: few submit arrays

        checked_array(options.array)
    if options.speaks_of_saving:
        from gsched.cli.submit.checkpointing import with_saving  # late, as above

        with_saving(SubmitJob(key="", name="", workdir=""), options, place)
    if options.speaks_of_training:
        with_profile(SubmitJob(key="", name="", workdir=""), options, place)
    _check_by("--grace", options.grace, parse_duration_s)
    _check_by("--walltime", options.walltime, parse_duration_s)
    _check_by("--mem", options.mem, parse_size_bytes)


def _check_by(option: str, stated: str | None, parse: Callable[[str], float]) -> None:
    if stated is None:
        return
    try:
        parse(stated)
    except BadResourceError as error:
        raise BadResourceError(f"{option}: {error.message}", hint=error.hint) from None


def compatibility_notes(options: SubmitOptions, place: Place) -> list[str]:
    """Return a sentence for each option that gsched reads but that changes nothing.

    Raises:
        UsageError: ``-k`` with a value that nobody knows.
    """
    notes = list(parse_extras(options.extras).notes)
    notes += notes_of(options)
    if options.start_after is not None and _start_after_s(options.start_after, place) < place.now_s:
        notes.append(f"-a {options.start_after} is in the past: the job can start at once")
    return notes


def refuse_other_user(users: str | None) -> None:
    """Refuse ``-u`` with anyone but the caller: the head runs jobs as the users who submit them.

    Raises:
        UnknownUserError: no such user here.
        NotPermittedError: somebody else.
    """
    if not users:
        return
    user = users.split(",")[0].partition("@")[0]
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise UnknownUserError(f"-u: unknown user {user!r}", hint="omit -u") from None
    if uid != os.getuid():
        raise NotPermittedError(
            f"-u {user}: jobs run as the submitting user",
            hint=f"omit -u, or submit as {user}",
        )


def job_name(stated: str | None, default: str) -> str:
    """Return the job's name: ``-N``, which must be one word, or the default made one.

    Raises:
        UsageError: blanks or control characters in ``-N``, of OpenPBS also slashes, or too long.
    """
    if stated is None:
        words = "".join(each if _is_word(each) else "_" for each in default)
        return words[:_NAME_LENGTH_MOST] or "job"
    refused = spoken().refused_in_names
    if not stated or not stated.isprintable() or set(refused) & set(stated):
        slashes = " or slashes" if "/" in refused else ""
        raise UsageError(
            f"-N: invalid job name {stated!r}",
            hint=f"use one word of at most 236 characters, without blanks{slashes}",
        )
    if len(stated) > _NAME_LENGTH_MOST:
        raise UsageError(
            f"-N: the job name has {len(stated)} characters",
            hint="use one word of at most 236 characters",
        )
    return stated


def _is_word(text: str) -> bool:
    """Return whether a listing shows ``text`` as one word, and a file can have it in its name."""
    return text != "" and text.isprintable() and not {" ", "/"} & set(text)


def queue_of(stated: str | None) -> str:
    """Return the queue of ``queue``, ``@server`` or ``queue@server``; empty: the default one."""
    return (stated or "").partition("@")[0]


def output_path(stated: str | None, place: Place) -> str:
    """Return the absolute path of ``[host:]path``, or nothing for the default.

    A relative path is taken from the directory of submission, with a host from the user's home.
    """
    if not stated:
        return ""
    host, colon, path = stated.partition(":")
    if not colon or "/" in host:
        return absolute(stated, place)
    if not path:
        raise UsageError(f"-o or -e: {stated!r} names a host but no path", hint="write HOST:PATH")
    if path.startswith(("/", "~")):
        return os.path.expanduser(path)
    return os.path.join(os.path.expanduser("~"), path)


def names_host(stated: str | None) -> bool:
    """Return whether an output path has a host before it."""
    host, colon, _ = (stated or "").partition(":")
    return bool(colon) and "/" not in host


def shell_of(stated: str | None, place: Place) -> str:
    """Return the path in ``path[@host],…`` that names no host, or the first one.

    Raises:
        UsageError: a path that is not absolute.
    """
    if not stated:
        return ""
    entries = stated.split(",")
    chosen = next((entry for entry in entries if "@" not in entry), entries[0].partition("@")[0])
    path = os.path.expanduser(chosen)
    if not path.startswith("/"):
        found = find_program(path, place.environment.get("PATH", ""))
        if not found:
            raise UsageError(f"-S: shell {chosen!r} is not on your PATH", hint="give its full path")
        return found
    return path


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


def parse_extras(texts: tuple[str, ...]) -> Extras:
    """Return what ``-W`` says.

    Raises:
        UsageError: an attribute we do not know, or do not have.
    """
    umask: int | None = None
    block = False
    notes: list[str] = []
    lists: dict[str, list[str]] = {name: [] for name in _LISTS}
    before = ""
    for item in filter(None, (part.strip() for text in texts for part in text.split(","))):
        name, equals, value = item.partition("=")
        if before in _LISTS and (not equals or "@" in name):  # depend=afterok:1,afterany:2
            name, value = before, item
        before = name
        if name == "umask":
            if not _UMASK.fullmatch(value):
                raise UsageError(
                    f"-W umask={value}: {value!r} is not an octal mask", hint="write 027"
                )
            umask = int(value, 8) & 0o777
        elif name == "block":
            block = value.lower() in {"true", "t", "y", "1"}
        elif name in lists:
            lists[name].append(value)
        elif name == "group_list" and own_group() in re.split("[@,]", value):
            pass  # it runs with that one
        elif name in _WITHOUT_EFFECT:
            notes.append(f"-W {name} has no effect: {_WITHOUT_EFFECT[name]}")
        elif spoken().ignores_unknown:
            notes.append(f"-W {name} is unknown and ignored")
        else:
            raise UsageError(
                f"-W: unknown attribute {name!r}",
                hint="valid: depend=TYPE:JOB, umask=MASK, block=true, stagein=, stageout=",
            )
    return Extras(
        umask=umask,
        block=block,
        depends=tuple(lists["depend"]),
        notes=tuple(notes),
        stage_in=tuple(lists["stagein"]),
        stage_out=tuple(lists["stageout"]),
    )


def _start_after_s(stated: str | None, place: Place) -> float:
    return 0.0 if stated is None else parse_start_time(stated, now_s=place.now_s)


def rerunnable_of(stated: str | None) -> bool:
    """Return whether a job is rerunnable, of ``-r``.

    Raises:
        UsageError: neither y nor n.
    """
    if stated is None or stated in {"y", "Y", "n", "N"}:
        return stated not in {"n", "N"}
    raise UsageError(f"-r: invalid value {stated!r}", hint="write y or n")


def join_of(stated: str | None) -> str:
    """Return how output is joined, of ``-j``: the first letter is the file that gets both.

    Raises:
        UsageError: ``n`` beside another letter, or no such letter.
    """
    if stated is None:
        return "n"
    if stated not in {"n", "o", "e", "oe", "eo"}:
        raise UsageError(
            f"-j: invalid value {stated!r}",
            hint="valid: oe (both into stdout), eo (both into stderr), n",
        )
    return _JOIN[stated[0]]
