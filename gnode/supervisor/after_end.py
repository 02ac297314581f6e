"""What a supervisor has done for the owner of a job once no process of it is left: its errands."""

import contextlib
import errno
from collections.abc import Callable
from typing import Final

from gnode.supervisor import cgroup, errand, filled, last_words, site_programs, spool, staging
from gnode.supervisor.ending import Ending
from gnode.supervisor.errors import LaunchError
from gnode.supervisor.journal import Journal
from gnode.task import Task

#: Does some work as a process of the attempt, within so many seconds; returns what went wrong, in
#: words, None: it was stopped, or took too long.
RunErrand = Callable[[Callable[[], str], float], str | None]
#: Reasons of a stop after which the job runs again: its files are not copied away.
_ANOTHER_FOLLOWS: Final = frozenset({"rerun", "move", "fenced", "lease", "shutdown"})


class AfterEnd:
    """The errands of one attempt."""

    __slots__ = ("_ending", "_run", "_task")

    def __init__(self, task: Task, ending: Ending, run: RunErrand) -> None:
        self._task, self._ending, self._run = task, ending, run

    def blame_for_space(self, error: LaunchError) -> None:
        """Make it the node's fault that there is no space, unless the owner has filled it."""
        if error.stage != "files" or error.errno != errno.ENOSPC:
            return
        task = self._task
        own = filled.own_directories(task)
        if self._run(lambda: filled.look(task, own), filled.LOOK_S) == filled.BY_OWNER:
            error.message += ": most of what is in use there is yours: remove some of it"
        else:
            error.subject = "node"

    def note_full_output(self, result: dict[str, object]) -> None:
        """Say so if a program that failed could not write any more output, where that is here."""
        if self._ending.reason is not None:
            return
        task = self._task
        full = self._run(lambda: filled.look_at_output(task), filled.LOOK_S)
        if full:
            result["message"] = "; ".join(filter(None, (str(result.get("message", "")), full)))

    def epilog_of_owner(self, result: dict[str, object], stderr_path: str) -> str:
        """Run the owner's part of the epilog, unless the lease is over; return what went wrong."""
        task = self._task
        programs = task.programs
        if programs is None or not programs.epilog_user or self._ending.reason == "lease":
            return ""
        fault = self._run(
            lambda: site_programs.finish_as_owner(task, result, stderr_path),
            programs.epilog_timeout_s + site_programs.SLACK_S,
        )
        return "epilog_user was stopped" if fault is None else fault

    def stage_out(self, *, is_away: bool) -> str:
        """Copy the job's files away, unless another attempt follows; return what went wrong."""
        task = self._task
        if self._ending.reason in _ANOTHER_FOLLOWS or not staging.takes_away(task, is_away=is_away):
            return ""
        limit_s = staging.limit_s(task) + staging.SLACK_S
        fault = self._run(lambda: staging.take_away(task, is_away=is_away), limit_s)
        if fault is None:
            return f"stage-out failed: it was stopped, or not done within {limit_s:.0f} s"
        return fault

    def remove_container(self, directory: str, journal: Journal) -> None:
        """Remove what the container of the attempt in ``directory`` has left, if it has one."""
        task = self._task
        if not task.removal:
            return
        fault = self._run(
            lambda: staging.remove_container(task, errand.REMOVAL_S), errand.REMOVAL_S + 1.0
        )
        if fault or fault is None:
            spool.log(f"{directory}: {fault or 'the removal of its container was stopped'}")
        self.note_cleaned(journal)

    def note_cleaned(self, journal: Journal) -> None:
        """Note that nothing is left of its container, if it has one."""
        if not self._task.removal:
            return
        with contextlib.suppress(OSError):  # then it is done again
            journal.announce_cleaned()

    def tell_owner(self, stderr_path: str, *lines: str) -> None:
        """Append lines to the error file of the job."""
        task = self._task
        if lines and stderr_path:
            cgroup.allow_more_memory(task)
            self._run(lambda: last_words.append(task, stderr_path, lines), last_words.PATIENCE_S)
