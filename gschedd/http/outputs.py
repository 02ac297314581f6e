"""The output files of running jobs: read by users, and written to by them, on the jobs' nodes."""

import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from gsched.errors import BadStateError, InvalidRequestError
from gsched.logs import one_line
from gsched.model.ids import short_job_id
from gsched.model.limits import MAX_WORD
from gsched.model.numbers import MAX_NUMBER
from gsched.model.states import JobState, PartState
from gsched.protocol import api
from gsched.protocol import node as n
from gsched.protocol.messages import JobMessage, MessageReply
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.core.requests.interactive import check_has_files
from gschedd.core.state.records import Job, Part
from gschedd.core.state.state import State
from gschedd.http.answers import answer
from gschedd.http.audit import note_verb
from gschedd.http.bodies import Bodies, read_body
from gschedd.http.callers import Callers
from gschedd.http.deliveries import Deliveries
from gschedd.http.filters import read_number
from gschedd.http.links import Links


def message_line(text: str) -> bytes:
    """Return a message as it is written into a file: a terminal that shows it obeys no escapes."""
    parts = re.split(r"([\n\t])", text)
    shown = "".join(each if each in {"\n", "\t"} else one_line(each) for each in parts)
    return f"{shown}\n".encode("utf-8", "surrogateescape")


class Outputs:
    """Handlers of the routes.

    Args:
        find: finds a job by its id as written.
    """

    def __init__(
        self,
        *,
        state: State,
        find: Callable[[str], Awaitable[Job]],
        callers: Callers,
        bodies: Bodies,
        links: Links,
        deliveries: Deliveries,
    ) -> None:
        self._deliveries = deliveries
        self._state = state
        self._find = find
        self._callers = callers
        self._bodies = bodies
        self._links = links

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/jobs/{id}/output", self.output),
            web.post("/v1/jobs/{id}/message", self.write),
        ]

    async def output(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/jobs/ID/output``: for the owner and operators."""
        caller = self._callers.of(request, acts=True)
        query = request.query
        stream = query.get("stream", "stdout")
        if stream not in {"stdout", "stderr"}:
            raise InvalidRequestError(f"stream {stream!r} is not known: stdout or stderr")
        stated = read_number(query.get("offset", "0"), "offset")
        if abs(stated) > MAX_NUMBER:
            raise InvalidRequestError(f"offset {stated:g} lies beyond any file")
        offset = int(stated)
        limit = int(read_number(query.get("max", str(api.MAX_OUTPUT_CHUNK_BYTES)), "max"))
        job = await self._find(request.match_info["id"])
        if not caller.owns(job.spec.owner):
            note_verb(request, Verb.READ_OUTPUT.value, short_job_id(job.id))
        authorize(caller, Verb.READ_OUTPUT, job)
        check_has_files(job)
        node, part = _output_part(job, query.get("node", ""))
        window = (offset, max(1, min(limit, api.MAX_OUTPUT_CHUNK_BYTES)))
        if part.state is PartState.ENDED and query.get("finished") == "1":
            return answer(
                await self._deliveries.read(
                    job, node, stream, offset=window[0], max_bytes=window[1]
                )
            )
        return answer(await self._output(job, node, part, stream=stream, window=window))

    async def _output(
        self, job: Job, node: str, part: Part, *, stream: str, window: tuple[int, int]
    ) -> api.OutputChunk:
        ended = job.state is JobState.DONE
        path = part.stdout_path if stream == "stdout" else part.stderr_path
        if part.state is not PartState.RUNNING:
            # The file is the user's own by now; where it is, the command can read it itself. With
            # ``finished=1`` the head has it read there.
            return api.OutputChunk(
                path=path, node=node, offset=0, size_bytes=0, data=b"", ended=ended
            )
        output = await self._ask(job, node, stream, offset=window[0], max_bytes=window[1])
        return api.OutputChunk(
            path=output.path,
            node=node,
            offset=output.offset,
            size_bytes=output.size_bytes,
            data=output.data,
            ended=ended,
        )

    async def write(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/jobs/ID/message``: for the owner and operators; written as the owner."""
        caller = self._callers.of(request, acts=True)
        message = await read_body(request, self._bodies, JobMessage)
        if not message.text.strip() or "\0" in message.text or len(message.text) > MAX_WORD * 16:
            raise InvalidRequestError(
                f"a message has 1 to {MAX_WORD * 16} characters", hint="write a shorter one"
            )
        job = await self._find(request.match_info["id"])
        note_verb(request, Verb.WRITE_MESSAGE.value, short_job_id(job.id))
        authorize(caller, Verb.WRITE_MESSAGE, job)
        check_has_files(job)
        name = short_job_id(job.id)
        node, part = _output_part(job, message.node)
        if part.state is not PartState.RUNNING:
            raise BadStateError(f"job {name} is {job.state}, not running on {node}")
        wanted = {"stdout": message.stdout, "stderr": message.stderr or not message.stdout}
        paths = {"stdout": part.stdout_path, "stderr": part.stderr_path}
        streams = {paths[stream]: stream for stream, is_wanted in wanted.items() if is_wanted}
        line = message_line(message.text)
        for stream in streams.values():  # both may be one file
            await self._ask(job, node, stream, append=line)
        return answer(MessageReply(node=node, paths=tuple(streams)))

    async def _ask(
        self,
        job: Job,
        node: str,
        stream: str,
        *,
        offset: int = 0,
        max_bytes: int = 0,
        append: bytes = b"",
    ) -> n.OutputRead:
        """Have a node read or write a running job's output.

        Raises:
            BadStateError: the node is not connected or does not answer.
            InvalidRequestError: it cannot be done there.
        """
        assert job.attempt is not None, "a running part belongs to an attempt"
        order = n.ReadOutput(
            request=0,
            job=job.id,
            attempt=job.attempt.number,
            stream=stream,
            offset=offset,
            max_bytes=max_bytes,
            append=append,
        )
        output = await self._links.read_output(node, order)
        if output.error:
            raise InvalidRequestError(f"job {short_job_id(job.id)} on {node}: {output.error}")
        return output


def _output_part(job: Job, node: str) -> tuple[str, Part]:
    """Return where the job's output is: on a node of its present or last attempt, or the first.

    Raises:
        InvalidRequestError: the job has not run, or not on that node.
    """
    if job.elements is not None:
        raise InvalidRequestError(
            f"job {short_job_id(job.id)} is an array: each of its elements has its own output",
            hint=f"name one, as in {short_job_id(job.id)}[7]: gstat -t {short_job_id(job.id)}",
        )
    if job.attempt is None or not job.attempt.parts:
        raise InvalidRequestError(
            f"job {short_job_id(job.id)} has not run yet: there is no output",
            hint=f"gstat -f {short_job_id(job.id)}",
        )
    parts = job.attempt.parts
    if not node:
        return next(iter(parts.items()))
    if node not in parts:
        raise InvalidRequestError(
            f"job {short_job_id(job.id)} did not run on {node[:100]!r}",
            hint=f"it ran on {', '.join(parts)}",
        )
    return node, parts[node]
