"""Jobs are submitted again: ``POST /v1/jobs/submit-again``, and what has failed of them.

Which elements of an array have failed only the database knows, so the core gets their indices with
the command.
"""

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from aiohttp import web
from msgspec import Struct, structs

from gsched.errors import BadStateError, StorageError, UnknownJobError
from gsched.failpoint import failpoint
from gsched.model import limits
from gsched.model.arrays import (
    Array,
    Span,
    Spans,
    count,
    format_spans,
    indices,
    read_spans,
    shortest,
)
from gsched.model.dependency import format_dependencies
from gsched.model.ids import JobId, array_of, index_of, own_job, short_job_id
from gsched.model.job import JobSpec
from gsched.model.states import JobState, OutcomeKind
from gsched.protocol.rerun import (
    RerunFailed,
    RerunReply,
    SubmitAgain,
    SubmitAgainReply,
)
from gsched.protocol.submissions import SubmitResult
from gschedd.core.requests import commands as c
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.core.requests.resubmit import (
    changeable,
    changed_submission,
    prepare_again,
    stated_spec,
)
from gschedd.core.requests.submit import known_submission
from gschedd.core.state.elements import unfinished_elements
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller
from gschedd.core.state.step import Step
from gschedd.core.views.kept import kept_words
from gschedd.http.answers import answer
from gschedd.http.bodies import read_body
from gschedd.http.commands import Parts
from gschedd.http.contents import content_of
from gschedd.http.elements import check_array
from gschedd.http.forecasts import with_outlook, with_start
from gschedd.http.past import past_of

_TEXTS: Final = limits.texts_of(RerunFailed)
_TEXTS_AGAIN: Final = limits.texts_of(SubmitAgain)
_SHOWN: Final = 60  # characters of a list of indices in a message


class _Failed(Struct, frozen=True, kw_only=True):
    """What has failed of a job.

    Attributes:
        elements: of an array, those that have failed.
        count: how many jobs are to run again.
        unfinished: how many elements have not finished, or 1 for a job that has not.
        nothing: in words that nothing has failed; empty: something has.
    """

    elements: Spans = ()
    count: int = 0
    unfinished: int = 0
    nothing: str = ""
    warnings: tuple[str, ...] = ()


