"""gsub -W stagein= and stageout=: LOCAL@HOST:REMOTE. Imported only where they are given."""

from collections.abc import Sequence

from gsched.errors import UsageError
from gsched.model.job import StagedFile


def staged_files(name: str, items: Sequence[str]) -> tuple[StagedFile, ...]:
    """Return the files that are to be copied.

    Raises:
        UsageError: an item is not of the form LOCAL@HOST:REMOTE.
    """
    return tuple(_staged(name, item) for item in items)


def _staged(name: str, item: str) -> StagedFile:
    local, at, rest = item.rpartition("@")
    host, colon, remote = rest.partition(":")
    if not (at and colon and local and host and remote) or host.startswith("-"):
        raise UsageError(
            f"-W {name}: invalid file {item!r}",
            hint=f"write {name}=LOCAL@HOST:REMOTE; LOCAL is on the job's node",
        )
    return StagedFile(local=local, host=host, remote=remote)
