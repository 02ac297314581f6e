"""Jobs of a user as Python objects: the client for programs of users.

    from gsched.jobs import ClusterClient

    cluster = ClusterClient()
    job = cluster.submit(["python", "train.py"], resources="nodes=1:ppn=4:gpus=1,walltime=2:00:00")
    print(job.wait().exit_code, job.output())

What the head refuses is raised as a class of `gsched.errors`, whose ``message`` is the head's
sentence and whose ``hint`` says what to do.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gsched.client import HeadClient, new_job
from gsched.directories import mark_of
from gsched.errors import BadStateError, InvalidRequestError, UsageError
from gsched.head_calls import error_from
from gsched.model.ids import format_array_id, format_job_id
from gsched.model.job import SubmitPlace
from gsched.model.limits import MAX_MARK, MAX_NAME
from gsched.model.outputs import files_below, path_below
from gsched.model.states import JobState
from gsched.protocol.actions import AnyJobAction, DeleteJob, HoldJob, ReleaseJob
from gsched.protocol.job_rows import JobRow, JobStory
from gsched.protocol.node_rows import NodeRow

PATIENCE_S: Final = 30.0  # a head that restarts, and a fail-over, take less
OUTPUT_BYTES: Final = 64 * 1024 * 1024  # `SubmittedJob.output` returns no more of a file


class JobEnding(Struct, frozen=True, kw_only=True):
    """How a job has ended.

    Attributes:
        kind: ``exited``, ``signaled``, ``walltime``, ``cancelled`` and others, as ghist shows it.
        exit_code: of its program; None: it has none.
        signal: that has ended it; None: none has.
        shell_code: what a shell would say: the exit code, or 128 and the signal.
        message: why, in words; empty where the kind says it.
    """

    kind: str
    exit_code: int | None
    signal: int | None
    shell_code: int
    message: str = ""

    @property
    def succeeded(self) -> bool:
        """Return whether its program has ended with exit code 0."""
        return self.shell_code == 0


class SubmittedJob:
    """One job. Each call asks the head: nothing is kept.

    Attributes:
        id: as users see it: ``12.head``.
    """

    def __init__(self, client: "ClusterClient", job_id: str) -> None:
        self._client = client
        self.id = job_id

    def __repr__(self) -> str:
        return f"SubmittedJob({self.id!r})"

    def story(self) -> JobStory:
        """Return all that is known of the job, as ``gstat -f`` shows it.

        Raises:
            UnknownJobError: the head does not know it.
        """
        return self._client.head.job(self.id)

    @property
    def row(self) -> JobRow:
        """Return its line of ``gstat``."""
        return self.story().row

    @property
    def state(self) -> str:
        """Return its state: ``queued``, ``held``, ``running``, ``done`` and others."""
        return self.row.state

    def why(self) -> str:
        """Return why it waits, and what to do about that; empty: it does not wait."""
        story = self.story()
        return "; ".join(filter(None, (story.cause or story.row.reason, story.remedy)))

    def wait(self, *, timeout_s: float | None = None) -> JobEnding:
        """Return how it has ended, once it has; a head that restarts meanwhile is waited for.

        Raises:
            TimeoutError: it has not ended within that time.
        """
        story = self._client.head.wait([self.id], timeout_s=timeout_s)[0]
        if story.row.state != JobState.DONE:
            raise TimeoutError(f"job {self.id} is {story.row.state} after {timeout_s:g} s")
        return _result(story)

    def result(self) -> JobEnding:
        """Return how it has ended.

        Raises:
            BadStateError: it has not.
        """
        story = self.story()
        if story.row.state != JobState.DONE:
            raise BadStateError(f"job {self.id} is {story.row.state}", hint="call wait() before")
        return _result(story)

    def output(self, *, stream: str = "stdout", node: str = "") -> str:
        """Return what it has written so far, or all of it: at most the last 64 MiB.

        Args:
            stream: ``stdout`` or ``stderr``.
            node: whose file is meant of a job with one on each; empty: that of the first.

        Raises:
            BadStateError: it has ended, and its file cannot be read, here or where it is.
        """
        head, data = self._client.head, bytearray()
        offset, from_its_host = -OUTPUT_BYTES, False
        while True:
            try:
                chunk = head.output(
                    self.id, stream=stream, offset=offset, node=node, finished=from_its_host
                )
            except InvalidRequestError as error:
                if not from_its_host:
                    raise
                raise BadStateError(error.message, hint=error.hint) from None
            if chunk.ended and not chunk.size_bytes and not chunk.served:
                try:
                    return _file_of(chunk.path)
                except BadStateError:
                    if from_its_host:
                        raise
                from_its_host = True
                continue
            data += chunk.data
            offset = chunk.offset + len(chunk.data)
            if not chunk.data or offset >= chunk.size_bytes:
                return data.decode(errors="replace")

    def cancel(self, *, grace_s: float | None = None) -> None:
        """End it for good; a job that has ended already is left as it is.

        Args:
            grace_s: from TERM to KILL; None: the job's own.
        """
        if self.state != JobState.DONE:
            with contextlib.suppress(BadStateError):  # it has ended in this moment
                self._act(DeleteJob(ids=(self.id,), grace_s=grace_s))

    def hold(self) -> None:
        """Keep it from starting."""
        self._act(HoldJob(ids=(self.id,)))

    def release(self) -> None:
        """Let a held job start."""
        self._act(ReleaseJob(ids=(self.id,)))

    def _act(self, action: AnyJobAction) -> None:
        (result,) = self._client.head.act(action).results
        if result.error is not None:
            raise error_from(result.error)


class ClusterClient:
    """A cluster, as one of its users.

    Args:
        address: the path of the head's socket, ``ssh://host`` or ``https://host:port``; empty:
            $GSCHED_HEAD, else the configuration. With https it takes a token: $GSCHED_TOKEN, or
            ``~/.config/gsched/token``. Several, with commas between: those of all heads.
        patience_s: how long a call waits for a head to answer, or for a head to rule, seconds.

    Attributes:
        head: all that the API has, request by request.
    """

    def __init__(self, address: str = "", *, patience_s: float = PATIENCE_S) -> None:
        self.head = HeadClient(address, patience_s=patience_s)

    def submit(  # noqa: PLR0913 - what is stated of a job
        self,
        program: str | Sequence[str],
        *,
        name: str = "",
        workdir: str = "",
        resources: str | Sequence[str] = (),
        queue: str = "",
        after: Iterable[SubmittedJob | str] = (),
        environment: Mapping[str, str] | None = None,
        stage_in: Sequence[str | os.PathLike[str]] = (),
        stage_out: Sequence[str | os.PathLike[str]] = (),
        **more: object,
    ) -> SubmittedJob:
        """Submit a job; it is queued, and safe on the head's disk, when this returns.

        Args:
            program: a command with its arguments; or the text of a script, of whose directives
                (``#PBS``) none is read.
            name: one word; empty: that of the command.
            workdir: in which it runs, on its node; empty: the present directory.
            resources: as after ``gsub -l``: ``nodes=1:ppn=4:gpus=1,walltime=2:00:00``.
            after: jobs that must have succeeded before.
            environment: variables of the job; those of this process are not passed on.
            stage_in: files and directories below the present directory that the job reads, as after
                ``gsub --stage-in``: a node without this directory gets copies before the start.
            stage_out: what returns from such a node at the end.
            **more: other fields of `gsched.protocol.submissions.SubmitJob`, as ``account``.

        Raises:
            UsageError: a path is not below the present directory, or there is nothing to stage in.
            GschedError: the head refuses the job, or is not there; the message says why.
        """
        words = [] if isinstance(program, str) else list(program)
        if not words and not (isinstance(program, str) and program.strip()):
            raise UsageError(
                "there is no program to run", hint="give a command, or a script's text"
            )
        depends = ":".join(job.id if isinstance(job, SubmittedJob) else job for job in after)
        stated = new_job(
            name=name or default_name(words[0] if words else "script"),
            workdir=os.path.abspath(workdir or "."),
            script="" if words else str(program),
            arguments=words,
            launch="command" if words else "script",
            resources=[resources] if isinstance(resources, str) and resources else resources,
            queue=queue,
            depends=[f"afterok:{depends}"] if depends else [],
            environment=dict(environment or {}),
            **_place(workdir, stage_in, stage_out),
            **more,
        )
        reply = self.head.submit([stated])
        (made,) = reply.results
        if made.error is not None:
            raise error_from(made.error)
        whole = format_array_id if more.get("array") else format_job_id
        return SubmittedJob(self, whole(made.id, reply.server))

    def job(self, job_id: int | str) -> SubmittedJob:
        """Return a job by its number, or its id as users write it.

        Raises:
            UnknownJobError: the head does not know it.
        """
        story = self.head.job(job_id)
        return SubmittedJob(self, story.row.shown_id(story.server))

    def jobs(
        self, *, user: str = "", states: Iterable[str] = (), finished: bool = False
    ) -> tuple[JobRow, ...]:
        """Return the lines of jobs, as ``gstat``: all unfinished ones, or those that match.

        Args:
            user: only this user's.
            states: only in these states.
            finished: also jobs that have ended.
        """
        return self.head.jobs(user=user, states=states, finished=finished).jobs

    def nodes(self) -> tuple[NodeRow, ...]:
        """Return the lines of all nodes, as ``gnodes``."""
        return self.head.nodes().nodes

    def wait(
        self, jobs: Iterable[SubmittedJob], *, timeout_s: float | None = None
    ) -> dict[str, JobEnding]:
        """Return how jobs have ended, by id, once all have.

        Raises:
            TimeoutError: not all have within that time.
        """
        stories = self.head.wait([job.id for job in jobs], timeout_s=timeout_s)
        late = [story for story in stories if story.row.state != JobState.DONE]
        if late:
            names = ", ".join(story.row.shown_id(story.server) for story in late[:5])
            raise TimeoutError(f"{len(late)} of {len(stories)} jobs have not ended: {names}")
        return {story.row.shown_id(story.server): _result(story) for story in stories}


def _place(
    workdir: str,
    stage_in: Sequence[str | os.PathLike[str]],
    stage_out: Sequence[str | os.PathLike[str]],
) -> dict[str, object]:
    """Return the fields of a job that returns its output to here, and stages files.

    Raises:
        UsageError: a path cannot be staged.
    """
    if workdir and os.path.abspath(workdir) != os.getcwd():
        if stage_in or stage_out:
            raise UsageError(
                "stage_in and stage_out are of a job that starts in the present directory",
                hint="leave workdir out",
            )
        return {}
    bring = _staged("stage_in", stage_in)
    for path in bring:
        if not os.access(path, os.R_OK) or not (os.path.isfile(path) or os.path.isdir(path)):
            raise UsageError(
                f"stage_in: {path} is no file or directory that you may read", hint="see ls -l"
            )
    mark = mark_of(os.getcwd())
    fields: dict[str, object] = {
        "submit_dir": os.getcwd(),
        "stage_in": tuple(files_below(bring)),
        "stage_out": tuple(files_below(_staged("stage_out", stage_out))),
    }
    return {**fields, "place": SubmitPlace(mark=mark)} if 0 < len(mark) <= MAX_MARK else fields


def _staged(option: str, paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(paths, str):
        raise UsageError(f"{option}: {paths!r} is no list of paths", hint=f"write [{paths!r}]")
    found = []
    for path in paths:
        below = path_below(os.fspath(path), os.getcwd())
        if not below:
            raise UsageError(
                f"{option}: {os.fspath(path)} is not below the present directory, {os.getcwd()}",
                hint="submit from a directory above it",
            )
        found.append(below)
    return found


def default_name(program: str) -> str:
    """Return the name of a job that has none: that of its program, as one word."""
    name = os.path.basename(program)[:MAX_NAME]
    return "".join(each if each.isprintable() and not each.isspace() else "_" for each in name)


def _result(story: JobStory) -> JobEnding:
    outcome = story.row.outcome
    if outcome is None:
        return JobEnding(kind="unknown", exit_code=None, signal=None, shell_code=1)
    return JobEnding(
        kind=outcome.kind,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        shell_code=outcome.shell_status & 0xFF,
        message=outcome.message,
    )


def _file_of(path: str) -> str:
    """Return the end of an output file of a job that has ended."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - OUTPUT_BYTES))
            return file.read(OUTPUT_BYTES).decode(errors="replace")
    except OSError as error:
        raise BadStateError(
            f"the output {path} cannot be read on this host: {error.strerror}",
            hint="read it on a host of the cluster: the job has ended",
        ) from error