class Resubmissions:
    """The handler of the route.

    Args:
        parts: what submissions work with.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._queries = parts.queries
        self._engine = parts.engine

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/v1/jobs/rerun-failed", self.rerun_failed),
            web.post("/v1/jobs/submit-again", self.submit_again),
        ]

    async def rerun_failed(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/jobs/rerun-failed``: the id is sent after the new job is durable."""
        caller = self._parts.callers.of(request)
        wanted = await read_body(request, self._parts.bodies, RerunFailed)
        limits.check_texts(wanted, _TEXTS)
        limits.check_words("ids", (wanted.job,), most=1, longest=limits.MAX_WORD)
        return await _acknowledged(request, answer(await self._reply(wanted, caller)))

    async def submit_again(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/jobs/submit-again``: the id is sent after the new job is durable."""
        caller = self._parts.callers.of(request)
        wanted = await read_body(request, self._parts.bodies, SubmitAgain)
        limits.check_texts(wanted, _TEXTS_AGAIN)
        limits.check_words("ids", (wanted.job,), most=1, longest=limits.MAX_WORD)
        limits.check_words(
            "names in without", wanted.without, most=limits.MAX_RECIPIENTS, longest=limits.MAX_WORD
        )
        return await _acknowledged(request, answer(await self._reply_again(wanted, caller)))

    async def _reply_again(self, wanted: SubmitAgain, caller: Caller) -> SubmitAgainReply:
        """Submit a job again, or with ``dry_run`` only say what the new one would be.

        Raises:
            GschedError: the job is unknown or somebody else's, or cannot be submitted again.
        """
        head, parts = self._engine.head, self._parts
        job = own_job(wanted.job, server=head.settings.server)
        number, spans = _meant(job)
        await self._engine.settled()
        original = await self._queries.find(str(number))
        check_array(job, original)
        authorize(caller, Verb.RESUBMIT_JOB, original)
        stated, uid = original.spec.array, original.spec.owner.uid
        reply = SubmitAgainReply(
            server=head.settings.server, result=SubmitResult(), is_array=stated is not None
        )
        known = await self._known(uid, wanted.key)
        if known:
            return structs.replace(reply, result=SubmitResult(id=known))
        elements = stated.spans if stated is not None else ()
        if stated is not None and spans:
            chosen = await asyncio.to_thread(_chosen, original, stated, spans)
            elements = shortest(sorted(chosen))
        blobs = await self._blobs(original)
        await parts.code.check(uid, original.spec.snapshot)
        spec = stated_spec(original.spec)
        script = blobs.get(spec.script_digest, b"").decode(errors="replace")
        anew = changed_submission(spec, wanted.changes, script)
        content = None
        if anew.script != script:
            content = await asyncio.to_thread(content_of, anew)
            blobs[content.script.digest] = content.script.data
        texts = [format_dependencies(spec.depends)]
        command = c.Resubmit(
            caller=caller,
            original=original,
            elements=elements,
            key=wanted.key,
            anew=anew,
            script_digest=spec.script_digest if content is None else content.script.digest,
            without=wanted.without,
            past=await past_of(texts, head.state, self._queries.ended_well),
        )
        if wanted.dry_run:
            now_s = parts.clock.wall_s()
            found = prepare_again(command, head.state, head.settings, now_s)
            result = SubmitResult(warnings=found.warnings)
            if wanted.forecast:
                outlook = await parts.forecasts.outlook(found.spec, uid=uid)
                result = with_outlook(with_start(result, outlook), found.spec, outlook)
            return structs.replace(
                reply,
                result=result,
                launch=spec.launch.value,
                request=changeable(found.spec, anew.script),
                kept=kept_words(found.spec),
                left_out=dict(found.left_out),
            )
        parts.space.check()
        if content is not None:
            await parts.texts.admit(uid, [content])
        [step] = await self._engine.ask(partial(self._submit, command, blobs), is_request=True)
        if step.error is not None:
            raise step.error
        return structs.replace(reply, result=SubmitResult(id=step.job, warnings=step.warnings))

    async def _reply(self, wanted: RerunFailed, caller: Caller) -> RerunReply:
        """Submit what has failed, or with ``dry_run`` only say what that is.

        Raises:
            GschedError: the job is unknown or somebody else's, or cannot be submitted again.
        """
        job = own_job(wanted.job, server=self._engine.head.settings.server)
        number, spans = _meant(job)
        await self._engine.settled()
        original = await self._queries.find(str(number))
        check_array(job, original)
        authorize(caller, Verb.RESUBMIT_JOB, original)
        failed = await self._failed(original, spans)
        known = await self._known(original.spec.owner.uid, wanted.key)
        if known:
            return self._answer(await self._made(known, failed), known)
        if failed.nothing:
            return self._answer(failed)
        blobs = await self._blobs(original)
        await self._parts.code.check(original.spec.owner.uid, original.spec.snapshot)
        command = c.Resubmit(
            caller=caller, original=original, elements=failed.elements, key=wanted.key
        )
        if wanted.dry_run:
            head, now_s = self._engine.head, self._parts.clock.wall_s()
            warnings = prepare_again(command, head.state, head.settings, now_s).warnings
            return self._answer(failed, warnings=warnings)
        self._parts.space.check()
        [step] = await self._engine.ask(partial(self._submit, command, blobs), is_request=True)
        if step.error is not None:
            raise step.error
        return self._answer(failed, step.job, step.warnings)

    def _answer(self, failed: _Failed, number: int = 0, warnings: Sequence[str] = ()) -> RerunReply:
        return RerunReply(
            server=self._engine.head.settings.server,
            id=number,
            elements=format_spans(failed.elements),
            count=failed.count,
            unfinished=failed.unfinished,
            nothing=failed.nothing,
            warnings=(*failed.warnings, *warnings),
        )

    def _submit(self, command: c.Resubmit, blobs: dict[str, bytes], now_s: float) -> Sequence[Step]:
        """Queue the new job; its texts are kept again, as the original may be purged meanwhile."""
        step = self._engine.head.command(command, now_s)
        if step.facts:
            for digest, data in blobs.items():
                self._engine.keep_blob(digest, data, command.original.spec.owner.uid)
                self._parts.blobs.put(digest, data)
        return [step]

    async def _known(self, uid: int, key: str) -> int:
        """Return the job of an earlier try, 0 for none; memory may have forgotten it."""
        if not key:
            return 0
        known = known_submission(self._engine.head.state, uid, key)
        return known or (await self._queries.jobs_of_keys(uid, [key])).get(key, 0)

    async def _made(self, number: int, failed: _Failed) -> _Failed:
        """Return what an earlier try has submitted."""
        array = (await self._queries.find(str(number))).spec.array
        spans = array.spans if array is not None else ()
        return structs.replace(failed, elements=spans, count=count(spans) or 1, nothing="")

    async def _blobs(self, original: Job) -> dict[str, bytes]:
        """Return the script, environment and lines of a job.

        Raises:
            BadStateError: one is not there any more.
        """
        try:
            return await self._queries.blobs(_digests(original.spec))
        except StorageError:
            raise BadStateError(
                f"the head does not have the script or environment of job {_name(original)} any "
                "more",
                hint="submit the script again with gsub",
            ) from None

    async def _failed(self, original: Job, spans: Spans) -> _Failed:
        """Return what has failed of a job, or of some elements of an array.

        Raises:
            UnknownJobError: the array has no such elements.
        """
        stated, elements = original.spec.array, original.elements
        if stated is None or elements is None:
            return _failed_job(original)
        # What ends after this look is either found in the database, or told as unfinished.
        counted = elements.failed
        index = self._engine.head.state.arrays.get(original.id)
        unfinished = list(unfinished_elements(index)) if index is not None else []
        failed = await self._queries.failed_elements(original.id)
        chosen = await asyncio.to_thread(_chosen, original, stated, spans)
        name = f"{original.id}[{format_spans(spans)[:_SHOWN]}]"
        found = await asyncio.to_thread(_failed_elements, name, chosen, failed, unfinished)
        gone = counted - len(failed)
        if gone <= 0:
            return found
        what = "1 failed element" if gone == 1 else f"{gone} failed elements"
        words = f"{what} of job {original.id}[] {_are(gone)} not in the history any more"
        return structs.replace(found, warnings=(words,))


def _meant(job: JobId) -> tuple[int, Spans]:
    """Return the number of a job, and which of its elements are meant; none: all."""
    if array_of(job.number):
        here = index_of(job.number)
        return array_of(job.number), (Span(here, here),)
    inner = job.elements[1:-1]
    return job.number, read_spans(inner) if inner else ()


def _name(job: Job) -> str:
    return f"{job.id}[]" if job.spec.array is not None else short_job_id(job.id)


def _digests(spec: JobSpec) -> list[str]:
    every = (spec.script_digest, spec.environment_digest, spec.lines_digest)
    return [digest for digest in every if digest]


def _failed_job(job: Job) -> _Failed:
    """Return whether an ordinary job has failed."""
    name, outcome = _name(job), job.outcome
    if job.state is not JobState.DONE or outcome is None:
        return _Failed(unfinished=1, nothing=f"job {name} has not finished")
    if outcome.succeeded:
        return _Failed(nothing=f"job {name} has succeeded")
    if outcome.kind is OutcomeKind.CANCELLED:
        return _Failed(nothing=f"job {name} was cancelled: it has not failed")
    return _Failed(count=1)


async def _acknowledged(request: web.Request, response: web.Response) -> web.Response:
    """Send the answer to a submission."""
    await response.prepare(request)
    await response.write_eof()
    failpoint("head.submit.after_ack")
    return response


def _chosen(original: Job, stated: Array, spans: Spans) -> Collection[int]:
    """Return those elements of an array that are meant.

    Raises:
        UnknownJobError: it has no such elements.
    """
    every = set(indices(stated.spans))
    chosen = every.intersection(indices(spans)) if spans else every
    if not chosen:
        raise UnknownJobError(
            f"job {_name(original)} has no element {format_spans(spans)[:_SHOWN]}",
            hint=f"the indices of the array are {stated}"[: limits.MAX_WORD],
        )
    return chosen


def _failed_elements(
    name: str,
    chosen: Collection[int],
    failed: Sequence[int],
    unfinished: Sequence[int],
) -> _Failed:
    """Return what has failed of an array.

    Args:
        name: of the array, with the indices that were written.
        chosen: the elements that are meant.
        failed: all that have failed, as the database has them, ascending.
        unfinished: all that had not finished before that was read.
    """
    again = [index for index in failed if index in chosen]
    left = len(set(unfinished).intersection(chosen).difference(failed))
    if not again:
        rest = f" so far; {left} {'has' if left == 1 else 'have'} not finished" if left else ""
        words = f"no element of job {name} has failed{rest}"
        return _Failed(unfinished=left, nothing=words)
    return _Failed(elements=shortest(again), count=len(again), unfinished=left)


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
