"""The form that submits a job, also one like a job before; the head checks it as for gsub."""

import asyncio
import hashlib
import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from gsched.cli.submit.deadline import planned_words
from gsched.cli.times import format_start, local_times
from gsched.errors import GschedError, HeadUnreachableError, InvalidRequestError
from gsched.protocol.api import StatusReply
from gsched.protocol.rerun import JobChanges, SubmitAgain, SubmitAgainReply
from gsched.protocol.submissions import SubmitJob, SubmitReply, SubmitRequest, SubmitResult
from gschedd.monitor.link import refused_part
from gschedd.monitor.model import ReadModel
from gschedd.monitor.page.nodes import away
from gschedd.monitor.page.shown import AWAY_S
from gschedd.monitor.page.site import Form, Pages, form_key, status_of
from gschedd.monitor.viewers import Viewer

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_EMPTY: Final = {
    "name": "",
    "queue": "",
    "resources": "nodes=1:ppn=1,walltime=1:00:00",
    "workdir": "",
    "script": "#!/bin/sh\n",
    "arguments": "",
    "from": "",
}


class SubmitPage:
    """The page with the form."""

    def __init__(self, site: Pages, model: ReadModel) -> None:
        self._site = site
        self._model = model
        self._queues: Sequence[str] = ()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            self._site.shows("/submit", self.form),
            self._site.does("/submit", self.submit),
        ]

    async def form(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /submit``, or ``GET /submit?from=ID``: filled with what a job of the viewer has."""
        like = request.query.get("from", "")
        if not like:
            return await self._page(viewer, _EMPTY | {"workdir": viewer.home})
        again = await self._again(SubmitAgain(job=like, dry_run=True), viewer)
        return await self._page(viewer, _fields_of(again, like), again=again)

    async def _again(self, wanted: SubmitAgain, viewer: Viewer) -> SubmitAgainReply:
        return await self._model.head.post(
            "/v1/jobs/submit-again", wanted, SubmitAgainReply, viewer=viewer
        )

    async def _page(
        self,
        viewer: Viewer,
        fields: dict[str, str],
        *,
        error: GschedError | None = None,
        notes: tuple[str, ...] = (),
        again: SubmitAgainReply | None = None,
        key: str = "",
    ) -> web.StreamResponse:
        """Return the form, while the head does not answer with the queues that it had.

        Raises:
            GschedError: the head does not answer, and never has.
        """
        try:
            async with asyncio.timeout(AWAY_S):
                status = await self._model.head.get("/v1/status", StatusReply, viewer=viewer)
            self._queues = status.queues
        except (HeadUnreachableError, TimeoutError):
            if not self._queues and error is None:
                raise away(self._model) from None
        return self._site.page(
            "submit.html",
            viewer,
            status=200 if error is None else status_of(error),
            title=f"Submit job {fields['from']} again" if fields["from"] else "Submit a job",
            here="/submit",
            fields=fields,
            queues=self._queues,
            sent_key=key,
            error=error,
            notes=notes,
            launch="script" if again is None else again.launch,
            kept=[] if again is None else _kept(again),
            has_deadline=again is not None and "deadline" in again.kept,
            left_out={} if again is None else again.left_out,
        )

    async def submit(self, _request: web.Request, viewer: Viewer, form: Form) -> web.StreamResponse:
        """``POST /submit``: submits the job, or only checks it."""
        fields = _EMPTY | {name: form[name] for name in _EMPTY if name in form}
        fields["script"] = fields["script"].replace("\r\n", "\n")
        again: SubmitAgainReply | None = None
        try:
            if fields["from"]:
                again, result = await self._submit_again(fields, viewer, form)
            else:
                result = await self._submit(fields, viewer, form)
        except GschedError as error:
            with suppress(GschedError):
                if fields["from"]:  # what it would be now may be something else
                    same = SubmitAgain(job=fields["from"], dry_run=True)
                    again = await self._again(same, viewer)
            key = form.get("key", "")  # the head may have the job: sent again, it is the same one
            return await self._page(viewer, fields, error=error, again=again, key=key)
        if "check" not in form:
            is_array = again is not None and again.is_array
            return self._site.sent_to(f"/jobs/{result.id}{'[]' if is_array else ''}")
        now_s = self._model.clock.wall_s()
        starts = local_times(format_start(result.start, result.predicted_start_s, now_s=now_s))
        words = f"The head would accept this job. Expected start: {starts or 'unknown'}."
        if planned := planned_words(result, now_s=now_s):
            words += f" {planned[:1].upper()}{planned[1:]}."
        left_out = () if again is None else again.left_out.values()
        warnings = (each for each in result.warnings if each not in left_out)
        return await self._page(viewer, fields, notes=(words, *warnings), again=again)

    async def _submit(self, fields: dict[str, str], viewer: Viewer, form: Form) -> SubmitResult:
        """Submit a job, or check it.

        Raises:
            GschedError: it is refused.
        """
        job = SubmitJob(
            key=_key_of(form, fields),
            name=_name_of(fields),
            workdir=fields["workdir"].strip(),
            queue=fields["queue"],
            resources=(fields["resources"].strip(),) if fields["resources"].strip() else (),
            script=fields["script"],
            environment={
                "HOME": viewer.home,
                "LOGNAME": viewer.user,
                "PATH": _PATH,
                "SHELL": viewer.shell,
                "USER": viewer.user,
            },
        )
        body = SubmitRequest(jobs=(job,), dry_run="check" in form)
        reply = await self._model.head.post("/v1/jobs", body, SubmitReply, viewer=viewer)
        result = reply.results[0]
        if result.error is not None:
            raise refused_part(result.error)
        return result

    async def _submit_again(
        self, fields: dict[str, str], viewer: Viewer, form: Form
    ) -> tuple[SubmitAgainReply, SubmitResult]:
        """Submit a job like another one, or check it.

        Raises:
            GschedError: it is refused, or lacks something of which the form did not tell.
        """
        try:
            arguments = tuple(shlex.split(fields["arguments"]))
        except ValueError as error:
            raise InvalidRequestError(
                f"the arguments cannot be read: {error}", hint="write them as in a shell"
            ) from None
        wanted = SubmitAgain(
            job=fields["from"],
            key=_key_of(form, fields),
            changes=JobChanges(
                name=_name_of(fields),
                queue=fields["queue"] or None,
                resources=fields["resources"].strip(),
                workdir=fields["workdir"].strip(),
                script=fields["script"] if "script" in form else None,
                arguments=arguments,
            ),
            without=tuple(form.get("without", "").split()),
            dry_run="check" in form,
            forecast="check" in form,
        )
        reply = await self._again(wanted, viewer)
        return reply, reply.result


def _name_of(fields: dict[str, str]) -> str:
    """Return the name of a form's job, also one of blanks only, which the head refuses."""
    return fields["name"].strip() or fields["name"] or "job"


def _key_of(form: Form, fields: dict[str, str]) -> str:
    """Return the key of what a form has: changed and sent again, as after Back, it is another job.

    Raises:
        InvalidRequestError: the form has no key.
    """
    content = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return f"{form_key(form)}-{content[:32]}"


def _fields_of(again: SubmitAgainReply, like: str) -> dict[str, str]:
    """Return the form of a job that is submitted again."""
    request = again.request
    fields = {name: str(getattr(request, name, "") or "") for name in _EMPTY}
    return fields | {"from": like, "arguments": shlex.join(request.arguments or ())}


def _kept(again: SubmitAgainReply) -> list[tuple[str, str]]:
    """Return what of a request is kept and is no part of the form: labels and texts."""
    return [
        (name.replace("_", " ").capitalize(), local_times(text))
        for name, text in again.kept.items()
    ]
