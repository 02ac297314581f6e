"""What a damaged database still tells of the jobs that it cannot tell otherwise."""

import sqlite3
from collections.abc import Collection


def text_of(data: bytes) -> str:
    """Return the text of a column; bytes that are no UTF-8 stay as they are, for the checksum."""
    return data.decode("utf-8", "surrogateescape")


def owned_by(db: sqlite3.Connection, jobs: Collection[int]) -> dict[int, dict[str, int]]:
    """Return on which nodes some jobs own GPUs, and by which attempt, by job."""
    found: dict[int, dict[str, int]] = {job: {} for job in jobs}
    for job, node, attempt in db.execute("SELECT job, node, attempt FROM gpu_owners"):
        if job in found:
            found[job][node] = attempt
    return found
