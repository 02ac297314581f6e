"""From options to the job the head gets: paths, environment, launch; checked as early as can be."""

import os
from typing import Any, Final

from gsched.cli.dialect import spoken
from gsched.cli.submit.extras import combined
from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.readers import default_name
from gsched.cli.submit.rows import ROWS
from gsched.cli.submit.scripts import Script
from gsched.cli.submit.stated import StatedOptions
from gsched.client import new_key
from gsched.directories import mark_of
from gsched.errors import CannotWriteError, UnreadableScriptError, UsageError
from gsched.model.job import SubmitPlace
from gsched.model.limits import MAX_MARK
from gsched.model.patterns import pattern
from gsched.protocol.submissions import SubmitJob

#: What is kept on the execution host lies in the home directory, under its usual name.
KEPT: Final = "~/"
_MINUTES: Final = pattern(r"(?:.*,)?(?:c|interval)=([1-9][0-9]{0,5})(?:,.*)?")
#: Options of `gsched.cli.submit.sections`.
_SECTIONS: Final = (
    *("container", "container_mounts", "container_workdir", "container_runtime", "array"),
    *("each_line", "adaptive", "batch_max", "batch_per_gpu_max", "gpu_types", "scaling"),
    *("replica_gpus", "non_preemptible", "inference", "latency", "requests"),
    *("stage_in", "stage_out"),
    *("training", "params", "samples", "batch", "epochs", "step_time"),
)


class Workload:
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


def make_job(
    stated: StatedOptions, work: Workload, place: SubmitContext, environment: dict[str, str]
) -> SubmitJob:
    """Return the job that the options state.

    Raises:
        GschedError: two options contradict each other, or one lacks another.
    """
    extras = combined(stated["extras"] or ())
    dependency = (stated["dependency"],) if stated["dependency"] else ()
    fields: dict[str, Any] = {"name": default_name(work.default_name), "umask": place.umask}
    fields |= _plain(stated) | _outputs(stated, place)
    fields |= {} if extras.umask is None else {"umask": extras.umask}
    if "project" in stated and "account" not in stated:
        fields["account"] = stated["project"]
    interval_s = _interval_s(stated)
    if interval_s is not None:
        fields["checkpoint_interval_s"] = interval_s
    job = SubmitJob(
        key=new_key(),
        workdir=stated["workdir"] or place.cwd,
        resources=stated.resource_texts,
        launch=work.launch,
        script=work.script.text if work.script else "",
        arguments=work.arguments,
        python=work.python,
        submit_dir=place.cwd,
        warn_unknown=spoken().ignores_unknown,
        environment=environment,
        holds=("user",) if stated["hold"] else (),
        places_max=stated.gpus_most,
        depends=(*extras.depends, *dependency),
        **fields,
    )
    if extras.stage_in or extras.stage_out or stated.any_of(*_SECTIONS):
        from gsched.cli.submit.sections import with_sections  # late: few jobs have one

        job = with_sections(job, stated, extras)
    return job


def _plain(stated: StatedOptions) -> dict[str, Any]:
    """Return the fields of a job that are the values of options."""
    found: dict[str, Any] = {}
    for row in ROWS:
        if row.job and row.field in stated:
            value, names = stated[row.field], row.job.split()
            found |= {row.job: value} if len(names) == 1 else zip(names, value, strict=True)
    return found


def _outputs(stated: StatedOptions, place: SubmitContext) -> dict[str, str]:
    """Return where output goes: to where the user submits, wherever the job starts."""
    elsewhere = stated["workdir"] not in {None, place.cwd}
    default = place.cwd.rstrip("/") + "/" if elsewhere else ""
    found = {}
    for stream, letter in (("stdout", "o"), ("stderr", "e")):
        path = stated[stream].path if stream in stated else ""
        found[f"{stream}_path"] = KEPT if letter in (stated["keep"] or "") else path or default
    return found


def submit_place(stated: StatedOptions, place: SubmitContext) -> SubmitPlace | None:
    """Return the directory of submission as nodes recognise it; None: it cannot be looked at.

    Output that a user keeps on the node, or in a path of a host, stays there.
    """
    mark = mark_of(place.cwd)
    kept = stated["keep"] or ""
    for letter, stream in (("o", "stdout"), ("e", "stderr")):
        if stream in stated and stated[stream].names_host:
            kept += letter
    return SubmitPlace(mark=mark, kept=kept) if 0 < len(mark) <= MAX_MARK - 4 else None


def _interval_s(stated: StatedOptions) -> float | None:
    """Return the interval of ``-c c=MINUTES``, of the checkpoints of an elastic job."""
    match = _MINUTES.fullmatch(stated["checkpoint"] or "")
    if match is None or not stated["elastic"] or "checkpoint_interval" in stated:
        return None
    return 60.0 * int(match[1])


