"""Files that are copied for a job: ``--stage-in``, ``--stage-out``, ``-W stagein=``, ``stageout=``.

Imported only where a job has some.
"""

import os
import socket

from msgspec import structs

from gsched.cli.submit.extras import Extras
from gsched.cli.submit.place import SubmitContext, absolute
from gsched.cli.submit.stated import StatedOptions
from gsched.errors import UsageError
from gsched.model.job import StagedFile
from gsched.model.outputs import files_below, path_below
from gsched.protocol.submissions import SubmitJob


def stated_path(option: str, text: str, place: SubmitContext) -> str:
    """Return a path from the directory of submission, below which it is.

    Raises:
        UsageError: it is elsewhere.
    """
    path = path_below(text and absolute(text, place), place.cwd)
    if not path:
        raise UsageError(
            f"{option} {text}: it is not below the directory of submission, {place.cwd}",
            hint="submit from a directory above it, or write -W stagein=LOCAL@HOST:PATH",
        )
    return path


def path_in(path: str, place: SubmitContext) -> str:
    """Return a path that is to be staged in, if there is something at it.

    Raises:
        UsageError: there is nothing, or nothing that may be read.
    """
    full = os.path.join(place.cwd, path)
    if not os.path.isfile(full) and not os.path.isdir(full):
        if os.path.exists(full):
            what = "is no file or directory"
        else:
            what = "leads nowhere" if os.path.islink(full) else "does not exist"
        raise UsageError(f"--stage-in {path}: {full} {what}", hint="name a file or directory")
    if not os.access(full, os.R_OK):
        raise UsageError(f"--stage-in {path}: no permission to read {full}", hint="see ls -l")
    return path


def with_staged(job: SubmitJob, stated: StatedOptions, extras: Extras) -> SubmitJob:
    """Return a job with what is copied for it.

    Raises:
        UsageError: an option contradicts another one, or has no such value.
    """
    bring, take = (tuple(stated[name] or ()) for name in ("stage_in", "stage_out"))
    if bring or take:
        _check(job, stated, "--stage-in" if bring else "--stage-out")
    return structs.replace(
        job,
        stage_in=(*files_below(bring), *(_of_host("stagein", item) for item in extras.stage_in)),
        stage_out=(*files_below(take), *(_of_host("stageout", item) for item in extras.stage_out)),
    )


def _check(job: SubmitJob, stated: StatedOptions, option: str) -> None:
    if job.workdir != job.submit_dir:
        raise UsageError(
            f"{option} and -d are mutually exclusive: with -d a job starts in a directory of the "
            "node, where files would be overwritten",
            hint="leave -d out, or write -W stagein=LOCAL@HOST:PATH",
        )
    if stated["container"]:
        raise UsageError(
            f"{option} and --container are mutually exclusive: a container needs the directory of "
            "submission on its node",
            hint="leave one of them out",
        )


def _of_host(name: str, item: str) -> StagedFile:
    local, at, rest = item.rpartition("@")
    host, colon, remote = rest.partition(":")
    if not (at and colon and local and host and remote) or host.startswith("-"):
        raise UsageError(
            f"-W {name}: invalid file {item!r}",
            hint=f"write {name}=LOCAL@HOST:REMOTE; LOCAL is on the job's node",
        )
    return StagedFile(local=local, host=host, remote=remote, is_submit_host=_is_here(host))


def _is_here(host: str) -> bool:
    """Return whether this machine has that name, with or without its domain."""
    name, own = host.lower().rstrip("."), socket.gethostname().lower()
    if "." in name and "." in own:
        return name == own
    return name.partition(".")[0] == own.partition(".")[0]
