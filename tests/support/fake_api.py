"""A head that only speaks the API: answers from a dictionary, and can be told to fail.

For what a real head cannot be made to do at will: lose an answer, send chunks, lie. Everything
else is tested against the real head.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct, structs

from gsched.model.ids import array_of, job_number, read_job_id
from gsched.protocol import actions as a
from gsched.protocol import api, job_rows, node_rows, submissions
from gsched.protocol.messages import JobMessage, MessageReply
from gsched.protocol.reservations import ReservationsReply
from gsched.protocol.shares import SharesReply, StandingRow
from gsched.protocol.stories import JobStories
from tests.support.processes import PATIENCE_S

SERVER = "fake"
NOW_S = 1_790_000_000.0


def make_row(job: int, **changes: object) -> job_rows.JobRow:
    """Return a queued job's row, changed."""
    fields: dict[str, object] = {
        "id": job, "name": "train", "user": "alice", "queue": "batch", "state": "queued",
        "letter": "Q", "submitted_s": NOW_S - 100, "cpus": 1, "places": 1,
        "reason": "waits for 2 GPUs",
    }  # fmt: skip
    return msgspec.convert(fields | changes, job_rows.JobRow)


def make_story(row: job_rows.JobRow, **changes: object) -> job_rows.JobStory:
    """Return a story around ``row``, changed."""
    fields: dict[str, object] = {
        "server": SERVER, "now_s": NOW_S, "row": row, "attempts": (), "workdir": "/data",
        "events": (job_rows.EventRow(seq=1, at_s=NOW_S - 100, kind="JobSubmitted", text="queued"),),
        "resources": "nodes=1:ppn=1", "stdout_path": "/data/train.o1", "join": "n",
        "stderr_path": "/data/train.e1", "launch": "script", "rerunnable": True, "grace_s": 30.0,
    }  # fmt: skip
    return msgspec.convert(fields | changes, job_rows.JobStory)


