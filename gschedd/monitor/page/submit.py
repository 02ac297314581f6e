"""The form that submits a job, also one like a job before; the head checks it as for gsub."""

import sqlite3
from typing import Final

from aiohttp import web

from gsched.cli.times import format_start, local_times
from gsched.errors import GschedError, InvalidRequestError
from gsched.model.ids import own_job_number
from gsched.protocol.api import StatusReply
from gsched.protocol.job_rows import JobStory
from gsched.protocol.submissions import SubmitJob, SubmitReply, SubmitRequest
from gschedd.monitor.model import ReadModel
from gschedd.monitor.page.site import Form, Pages
from gschedd.monitor.viewers import Viewer

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_EMPTY: Final = {
    "name": "",
    "queue": "",
    "resources": "nodes=1:ppn=1,walltime=1:00:00",
    "workdir": "",
    "script": "#!/bin/sh\n",
}


class SubmitPage:
    """The page with the form."""

    def __init__(self, site: Pages, model: ReadModel) -> None:
        self._site = site
        self._model = model

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            self._site.shows("/submit", self.form),
            self._site.does("/submit", self.submit),
        ]

    async def form(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /submit``, or ``GET /submit?from=ID``: filled with what a job of the viewer has."""
        fields = _EMPTY | {"workdir": viewer.home}
        like = request.query.get("from", "")
        if like:
            fields = await self._fields_of(like, viewer)
        return await self._page(viewer, fields)

    async def _fields_of(self, text: str, viewer: Viewer) -> dict[str, str]:
        story = await self._model.head.get(f"/v1/jobs/{text}", JobStory, viewer=viewer)
        if story.row.user != viewer.user:
            raise InvalidRequestError(
                f"job {text} is a job of {story.row.user}", hint="submit own jobs again"
            )
        number = own_job_number(text, server=self._model.server)

        def read(db: sqlite3.Connection) -> bytes | None:
            query = (
                "SELECT blobs.data FROM head.specs JOIN head.blobs ON blobs.digest = "
                "json_extract(CAST(specs.spec AS TEXT), '$.script_digest') WHERE specs.job = ?"
            )
            row = db.execute(query, (number,)).fetchone()
            return None if row is None else row[0]

        script = await self._model.database.read(read)
        return {
            "name": story.row.name,
            "queue": story.row.queue,
            "resources": story.resources,
            "workdir": story.workdir,
            "script": "" if script is None else script.decode("utf-8", "replace"),
        }

    async def _page(
        self,
        viewer: Viewer,
        fields: dict[str, str],
        *,
        error: GschedError | None = None,
        notes: tuple[str, ...] = (),
    ) -> web.StreamResponse:
        status = await self._model.head.get("/v1/status", StatusReply, viewer=viewer)
        return self._site.page(
            "submit.html",
            viewer,
            status=200 if error is None else 400,
            title="Submit a job",
            here="/submit",
            fields=fields,
            queues=status.queues,
            error=error,
            notes=notes,
        )

    async def submit(self, _request: web.Request, viewer: Viewer, form: Form) -> web.StreamResponse:
        """``POST /submit``: submits the job, or only checks it."""
        fields = {name: form.get(name, "") for name in _EMPTY}
        script = fields["script"].replace("\r\n", "\n")
        fields["script"] = script
        dry_run = "check" in form
        job = SubmitJob(
            key=form.get("key", ""),
            name=fields["name"].strip() or "job",
            workdir=fields["workdir"].strip(),
            queue=fields["queue"],
            resources=(fields["resources"].strip(),) if fields["resources"].strip() else (),
            script=script,
            environment={
                "HOME": viewer.home,
                "LOGNAME": viewer.user,
                "PATH": _PATH,
                "SHELL": viewer.shell,
                "USER": viewer.user,
            },
        )
        body = SubmitRequest(jobs=(job,), dry_run=dry_run)
        try:
            reply = await self._model.head.post("/v1/jobs", body, SubmitReply, viewer=viewer)
        except GschedError as error:
            return await self._page(viewer, fields, error=error)
        result = reply.results[0]
        if result.error is not None:
            refused = GschedError(result.error.message, hint=result.error.hint)
            return await self._page(viewer, fields, error=refused)
        if not dry_run:
            return self._site.sent_to(f"/jobs/{result.id}")
        now_s = self._model.clock.wall_s()
        starts = local_times(format_start(result.start, result.predicted_start_s, now_s=now_s))
        words = f"The head would accept this job. Expected start: {starts or 'unknown'}."
        return await self._page(viewer, fields, notes=(words, *result.warnings))
