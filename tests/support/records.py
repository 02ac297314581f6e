"""What lies in the spool of an attempt."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnode.supervisor import journal, spool
from gnode.task import Task, decode


def started(directory: Path) -> dict[str, Any] | None:
    """Return who runs an attempt, None while nobody has said so."""
    found = spool.read_started(str(directory))
    return None if found is None else vars(found)


def ended(directory: Path) -> dict[str, Any] | None:
    """Return an attempt's exit record, None while there is none."""
    content = journal.read_story(str(directory)).ended
    return None if content is None else dict(json.loads(content))


def running(attempts: Path) -> list[Path]:
    """Return the directories of the attempts that have started and not ended."""
    if not attempts.exists():
        return []
    return [each for each in sorted(attempts.iterdir()) if started(each) and not ended(each)]


def task_of(stated: Mapping[str, Any]) -> Task:
    """Return the task that a supervisor reads where this stands in ``task.json``."""
    return decode(Task, json.dumps(stated).encode())


def a_task(**changes: Any) -> Task:
    """Return the task of attempt 12.2 of this user, which runs true, with fields replaced."""
    values: dict[str, Any] = {
        "job": 12,
        "attempt": 2,
        "user": "",
        "uid": os.getuid(),
        "gid": os.getgid(),
        "switch_user": False,
        "argv": ["true"],
        "env": {},
        "cwd": "/",
        "stdout_path": "/dev/null",
        "stderr_path": "/dev/null",
        "stdout_name": "job.o12",
        "stderr_name": "job.e12",
        "join": "n",
        "append": False,
        "umask": 0o022,
        "files": [],
        "user_dir": "/nowhere/12.2",
        "walltime_s": None,
        "grace_s": 5.0,
    }
    return task_of(values | changes)


def add_order(directory: Path, text: str) -> None:
    """Append lines to the orders of an attempt, where its supervisor looks for them."""
    with (directory / journal.NAME).open("a") as file:
        file.write(text)