class FakeApi:
    """What the fake head knows, and how it shall misbehave.

    Attributes:
        directory: where the output files of jobs that are done lie.
        stories: by job number.
        output: bytes by (job, stream).
        submitted: every job of every request that arrived.
        acted: every action on jobs or nodes.
        standings: what projects and users have used.
        queues: by name; the number of their jobs follows from the stories.
        output_of: what finds it there.
        fail_output: why no output can be read, if it cannot.
        lose_answers: how many answers to drop after having acted: the connection just ends.
        lose_looks: the same for answers to waits of no time.
        on_wait: called with the job's number before a wait is answered.
        on_job: the same, before a job's story is told.
        on_list: called before a list is told that was asked for without ``first``.
        long_list: of more jobs a first page can be had by itself.
        refuse: an error for every submission.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stories: dict[int, job_rows.JobStory] = {}
        self.output: dict[tuple[int, str], bytes] = {}
        self.submitted: list[submissions.SubmitJob] = []
        self.acted: list[a.AnyJobAction | a.AnyNodeAction] = []
        self.queues: dict[str, api.QueueRow] = {"batch": api.QueueRow(name="batch")}
        self.nodes: list[node_rows.NodeRow] = []
        self.standings: list[StandingRow] = []
        self.ids_by_key: dict[str, int] = {}
        self.targets: list[str] = []
        self.output_of: Callable[[tuple[int, str]], bytes] = lambda key: self.output.get(key, b"")
        self.fail_output = ""
        self.messages: list[JobMessage] = []
        self.lose_answers = 0
        self.lose_looks = 0
        self.no_room = 0
        self.sizes: list[int] = []
        self.on_wait: Callable[[int], None] = lambda job: None
        self.on_job: Callable[[int], None] = lambda job: None
        self.on_list: Callable[[], None] = lambda: None
        self.long_list = 20_000
        self.refuse: api.ErrorBody | None = None

    def add(self, row: job_rows.JobRow, **changes: object) -> None:
        """Let there be a job."""
        self.stories[row.id] = make_story(row, **changes)

    def change(self, job: int, **changes: object) -> None:
        """Change a job's row."""
        story = self.stories[job]
        self.stories[job] = structs.replace(story, row=structs.replace(story.row, **changes))

    def application(self) -> web.Application:
        """Return the routes."""
        app = web.Application(client_max_size=api.MAX_BODY_BYTES)
        app.router.add_post("/v1/jobs", self._submit)
        app.router.add_post("/v1/jobs/{id}/message", self._message)
        app.router.add_get("/v1/jobs", self._jobs)
        app.router.add_get("/v1/jobs/{id}", self._job)
        app.router.add_get("/v1/stories", self._stories)
        app.router.add_get("/v1/history", self._history)
        app.router.add_get("/v1/jobs/{id}/wait", self._wait)
        app.router.add_get("/v1/jobs/{id}/output", self._output)
        app.router.add_post("/v1/jobs/actions", self._act)
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/nodes", self._nodes)
        app.router.add_get("/v1/shares", self._shares)
        app.router.add_get("/v1/reservations", self._reservations)
        app.router.add_post("/v1/nodes/actions", self._act_on_nodes)
        return app

    async def _submit(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.no_room:
            self.no_room -= 1
            error = api.ErrorReply(error=api.ErrorBody(code="try_again", message="no room"))
            answer = _answer(error, status=429)
            answer.headers["Retry-After"] = "0"
            return answer
        asked = msgspec.json.decode(body, type=submissions.SubmitRequest)
        self.sizes.append(len(body))
        self.submitted.extend(asked.jobs)
        if self.refuse is not None:
            return _answer(api.ErrorReply(error=self.refuse), status=422)
        results = tuple(self._accept(job, dry_run=asked.dry_run) for job in asked.jobs)
        return self._maybe_lost(request, submissions.SubmitReply(server=SERVER, results=results))

    def _accept(self, job: submissions.SubmitJob, *, dry_run: bool) -> submissions.SubmitResult:
        if dry_run:
            return submissions.SubmitResult(predicted_start_s=NOW_S)
        number = self.ids_by_key.setdefault(job.key, len(self.ids_by_key) + 1)
        if number not in self.stories:
            self.add(make_row(number, name=job.name))
        return submissions.SubmitResult(id=number)

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        self.targets.append(request.path_qs)
        first = int(request.query.get("first", "0"))
        if not first:
            await asyncio.to_thread(self.on_list)
        texts = [each for each in request.query.get("ids", "").split(",") if each]
        ids = [job_number(read_job_id(each)) for each in texts]
        rows = [s.row for n, s in self.stories.items() if n in ids or not ids]
        if not ids and "all" not in request.query:
            rows = [row for row in rows if row.state != "done"]
        if request.query.get("user"):
            rows = [row for row in rows if row.user == request.query["user"]]
        if request.query.get("state"):
            rows = [row for row in rows if row.state in request.query["state"].split(",")]
        errors = {t: _unknown(n) for t, n in zip(texts, ids, strict=True) if n not in self.stories}
        if first and len(rows) > self.long_list:
            page = tuple(rows[:first])
            cut = job_rows.JobList(server=SERVER, now_s=NOW_S, jobs=page, is_cut=True)
            return _answer(cut)
        return _answer(
            job_rows.JobList(server=SERVER, now_s=NOW_S, jobs=tuple(rows), errors=errors)
        )

    async def _job(self, request: web.Request) -> web.StreamResponse:
        self.on_job(read_job_id(request.match_info["id"]).number)
        number = job_number(read_job_id(request.match_info["id"]))
        if number not in self.stories:
            return _answer(api.ErrorReply(error=_unknown(number)), status=404)
        return _answer(self.stories[number])

    async def _history(self, request: web.Request) -> web.StreamResponse:
        """Answer with the elements that have ended of the arrays that are named: ``7[]``.

        If none are named, with all jobs that have ended since a moment.
        """
        ids = [each for each in request.query.get("ids", "").split(",") if each]
        arrays = {read_job_id(each).number for each in ids}
        since_s = float(request.query.get("since", "0"))
        user = request.query.get("user", "")
        rows = [story.row for story in self.stories.values() if story.row.state == "done"]
        rows = [row for row in rows if not user or row.user == user]
        found = tuple(
            row
            for row in rows
            if (array_of(row.id) in arrays if ids else (row.ended_s or NOW_S) >= since_s)
        )
        return _answer(
            job_rows.HistoryReply(
                server=SERVER,
                now_s=NOW_S,
                jobs=found,
                total_jobs=len(found),
                total_failed=0,
                total_cpu_s=0.0,
                total_wall_s=0.0,
                total_gpu_s=0.0,
            )
        )

    async def _stories(self, request: web.Request) -> web.StreamResponse:
        ids = [text for text in request.query["ids"].split(",") if text]
        numbers = {text: job_number(read_job_id(text)) for text in ids}
        known = dict.fromkeys(number for number in numbers.values() if number in self.stories)
        return _answer(
            JobStories(
                server=SERVER,
                now_s=NOW_S,
                jobs=tuple(self.stories[number] for number in known),
                errors={t: _unknown(n) for t, n in numbers.items() if n not in self.stories},
            )
        )

    async def _wait(self, request: web.Request) -> web.StreamResponse:
        number = read_job_id(request.match_info["id"]).number
        if number not in self.stories:
            return _answer(api.ErrorReply(error=_unknown(number)), status=404)
        if not float(request.query["timeout_s"]):
            if self.lose_looks:
                self.lose_looks -= 1
                assert request.transport is not None
                request.transport.abort()
            return _answer(self.stories[number])
        self.on_wait(number)
        return self._maybe_lost(request, self.stories[number])

    async def _message(self, request: web.Request) -> web.StreamResponse:
        number = read_job_id(request.match_info["id"]).number
        if number not in self.stories:
            return _answer(api.ErrorReply(error=_unknown(number)), status=404)
        state = self.stories[number].row.state
        if state != "running":
            message = f"job {number} is {state}, not running on n1"
            error = api.ErrorBody(code="bad_state", message=message)
            return _answer(api.ErrorReply(error=error), status=409)
        self.messages.append(msgspec.json.decode(await request.read(), type=JobMessage))
        return _answer(MessageReply(node="n1", paths=("/data/err",)))

    async def _output(self, request: web.Request) -> web.StreamResponse:
        number = read_job_id(request.match_info["id"]).number
        if number not in self.stories:
            return _answer(api.ErrorReply(error=_unknown(number)), status=404)
        if self.fail_output:
            error = api.ErrorBody(code="try_again", message=self.fail_output)
            return _answer(api.ErrorReply(error=error), status=503)
        stream = request.query["stream"]
        data = self.output_of((number, stream))
        if self.stories[number].row.state == "done":
            return _answer(self._ended(number, stream))
        offset = int(request.query["offset"])
        start = max(0, len(data) + offset) if offset < 0 else offset
        chunk = api.OutputChunk(
            path="/data/out", node="n1", offset=start, size_bytes=len(data),
            data=data[start : start + int(request.query["max"])],
            ended=False,
        )  # fmt: skip
        return _answer(chunk)

    def _ended(self, job: int, stream: str) -> api.OutputChunk:
        """Of a job that is done the head only says where its file is, as the real one does."""
        path = self.directory / f"{job}.{stream}"
        if (job, stream) in self.output:
            path.write_bytes(self.output[job, stream])
        return api.OutputChunk(
            path=str(path), node="n1", offset=0, size_bytes=0, data=b"", ended=True
        )

    async def _status(self, request: web.Request) -> web.StreamResponse:
        counts: dict[str, dict[str, int]] = {name: {} for name in self.queues}
        for story in self.stories.values():
            if story.row.state != "done":
                inside = counts[story.row.queue]
                inside[story.row.state] = inside.get(story.row.state, 0) + 1
        rows = tuple(structs.replace(row, jobs=counts[row.name]) for row in self.queues.values())
        totals = {state: 0 for each in counts.values() for state in each}
        for each in counts.values():
            for state, count in each.items():
                totals[state] += count
        return _answer(
            api.StatusReply(
                server=SERVER, version="0.1.0", api_version=api.API_VERSION, cluster="c", epoch=1,
                pid=4242, started_s=1.0, now_s=NOW_S, jobs=totals, nodes_up=1, nodes=1, cycles=1,
                queues=tuple(self.queues), queue_rows=rows,
            )
        )  # fmt: skip

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        return _answer(node_rows.NodeList(server=SERVER, now_s=NOW_S, nodes=tuple(self.nodes)))

    async def _reservations(self, _: web.Request) -> web.Response:
        return _answer(ReservationsReply(now_s=NOW_S))

    async def _shares(self, request: web.Request) -> web.StreamResponse:
        rows = tuple(self.standings)
        return _answer(SharesReply(now_s=NOW_S, half_life_s=0.0, orders=True, rows=rows))

    async def _act_on_nodes(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=a.NODE_ACTION)
        self.acted.append(asked)
        known = {row.name for row in self.nodes}
        unknown = api.ErrorBody(code="unknown_node", message="unknown node")
        results = tuple(
            api.ActionResult(id=each) if each in known else api.ActionResult(id=each, error=unknown)
            for each in asked.nodes
        )
        return _answer(api.ActionReply(results=results))

    async def _act(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=a.JOB_ACTION)
        self.acted.append(asked)
        results = tuple(
            api.ActionResult(id=each, text=f"{asked.action} {each}")
            if read_job_id(each).number in self.stories
            else api.ActionResult(id=each, error=_unknown(each))
            for each in asked.ids
        )
        return _answer(api.ActionReply(results=results))

    def _maybe_lost(self, request: web.Request, reply: Struct) -> web.StreamResponse:
        if self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return _answer(reply)


def _unknown(job: int | str) -> api.ErrorBody:
    return api.ErrorBody(code="unknown_job", message=f"Unknown Job Id {job}", hint="see gstat")


def _answer(reply: Struct, *, status: int = 200) -> web.Response:
    body = msgspec.json.encode(reply)
    return web.Response(body=body, status=status, content_type="application/json")


@contextmanager
def serve(app: web.Application, socket_path: Path) -> Iterator[None]:
    """Serve an application on a Unix socket, in a thread of its own."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, handler_cancellation=True)

    async def start() -> None:
        await runner.setup()
        await web.UnixSite(runner, str(socket_path)).start()

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="fake-api")
    thread.start()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