def compatibility_notes(stated: StatedOptions, place: SubmitContext) -> list[str]:
    """Return a sentence for each option that gsched reads but that changes nothing."""
    notes = list(combined(stated["extras"] or ()).notes)
    keep = stated["keep"] or ""
    for letter, stream in (("o", "stdout"), ("e", "stderr")):
        if letter in keep and stream in stated:
            path = stated[stream].text
            notes.append(f"-{letter} {path} has no effect: -k {keep} keeps that output in ~")
    if stated["checkpoint"] not in {None, "n", "u", "none"} and _interval_s(stated) is None:
        notes.append(
            f"-c {stated['checkpoint']} has no effect: jobs write their own checkpoints; c=MINUTES "
            "sets the interval of --elastic jobs"
        )
    noted = (row for row in ROWS if row.note and row.field in stated)
    notes += [f"{row.names} has no effect: {row.note}" for row in noted]
    if (stated["start_after"] or place.now_s) < place.now_s:
        notes.append("the start time of -a is in the past: the job can start at once")
    return notes


def check_workdir(path: str) -> None:
    """Refuse a directory in which the job could not start.

    Raises:
        UsageError: missing, no directory, or not to be entered.
    """
    if not os.path.exists(path):
        raise UsageError(
            f"-d: directory {path} does not exist", hint=f"create it first: mkdir -p {path}"
        )
    if not os.path.isdir(path):
        raise UsageError(f"-d: {path} is not a directory", hint="give a directory")
    if not os.access(path, os.X_OK):
        raise UsageError(f"-d: no permission to enter {path}", hint="give a directory of your own")


def check_output(job: SubmitJob, place: SubmitContext, stated: StatedOptions) -> None:
    """Refuse output files that the job could not write; a path with a host is not looked at.

    Args:
        job: as it goes to the head.
        place: of submission.
        stated: what the options state.

    Raises:
        CannotWriteError: the directory is missing or read-only, or the file is read-only.
    """
    if job.join != "eo" and not ("stdout" in stated and stated["stdout"].names_host):
        hint = _default_hint("-o", stated, "stdout")
        _check_writable("-o", job.stdout_path or place.cwd + "/", hint)
    if job.join != "oe" and not ("stderr" in stated and stated["stderr"].names_host):
        hint = _default_hint("-e", stated, "stderr")
        _check_writable("-e", job.stderr_path or place.cwd + "/", hint)


def _default_hint(option: str, stated: StatedOptions, stream: str) -> str:
    """Return what to do where output goes by default; empty: the user has said where."""
    if stream in stated or not stated["workdir"]:
        return ""
    return (
        "output goes to the directory of submission, also with -d: to have it where the job "
        f"starts, add {option} {stated['workdir'].rstrip('/')}/"
    )


def _check_writable(option: str, path: str, default_hint: str = "") -> None:
    if path == "~/":  # on the node: the home directory there
        return
    if "$" in path:  # $PBS_JOBID: only what stands before it is known now
        known = os.path.dirname(path.partition("$")[0] + "x") + "/"
        if "$" in os.path.dirname(path) and not os.path.exists(known):
            return  # its user makes it when the job's number is known
        path = known
    directory = path if path.endswith("/") or os.path.isdir(path) else os.path.dirname(path)
    shown = directory.rstrip("/") or "/"
    if not os.path.isdir(directory):
        what = "is not a directory" if os.path.exists(shown) else "does not exist"
        raise CannotWriteError(
            f"{option}: the output directory {shown} {what}",
            hint=f"create it first: mkdir -p {shown}; if it is on the nodes only, write HOST:PATH",
        )
    if os.path.isfile(path) and not os.access(path, os.W_OK):
        raise CannotWriteError(
            f"{option}: no permission to write {path}", hint=f"name another file with {option}"
        )
    makes_file = not os.path.exists(path) or os.path.isdir(path)
    if makes_file and not os.access(directory, os.W_OK | os.X_OK):
        raise CannotWriteError(
            f"{option}: no permission to create files in the output directory {shown}",
            hint=default_hint or f"name a file in a directory of your own with {option}",
        )


def check_training_script(path: str) -> None:
    """Refuse a training script that is not there.

    Raises:
        UnreadableScriptError: missing, a directory, or not to be read.
    """
    if os.path.isdir(path):
        what = "is a directory"
    elif not os.path.exists(path):
        what = "does not exist"
    elif not os.access(path, os.R_OK):
        what = "cannot be read"
    else:
        return
    raise UnreadableScriptError(
        f"--torchrun: training script {path} {what}", hint="give the path of a Python script"
    )
