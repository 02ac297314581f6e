"""Work for a cluster whose daemons are killed on the way, seen from a patient user."""

import signal
import subprocess
import threading
from collections.abc import Sequence

from gsched.client import HeadClient, new_job
from gsched.errors import HeadUnreachableError
from gsched.protocol import actions as a
from gsched.protocol.api import ActionResult
from gsched.protocol.job_rows import JobStory
from gsched.protocol.submissions import SubmitJob
from tests.support.cluster import Cluster, wait_until
from tests.support.judge import Judge

DEATH_TIMEOUT_S = 40.0
END_TIMEOUT_S = 60.0


def a_job(cluster: Cluster, judge: Judge, body: str = "", **more: object) -> SubmitJob:
    """Return a job that writes into the judge's file; it gets TERM and KILL in quick succession."""
    fields: dict[str, object] = {"name": "j", "grace_s": 1.0, **more}
    name = str(fields.pop("name"))
    code = int(str(fields.pop("code", 0)))
    script = judge.script(body, code=code)
    return new_job(name=name, workdir=str(cluster.jobs), script=script, **fields)


class Submission:
    """A submission under way in a thread: the client tries again while the head is away."""

    def __init__(self, cluster: Cluster, *jobs: SubmitJob) -> None:
        self._jobs = jobs
        self._ids: list[int] = []
        self._error: Exception | None = None
        self._head = HeadClient(str(cluster.socket), patience_s=DEATH_TIMEOUT_S)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ids = [result.id for result in self._head.submit(self._jobs).results]
        except Exception as error:  # noqa: BLE001 # raised again in the test's own thread
            self._error = error

    def is_acknowledged(self) -> bool:
        """Return whether `ids` returns, or raises, at once."""
        return not self._thread.is_alive()

    def ids(self) -> list[int]:
        """Return the ids once they are acknowledged."""
        self._thread.join(DEATH_TIMEOUT_S)
        assert not self._thread.is_alive(), "the submission is still not acknowledged"
        if self._error is not None:
            raise self._error
        return self._ids


def is_killed(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended by SIGKILL; that it ended otherwise is an error."""
    code = process.poll()
    assert code in {None, -signal.SIGKILL}, f"it ended with {code}, not by a failpoint's kill"
    return code is not None


def wait_for_death(process: subprocess.Popen[bytes]) -> None:
    """Wait until a failpoint has killed the process: proof that the point was passed."""
    wait_until(lambda: is_killed(process), DEATH_TIMEOUT_S, what="the failpoint to be passed")


def restart_dead_head(cluster: Cluster) -> None:
    """Wait for the head's death by a failpoint and start it again without one."""
    wait_for_death(cluster.head_process)
    cluster.start_head()


def wait_for_end(cluster: Cluster, ids: Sequence[int]) -> list[JobStory]:
    """Return the stories of jobs, all of them over."""
    stories = cluster.head.wait(ids, timeout_s=END_TIMEOUT_S)
    left = {story.row.id: story.row for story in stories if story.row.state != "done"}
    assert not left, f"still not over: {left}"
    return stories


def wait_for_starts(judge: Judge, ids: Sequence[int], count: int = 1) -> None:
    """Wait until each job has written ``start`` ``count`` times."""
    wait_until(
        lambda: all(judge.count("start", job) >= count for job in ids),
        END_TIMEOUT_S,
        what=f"jobs {ids} to start",
    )


def delete(head: HeadClient, job: int) -> ActionResult | None:
    """Delete a job; None where the head died over it: the user does not know, and asks again."""
    try:
        (result,) = head.act(a.DeleteJob(ids=(str(job),))).results
    except HeadUnreachableError:
        return None
    return result
