r"""All of the head's API as methods of `HeadClient`; programs of users have `gsched.jobs`.

    from gsched.client import HeadClient, new_job

    head = HeadClient()
    reply = head.submit([new_job(name="train", workdir="/data", script="#!/bin/sh\ndate\n")])
    story = head.wait([reply.results[0].id])[0]

Every refusal of the head is raised as the matching class of `gsched.errors`.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from gsched.clock import SystemClock
from gsched.errors import (
    HeadUnreachableError,
    TryAgainError,
    UnknownJobError,
    UsageError,
)
from gsched.head_calls import PAUSE_S, HeadCalls, body_of, encoded
from gsched.model.ids import read_job_id, short_job_id
from gsched.model.limits import (
    MAX_DRY_RUN_JOBS,
    MAX_JOBS_PER_REQUEST,
    MAX_REQUEST_BYTES,
    MAX_STORIES,
)
from gsched.model.states import JobState
from gsched.protocol import api, job_rows, submissions
from gsched.transport import DEFAULT_TIMEOUT_S, pause, quote

if TYPE_CHECKING:
    from gsched.model.job import CodeSnapshot
    from gsched.protocol.actions import AnyJobAction, AnyNodeAction
    from gsched.protocol.code import CodeReply
    from gsched.protocol.hosts import HostList
    from gsched.protocol.joining import (
        AuthorityState,
        ChangeAuthority,
        CreatedToken,
        CreateToken,
        TokenList,
    )
    from gsched.protocol.messages import JobMessage, MessageReply
    from gsched.protocol.node_rows import NodeList
    from gsched.protocol.predictions import NodePredictions, PredictionsReply
    from gsched.protocol.queues import ObjectsReply, QueueChange
    from gsched.protocol.recover import RecoverReply
    from gsched.protocol.rerun import RerunReply
    from gsched.protocol.reservations import ReservationChange, ReservationsReply
    from gsched.protocol.running import ReloadReply, RunningConfig
    from gsched.protocol.settings import NodeSettingsReply
    from gsched.protocol.shares import LimitsReply, SharesReply
    from gsched.protocol.stories import JobStories
    from gsched.protocol.tasks import TaskList
    from gsched.protocol.tokens import CreatedUserToken, CreateUserToken, UserTokenList

T = TypeVar("T")

POLL_S = 30.0  # one long poll of `wait`; the head answers earlier when the job ends
WAIT_RETRY_S = 600.0  # `wait` has time: it outlasts an upgrade of the head
_POLL_SLACK_S = 15.0
_CODE_PIECE_BYTES = 700_000  # a request of 1 MiB, in base64
_MAX_IDS_TEXT = 6000  # HTTP servers bound the request line, ours at about 8 kB


def new_key() -> str:
    """Return a fresh client key as hex: the time in nanoseconds, and 64 random bits.

    Keys of one time lie together in the head's index, so that few of its pages change.
    """
    return time.time_ns().to_bytes(8, "big").hex() + os.urandom(8).hex()


def new_job(*, name: str, workdir: str, script: str = "", **more: object) -> submissions.SubmitJob:
    """Return a `SubmitJob` with a fresh key; ``more`` are its other fields.

    Raises:
        UsageError: a field that does not exist, or of the wrong type.
    """
    fields = {"key": new_key(), "name": name, "workdir": workdir, "script": script} | more
    try:
        return msgspec.convert(fields, submissions.SubmitJob)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"invalid job: {error}", hint="see gsched.protocol.submissions.SubmitJob"
        ) from (error)


class HeadClient(HeadCalls):
    """A head daemon, as its API shows it.

    Args:
        address: a socket's path, ``ssh://host`` or ``https://host:port``; empty: $GSCHED_HEAD, the
            configuration, or the default place.
        patience_s: how long each call tries to connect to a head that may be starting.

    Raises:
        HeadUnreachableError: by every method, when nobody answers.
        GschedError: by every method, when the head refuses.
    """

    # --- jobs ---

    def submit(
        self, jobs: Sequence[submissions.SubmitJob], *, dry_run: bool = False
    ) -> submissions.SubmitReply:
        """Submit jobs; the answer holds one id or error for each, in order.

        A lost connection leaves open whether the head has queued them, so the same keys are sent
        again for RETRY_S: the head gives the same job for the same key.

        Raises:
            LostConnectionError: no answer in all that time; the jobs may be queued or not.
        """
        if len(jobs) > (MAX_DRY_RUN_JOBS if dry_run else MAX_JOBS_PER_REQUEST):
            return self._submit_halves(jobs, dry_run=dry_run)
        body = encoded(submissions.SubmitRequest(jobs=tuple(jobs), dry_run=dry_run))
        if len(body) > MAX_REQUEST_BYTES and len(jobs) > 1:
            return self._submit_halves(jobs, dry_run=dry_run)
        return self._decode(self._post_again("/v1/jobs", body), submissions.SubmitReply, "/v1/jobs")

    def _submit_halves(
        self, jobs: Sequence[submissions.SubmitJob], *, dry_run: bool
    ) -> submissions.SubmitReply:
        middle = len(jobs) // 2
        first = self.submit(jobs[:middle], dry_run=dry_run)
        second = self.submit(jobs[middle:], dry_run=dry_run)
        return submissions.SubmitReply(server=first.server, results=first.results + second.results)

    def jobs(
        self,
        ids: Iterable[int | str] = (),
        *,
        user: str = "",
        states: Iterable[str] = (),
        finished: bool = False,
        elements: bool = False,
        forecast: bool = False,
    ) -> job_rows.JobList:
        """Return jobs: those of ``ids``, else all unfinished ones (with ``finished``, all).

        Args:
            ids: numbers, or as users write them; one that is none stands in ``errors`` under the
                text given here, and the others are still answered.
            user: only this user's.
            states: only in these states (`gsched.model.states.JobState`).
            finished: also jobs that are done.
            elements: also those elements of unfinished arrays that are jobs.
            forecast: predict when jobs start that wait (`gsched.protocol.job_rows.StartRow`); not
                with more than 100 ``ids``.
        """
        wanted = [str(each) for each in ids]
        filters = {
            "user": user,
            "state": ",".join(states),
            "all": "1" if finished else "",
            "elements": "1" if elements else "",
            "forecast": "1" if forecast else "",
        }
        if wanted:
            return self._jobs_by_id(wanted, filters)
        if not (finished or elements or forecast):
            filters["columns"] = "all"  # a head of before has no such columns, and sends rows
        reply = self._get(f"/v1/jobs{_query(filters)}", job_rows.JobList)
        if not reply.columns:
            return reply
        from gsched.protocol.columns import with_rows  # late: most lists are short

        return with_rows(reply)

    def unfinished(
        self, *, user: str = "", states: Iterable[str] = (), first: int = 0
    ) -> job_rows.JobList:
        """Return unfinished jobs as `jobs` does, most of those that wait in ``columns``.

        Of 100,000 jobs that takes a tenth of the time.

        Args:
            user: only this user's.
            states: only in these states.
            first: the number of jobs to return of a list of more than 20,000, at most 250;
                ``is_cut`` is set then. 0: all.
        """
        filters = {"user": user, "state": ",".join(states), "columns": "1"}
        if first:
            filters["first"] = str(first)
        return self._get(f"/v1/jobs{_query(filters)}", job_rows.JobList)

    def _jobs_by_id(self, wanted: list[str], filters: dict[str, str]) -> job_rows.JobList:
        errors: dict[str, api.ErrorBody] = {}
        texts: dict[str, str] = {}  # what the head gets -> what the user wrote
        for text in wanted:
            try:
                texts.setdefault(str(read_job_id(text)), text)
            except UnknownJobError as error:
                errors[text] = body_of(error)
        rows: dict[int, job_rows.JobRow] = {}  # 17 and 17.server are one job
        server, now_s, warning = "", 0.0, ""
        for part in _bounded(list(texts)):
            reply = self._get(f"/v1/jobs{_query(filters | {'ids': part})}", job_rows.JobList)
            server, now_s, warning = reply.server, reply.now_s, reply.warning
            rows.update((row.id, row) for row in reply.jobs)
            errors.update({texts.get(key, key): body for key, body in reply.errors.items()})
        ordered = {text: errors[text] for text in wanted if text in errors}
        return job_rows.JobList(
            server=server, now_s=now_s, jobs=tuple(rows.values()), errors=ordered, warning=warning
        )

    def job(self, job: int | str) -> job_rows.JobStory:
        """Return all that is known of one job.

        Raises:
            UnknownJobError: the id is unknown.
        """
        return self._get(f"/v1/jobs/{_named(job)}", job_rows.JobStory)

    def stories(self, jobs: Iterable[int | str], *, forecast: bool = False) -> "JobStories":
        """Return all that is known of some jobs, in their order, with a request for each hundred.

        Args:
            jobs: numbers, or as users write them; an unknown one stands in ``errors`` under the
                text given here.
            forecast: predict when jobs start that wait.
        """
        from gsched.protocol.stories import JobStories  # late: few commands need it

        errors: dict[str, api.ErrorBody] = {}
        texts: dict[str, str] = {}  # what the head gets -> what the user wrote
        for job in jobs:
            text = short_job_id(job) if isinstance(job, int) else job
            try:
                texts.setdefault(str(read_job_id(text)), text)
            except UnknownJobError as error:
                errors[text] = body_of(error)
        found: list[job_rows.JobStory] = []
        wanted = list(texts)
        server, now_s = "", 0.0
        for begin in range(0, len(wanted), MAX_STORIES):
            for part in _bounded(wanted[begin : begin + MAX_STORIES]):
                query = _query({"ids": part, "forecast": "1" if forecast else ""})
                reply = self._get(f"/v1/stories{query}", JobStories)
                server, now_s = reply.server, reply.now_s
                found += reply.jobs
                errors.update({texts.get(key, key): body for key, body in reply.errors.items()})
        unique = {story.row.id: story for story in found}  # 17 and 17.server are one job
        return JobStories(server=server, now_s=now_s, jobs=tuple(unique.values()), errors=errors)

    def change_queues(
        self, changes: "Sequence[QueueChange]", *, dry_run: bool = False
    ) -> api.ActionReply:
        """Change queues or scheduling: all changes, or none; raises what the head refuses."""
        from gsched.protocol.queues import QueueRequest  # late: few commands need it

        request = QueueRequest(changes=tuple(changes), dry_run=dry_run)
        return self._post("/v1/queues", request, api.ActionReply)

    def limits(
        self, *, user: str = "", project: str = "", queue: str = "", qos: str = ""
    ) -> "LimitsReply":
        """Return limits and what is used of them."""
        from gsched.protocol.shares import LimitsReply  # late: few commands need it

        named = {"user": user, "project": project, "queue": queue, "qos": qos}
        return self._get(f"/v1/limits{_query(named)}", LimitsReply)

    def objects(self) -> "ObjectsReply":
        """Return what of queues, projects, users and QOS differs from the defaults."""
        from gsched.protocol.queues import ObjectsReply  # late: few commands need it

        return self._get("/v1/objects", ObjectsReply)

    def act(self, request: "AnyJobAction") -> api.ActionReply:
        """Delete, hold, release, signal, rerun or alter jobs: one result for each, in order."""
        return self._post("/v1/jobs/actions", request, api.ActionReply)

    def rerun_failed(self, job: str, *, key: str = "", dry_run: bool = False) -> "RerunReply":
        """Submit the failed elements of an array again, or a failed job, as a new job.

        Args:
            job: as users write it: ``56[]``, ``56[0-10]`` for some elements, ``57``.
            key: the client's own id of this submission; empty: a fresh one. With the same key the
                head gives the same job, so it is sent again if the answer is lost.
            dry_run: everything is checked and nothing is queued.
        """
        from gsched.protocol.rerun import RerunFailed, RerunReply  # late: few commands need it

        target = "/v1/jobs/rerun-failed"
        body = encoded(RerunFailed(job=job, key=key or new_key(), dry_run=dry_run))
        return self._decode(self._post_again(target, body), RerunReply, target)

    def output(
        self,
        job: int | str,
        *,
        stream: str = "stdout",
        offset: int = 0,
        max_bytes: int = api.MAX_OUTPUT_CHUNK_BYTES,
        node: str = "",
        finished: bool = False,
    ) -> api.OutputChunk:
        """Return bytes of a job's ``stdout`` or ``stderr``; a negative offset is from the end.

        Each node of a job has files of its own; without ``node`` they are those of the first. With
        ``finished`` a file of a part that has ended is read on the host where it is.
        """
        fields = {"stream": stream, "offset": str(offset), "max": str(max_bytes), "node": node}
        fields |= {"finished": "1"} if finished else {}
        return self._get(f"/v1/jobs/{_named(job)}/output{_query(fields)}", api.OutputChunk)

    def write_message(self, job: int | str, message: "JobMessage") -> "MessageReply":
        """Append a line to the files of a running job, on its node and as its owner."""
        from gsched.protocol.messages import MessageReply  # late: few commands need it

        return self._post(f"/v1/jobs/{_named(job)}/message", message, MessageReply)

    def wait(
        self, jobs: Iterable[int | str], *, timeout_s: float | None = None
    ) -> list[job_rows.JobStory]:
        """Return the stories of ``jobs``, in order, once all are done, or after ``timeout_s``.

        The head holds each request until the job ends, so nothing is polled; a head that restarts
        meanwhile is waited for. A job that is not done by then has another state than ``done``.

        Raises:
            UnknownJobError: an id is unknown.
            HeadUnreachableError: nobody answers, also after ``timeout_s``.
        """
        clock = SystemClock()
        deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        # First all of them without waiting: an unknown id or a dead head is an error at once. The
        # head forecasts no starts for it, as it does for `job`.
        stories = [self._look(_named(job), 0.0, deadline_s) for job in jobs]
        for index, story in enumerate(stories):
            while stories[index].row.state != JobState.DONE and not _is_over(clock, deadline_s):
                stories[index] = self._poll(story.row.id, clock, deadline_s)
        return stories

    def _poll(self, job: int, clock: SystemClock, deadline_s: float | None) -> job_rows.JobStory:
        """Return the job's story when it ends, or after POLL_S or at the deadline."""

        def look() -> job_rows.JobStory:
            poll_s = POLL_S
            if deadline_s is not None:
                poll_s = max(0.0, min(poll_s, deadline_s - clock.monotonic_s()))
            return self._look(str(job), poll_s, deadline_s)

        return outlast(look, until_s=deadline_s)

    def _look(self, job: str, poll_s: float, until_s: float | None) -> job_rows.JobStory:
        """Return the job's story when it ends, or after ``poll_s``."""
        target = f"/v1/jobs/{job}/wait?timeout_s={poll_s:.3f}"
        if not poll_s:  # as any other look at a job
            return self._get(target, job_rows.JobStory, until_s=until_s)
        silence_s = poll_s + _POLL_SLACK_S
        return self._get(target, job_rows.JobStory, timeout_s=silence_s, until_s=until_s)

    def code_limits(self) -> "CodeReply":
        """Return how large a code snapshot may be."""
        from gsched.protocol.code import CodePiece, CodeReply  # late: few commands need it

        return self._post("/v1/code", CodePiece(), CodeReply)

    def send_code(self, snapshot: "CodeSnapshot", archive: IO[bytes]) -> None:
        """Send the archive of a code snapshot, unless the head has it.

        Raises:
            RequestTooLargeError: it is larger than allowed.
        """
        from gsched.protocol.code import CodePiece, CodeReply  # late: few commands need it

        piece = CodePiece(digest=snapshot.digest, size_bytes=snapshot.size_bytes)
        received = self._post("/v1/code", piece, CodeReply).received_bytes
        while received < snapshot.size_bytes:
            archive.seek(received)
            data = archive.read(_CODE_PIECE_BYTES)
            piece = msgspec.structs.replace(piece, offset=received, data=data)
            received = self._post("/v1/code", piece, CodeReply).received_bytes

    # --- nodes, history, the head itself ---

    def hosts(self, *, names: bool = False) -> "HostList":
        """Return the head's machine, nodes and login hosts, with their accounts if ``names``."""
        from gsched.protocol.hosts import HostList  # late: few commands need it

        return self._get(f"/v1/hosts{'?names=1' if names else ''}", HostList)

    def nodes(self) -> "NodeList":
        """Return all nodes."""
        from gsched.protocol.node_rows import NodeList  # late: few commands need it

        return self._get("/v1/nodes", NodeList)

    def node_action(self, request: "AnyNodeAction") -> api.ActionReply:
        """Drain, resume or confirm dead: one result for each node, in order."""
        return self._post("/v1/nodes/actions", request, api.ActionReply)

    def shares(self, *, project: str = "", user: str = "") -> "SharesReply":
        """Return how projects and users stand, or those that are named."""
        from gsched.protocol.shares import SharesReply  # late: few commands need it

        return self._get(f"/v1/shares{_query({'project': project, 'user': user})}", SharesReply)

    def reservations(self, name: str = "") -> "ReservationsReply":
        """Return the reservations that the caller may see, or the one of a name."""
        from gsched.protocol.reservations import ReservationsReply  # late, as above

        return self._get(f"/v1/reservations{_query({'name': name})}", ReservationsReply)

    def change_reservation(self, change: "ReservationChange") -> "ReservationsReply":
        """Create, alter or delete a reservation; return it as it is then."""
        from gsched.protocol.reservations import ReservationsReply  # late, as above

        return self._post("/v1/reservations", change, ReservationsReply)

    def history(self, **filters: str | float | None) -> job_rows.HistoryReply:
        """Return past jobs, newest first.

        Args:
            **filters: ``user``, ``since`` and ``until`` (seconds since the epoch), ``outcome``,
                ``queue``, ``name``, ``limit``; None and the empty text filter nothing.
        """
        texts = {name: _text(value) for name, value in filters.items()}
        return self._get(f"/v1/history{_query(texts)}", job_rows.HistoryReply)

    def predictions(
        self, ids: Iterable[int | str] = (), **filters: str | float | None
    ) -> "PredictionsReply":
        """Return what past jobs have cost on each of their nodes, beside what was predicted.

        Args:
            ids: jobs, done or not; those that there are not are left out.
            **filters: as of `history`.

        Raises:
            UsageError: more ids than one request can hold, some hundreds.
        """
        from gsched.protocol.predictions import PredictionsReply  # late: few commands need it

        named = ",".join(_named(job) for job in ids)
        if len(named) > _MAX_IDS_TEXT:
            raise UsageError("too many job ids in one request", hint="give some hundreds at a time")
        query = _query({name: _text(value) for name, value in filters.items()})
        if named:  # as they are: quoted commas would take three characters
            query += f"{'&' if query else '?'}ids={named}"
        return self._get(f"/v1/history/predictions{query}", PredictionsReply)

    def node_predictions(self) -> "NodePredictions":
        """Return what runs on each node, predicted and measured, and past errors there."""
        from gsched.protocol.predictions import NodePredictions  # late: few commands need it

        return self._get("/v1/nodes/predictions", NodePredictions)

    def status(self) -> api.StatusReply:
        """Return how the head is."""
        return self._get("/v1/status", api.StatusReply)

    def running_config(self) -> "RunningConfig":
        """Return the configuration with which the head runs (operators only)."""
        from gsched.protocol.running import RunningConfig  # late: few commands need it

        return self._get("/v1/config", RunningConfig)

    def tasks(self) -> "TaskList":
        """Return the head's periodic tasks."""
        from gsched.protocol.tasks import TaskList  # late: few commands need it

        return self._get("/v1/tasks", TaskList)

    def run_task(self, name: str) -> "TaskList":
        """Start one of the head's periodic tasks (operators only)."""
        from gsched.protocol.tasks import RunTask, TaskList  # late: few commands need it

        return self._post("/v1/tasks", RunTask(name=name), TaskList)

    def tokens(self) -> "TokenList":
        """Return the tokens by which hosts join (operators only)."""
        from gsched.protocol.joining import TokenList  # late: few commands need it

        return self._get("/v1/tokens", TokenList)

    def create_token(self, wanted: "CreateToken") -> "CreatedToken":
        """Let a host join (operators only)."""
        from gsched.protocol.joining import CreatedToken  # late: few commands need it

        return self._post("/v1/tokens", wanted, CreatedToken)

    def delete_token(self, token_id: str) -> "TokenList":
        """Delete a token; return those that are left (operators only)."""
        from gsched.protocol.joining import TokenList  # late: few commands need it

        target = f"/v1/tokens/{quote(token_id)}"
        return self._decode(self._send("DELETE", target), TokenList, target)

    def user_tokens(self) -> "UserTokenList":
        """Return the caller's tokens for programs; for operators those of all users."""
        from gsched.protocol.tokens import UserTokenList  # late: few commands need it

        return self._get("/v1/user-tokens", UserTokenList)

    def create_user_token(self, wanted: "CreateUserToken") -> "CreatedUserToken":
        """Create a token for programs of a user."""
        from gsched.protocol.tokens import CreatedUserToken  # late: few commands need it

        return self._post("/v1/user-tokens", wanted, CreatedUserToken)

    def revoke_user_token(self, token_id: str) -> "UserTokenList":
        """Revoke a token for programs; return those that are left."""
        from gsched.protocol.tokens import UserTokenList  # late: few commands need it

        target = f"/v1/user-tokens/{quote(token_id)}"
        return self._decode(self._send("DELETE", target), UserTokenList, target)

    def authority_certificate(self) -> str:
        """Return the certificates of the authorities that count, in PEM."""
        from gsched.protocol.joining import AuthorityReply  # late: few commands need it

        return self._get("/v1/authority/certificate", AuthorityReply).certificate

    def authority(self) -> "AuthorityState":
        """Return the authorities, and the certificates of hosts (operators only)."""
        from gsched.protocol.joining import AuthorityState  # late: few commands need it

        return self._get("/v1/authority", AuthorityState)

    def change_authority(self, change: "ChangeAuthority") -> "AuthorityState":
        """Replace the authority, or end that (operators only)."""
        from gsched.protocol.joining import AuthorityState  # late: few commands need it

        return self._post("/v1/authority", change, AuthorityState)

    def revoke(self, node: str) -> "AuthorityState":
        """Refuse all certificates that a host has now (operators only)."""
        from gsched.protocol.joining import AuthorityState  # late: few commands need it

        target = f"/v1/nodes/{quote(node)}/revoke"
        return self._decode(self._send("POST", target, b"{}"), AuthorityState, target)

    def reload(self) -> "ReloadReply":
        """Let the head read its configuration again (operators only)."""
        from gsched.protocol.running import ReloadReply  # late: few commands need it

        return self._decode(self._post_again("/v1/reload", b"{}"), ReloadReply, "/v1/reload")

    def node_settings(self, node: str) -> "NodeSettingsReply":
        """Return with which settings a node runs, and where they come from (operators only)."""
        from gsched.protocol.settings import NodeSettingsReply  # late: few commands need it

        return self._get(f"/v1/nodes/{quote(node)}/settings", NodeSettingsReply)

    def snapshot(self) -> bytes:
        """Return what the policies see now (operators only), as ``gsim plan`` reads it."""
        return bytes(self._send("GET", "/v1/snapshot"))

    def recover(
        self, *, accept: bool, without_nodes: bool = False, believe: str = ""
    ) -> api.StatusReply:
        """End safe mode (operators only) and return how the head is then.

        Args:
            accept: end it; else only ``believe`` is done.
            without_nodes: also where known nodes have not said what they know.
            believe: the name of a refused node whose word is to be taken.
        """
        from gsched.protocol.recover import RecoverRequest  # late: few commands need it

        request = RecoverRequest(accept=accept, without_nodes=without_nodes, believe=believe)
        self._send("POST", "/v1/recover", encoded(request))
        return self.status()

    def recovery(self) -> "RecoverReply":
        """Return why the head is in safe mode, and what nodes know (operators only)."""
        from gsched.protocol.recover import RecoverReply  # late: few commands need it

        return self._get("/v1/recover", RecoverReply)

    def health(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> api.Health:
        """Return whether the head answers."""
        return self._get("/v1/health", api.Health, timeout_s=timeout_s)


def _named(job: int | str) -> str:
    """Return a job's id for a path; the server's name stays in it, for the head to compare."""
    return str(job) if isinstance(job, int) else quote(str(read_job_id(job)))


def outlast(look: Callable[[], T], *, until_s: float | None) -> T:
    """Return what ``look`` returns, of a head that may be restarted or upgraded meanwhile.

    Args:
        look: asks the head; it is called again if nobody answers, or if the head's disk is full.
        until_s: on the monotonic clock, when nothing is waited for any more; None: after
            WAIT_RETRY_S without an answer.

    Raises:
        HeadUnreachableError: nobody has answered in that time.
    """
    clock = SystemClock()
    limit_s = clock.monotonic_s() + WAIT_RETRY_S
    while True:
        try:
            return look()
        except (HeadUnreachableError, TryAgainError):
            if _is_over(clock, limit_s) or _is_over(clock, until_s):
                raise
        pause(PAUSE_S)


def _is_over(clock: SystemClock, deadline_s: float | None) -> bool:
    return deadline_s is not None and clock.monotonic_s() >= deadline_s


def _text(value: str | float | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, ".15g")


def _query(fields: dict[str, str]) -> str:
    pairs = [f"{name}={quote(value)}" for name, value in fields.items() if value]
    return f"?{'&'.join(pairs)}" if pairs else ""


def _bounded(ids: list[str]) -> Iterable[str]:
    """Yield the ids joined by commas, in parts that fit a request line."""
    part: list[str] = []
    size = 0
    for each in ids:
        if size + len(each) >= _MAX_IDS_TEXT:
            yield ",".join(part)
            part, size = [], 0
        part.append(each)
        size += len(each) + 1
    if part:
        yield ",".join(part)
