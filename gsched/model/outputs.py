"""The files of a job: the paths of its output and of what it stages, from what its user states.

Pure.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gsched.model.ids import (
    array_of,
    format_job_id,
    index_of,
    job_file_suffix,
    submitted_number,
)
from gsched.model.job import JobSpec, StagedFile

#: Also variables of a job: the index of the element of an array.
ARRAY_INDEX_NAMES: Final = (
    *("PBS_ARRAYID", "PBS_ARRAY_INDEX", "GSCHED_ARRAY_INDEX"),
    *("LSB_JOBINDEX", "SGE_TASK_ID"),  # what scripts for LSF and Grid Engine read
)
#: The feature of a host that stages files through the head, and takes many small ones at once.
FILES_FEATURE: Final = "file-staging"
OPENPBS_ARRAY_INDEX: Final = "^array_index^"  # of the element of an array, in paths


class OutputFile(NamedTuple):
    """A file for what a task writes: ``name`` counts where ``path`` is a directory."""

    path: str
    name: str


class OutputNames(NamedTuple):
    """What paths of output files may name.

    Attributes:
        job: of the attempt; ``server`` is the head's name.
        short_number: what Slurm's commands call an element of an array; 0: it has no such number.
        node, rank: of the part.
        home: of the owner, where the files are; ``~``: paths below it stay as they are.
    """

    job: int
    server: str
    node: str
    rank: int
    home: str
    short_number: int = 0


def output_files(spec: JobSpec, names: OutputNames) -> tuple[OutputFile, OutputFile]:
    """Return the files of standard output and standard error of a part that has some."""
    job, suffix = file_name(spec), f"{job_file_suffix(names.job)}{_rank_suffix(names.rank)}"
    files = []
    for stated, letter in ((spec.stdout_path, "o"), (spec.stderr_path, "e")):
        name = f"{job}.{letter}{suffix}"
        path = _expanded(spec, names, stated) if stated else posixpath.join(spec.workdir, name)
        files.append(OutputFile(path, name))
    return files[0], files[1]


def _expanded(spec: JobSpec, names: OutputNames, path: str) -> str:
    """Return the absolute path of an output file that the user has stated."""
    if "$" in path or OPENPBS_ARRAY_INDEX in path:
        path = _with_values(spec, names, path)
    if path == "~" or path.startswith("~/"):
        path = names.home + path[1:]
    if not path.startswith("~/"):
        path = posixpath.join(spec.workdir, path)
    if path.endswith("/") or path.startswith("/dev/"):
        return path
    return path + _rank_suffix(names.rank)


def _with_values(spec: JobSpec, names: OutputNames, path: str) -> str:
    """Return a path with the values of what it names."""
    values = {
        "PBS_JOBID": format_job_id(names.job, names.server),
        "GSCHED_JOB_NUMBER": str(names.short_number or job_file_suffix(names.job)),
        "GSCHED_ARRAY_NUMBER": str(submitted_number(names.job)),
        "PBS_JOBNAME": file_name(spec),
        "GSCHED_NODE": names.node,
        "USER": spec.owner.user,
    }
    if array_of(names.job):
        values |= dict.fromkeys(ARRAY_INDEX_NAMES, str(index_of(names.job)))
        path = path.replace(OPENPBS_ARRAY_INDEX, str(index_of(names.job)))
    else:
        values["GSCHED_ARRAY_INDEX"] = "0"  # as in Slurm's %a
    for name, value in values.items():
        path = path.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return path


def staged_path(spec: JobSpec, item: StagedFile, rank: int = 0) -> str:
    """Return the path of a staged file at the host of submission, from its owner's home, ``~/``.

    Args:
        spec: of the job.
        item: a file of ``stage_in`` or ``stage_out``.
        rank: of the node from which it returns.
    """
    top = "~" if item.host else spec.submit_dir or spec.workdir
    path = posixpath.join(top, item.remote.removeprefix("~/"))
    return path.rstrip("/") + _rank_suffix(rank)


def path_below(path: str, directory: str) -> str:
    """Return a path from the directory of submission, below which it is; empty: it is elsewhere."""
    below = posixpath.relpath(posixpath.join(directory, path), directory)
    return "" if not path or below in {".", ".."} or below.startswith("../") else below


def files_below(paths: Iterable[str]) -> Iterator[StagedFile]:
    """Yield what is staged of paths below the directory of submission, nothing of it twice."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{each}/") for each in kept):
            kept.append(path)
            yield StagedFile(local=path, host="", remote=path)


def file_name(spec: JobSpec) -> str:
    """Return the job's name as part of a file's name: it names no directory."""
    return spec.name.replace("/", "_") or "job"


def _rank_suffix(rank: int) -> str:
    """Return what tells the files of the nodes apart: two writers would overwrite each other."""
    return f".{rank}" if rank else ""
