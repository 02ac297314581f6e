"""A job: why it waits, its attempts, use and events, and what its owner can do with it."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from aiohttp import web
from msgspec import structs

from gsched.cli.show.jobfields import FIELDS, array_summary
from gsched.cli.show.story import attribute_words, event_words, part_words, usage_words
from gsched.cli.show.why import why_lines, why_sentence
from gsched.cli.times import format_moment
from gsched.errors import GschedError, InvalidRequestError
from gsched.model.ids import INDICES, element_number, own_job_number, short_job_id
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.model.wording import outcome_words
from gsched.protocol import actions as a
from gsched.protocol.api import ActionReply, OutputChunk
from gsched.protocol.job_rows import AttemptRow, JobStory
from gsched.protocol.rerun import RerunFailed, RerunReply
from gschedd.monitor.history import job_points, period_s
from gschedd.monitor.link import refused_part
from gschedd.monitor.model import ReadModel
from gschedd.monitor.page.charts import Chart, chart
from gschedd.monitor.page.queue import table_of
from gschedd.monitor.page.shown import PAGE_ROWS, ShownJobs, is_computed, page_number
from gschedd.monitor.page.site import Form, Pages, form_key
from gschedd.monitor.viewers import Viewer

#: The end of a job's output that is shown, bytes, and how long a page waits for it, seconds.
OUTPUT_BYTES: Final = 16 * 1024
OUTPUT_S: Final = 0.15
#: Of so many events all are shown; of more the last ones, and the others on request.
EVENTS: Final = 30
_WAITS: Final = (JobState.QUEUED, JobState.HELD, JobState.WAITING)
_RUNS: Final = (JobState.RUNNING, JobState.MIGRATING)
#: What a form can do with a job, and what is shown when it is done.
_ACTIONS: Final[dict[str, tuple[str, Callable[[str, Form], a.JobAction]]]] = {
    "hold": ("The job is held.", lambda job, _: a.HoldJob(ids=(job,))),
    "release": (
        "The hold is removed.",
        lambda job, form: a.ReleaseJob(
            ids=(job,), holds=tuple(form.get("holds", "user").split(","))
        ),
    ),
    "cancel": (
        "The job is cancelled. It may take its grace period to end.",
        lambda job, form: a.DeleteJob(ids=(job,), message=form.get("message", "")),
    ),
    "requeue": (
        "The job is stopped and requeued.",
        lambda job, form: a.RerunJob(ids=(job,), message=form.get("message", "")),
    ),
}


class JobPages:
    """The page of each job."""

    def __init__(self, site: Pages, model: ReadModel, shown: ShownJobs) -> None:
        self._site = site
        self._model = model
        self._shown = shown

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            self._site.shows("/jobs/{id}", self.job),
            self._site.shows("/jobs", self.find),
            self._site.does("/jobs/{id}/rerun-failed", self.rerun_failed),
            self._site.does("/jobs/{id}/{action}", self.act),
        ]

    async def find(self, request: web.Request, _viewer: Viewer) -> web.StreamResponse:
        """``GET /jobs?id=ID``: the page of that job."""
        text = request.query.get("id", "").strip()
        return self._site.sent_to(f"/jobs/{text}" if text else "/")

    async def job(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /jobs/ID``."""
        text, stories = request.match_info["id"], self._model.stories
        may_read = partial(self._site.may_act, viewer)
        recorded = await stories.recorded(text, may_read)
        story = recorded or await stories.live(text, viewer)
        may_act = may_read(story.row.user)
        (story, warning), charts, output, _ = await asyncio.gather(
            stories.with_live(recorded, viewer, may_read) if recorded else _whole(story),
            self._charts(story),
            self._output(story, viewer, may_act=may_act),
            self._shown.request_start(story.row, viewer),
        )
        story = structs.replace(story, row=self._shown.with_start(story.row, viewer))
        row = story.row
        elements = await self._elements(story, page_number(request), viewer)
        return self._site.page(
            "job.html",
            viewer,
            title=f"Job {short_job_id(row.id)}{'[]' if row.array else ''}",
            here="/",
            story=story,
            row=row,
            id=text,
            warning=warning,
            is_partial=bool(warning) or is_computed(row),
            sentence=why_sentence(story) if row.state in _WAITS or row.reason else "",
            why=_why(story) if row.state in _WAITS else [],
            facts=list(_facts(story)),
            attributes=list(attribute_words(story)),
            attempts=[_attempt(each, story) for each in reversed(story.attempts)],
            events=list(event_words(story)),
            events_most=EVENTS,
            charts=charts,
            output=output,
            elements=elements,
            may_act=may_act,
            is_own=viewer.user == row.user,
            can=possible_actions(story, is_operator=viewer.uid in self._model.operators),
            done=_ACTIONS.get(request.query.get("done", ""), ("", None))[0],
            number=page_number(request),
        )

    async def _elements(self, story: JobStory, number: int, viewer: Viewer) -> dict[str, object]:
        """Return a page of the elements of an array that are jobs, finished or not."""
        if story.row.array is None:
            return {}
        array = story.row.id
        bounds = (element_number(array, 0), element_number(array, INDICES - 1))

        def read(db: sqlite3.Connection) -> tuple[int, list[int]]:
            where = "FROM head.jobs WHERE id BETWEEN ? AND ?"
            total = db.execute(f"SELECT count(*) {where}", bounds).fetchone()[0]
            query = f"SELECT id {where} ORDER BY id LIMIT ? OFFSET ?"
            found = db.execute(query, (*bounds, PAGE_ROWS, PAGE_ROWS * (number - 1)))
            return total, [each for (each,) in found]

        total, numbers = await self._model.database.read(read)
        reply = await self._shown.rows(numbers, viewer)
        return {
            "words": array_summary(story.row.array),
            "table": table_of(reply),
            "total": total,
            "page_count": -(-total // PAGE_ROWS),
        }

    async def _charts(self, story: JobStory) -> list[Chart]:
        """Return what a job has used over time against what it requested."""
        row = story.row
        if row.array is not None or not story.attempts:
            return []
        until_s = row.ended_s or story.now_s
        begins = (each.started_s or each.assigned_s for each in story.attempts)
        since_s = min(begins, default=until_s)
        points = await self._model.database.read(
            lambda db: job_points(db, row.id, since_s, until_s)
        )
        if len(points) < 2:
            return []
        memory = (row.memory_bytes or 0) / (1 << 30)
        figures = [
            ("CPU cores", [(at, each.cores) for at, each in points], "cores", float(row.cpus)),
            (
                "Memory",
                [(at, each.memory_mb / 1024) for at, each in points],
                "GiB",
                memory or None,
            ),
        ]
        if row.gpus or row.gpu_share:
            share = row.gpu_share.percent / 100 if row.gpu_share else float(row.gpus)
            figures.append(("GPUs busy", [(at, each.gpus) for at, each in points], "GPUs", share))
            memory_points = [(at, each.gpu_memory_mb / 1024) for at, each in points]
            figures.append(("GPU memory", memory_points, "GiB", None))
        return [
            chart(
                title,
                line,
                since_s=since_s,
                until_s=until_s,
                period_s=max(60.0, period_s(since_s, until_s, self._model.config.sample_period_s)),
                unit=unit,
                limit=limit,
            )
            for title, line, unit, limit in figures
        ]

    async def _output(
        self, story: JobStory, viewer: Viewer, *, may_act: bool
    ) -> tuple[str, str] | None:
        """Return the end of a running job's output, and a sentence on it."""
        if not may_act:
            return None
        if story.row.state not in _RUNS:
            path = story.stdout_path
            return "", f"The output is in {path}." if story.attempts and path else ""
        try:
            async with asyncio.timeout(OUTPUT_S):
                chunk = await self._model.head.get(
                    f"/v1/jobs/{story.row.id}/output",
                    OutputChunk,
                    viewer=viewer,
                    offset=str(-OUTPUT_BYTES),
                    max=str(OUTPUT_BYTES),
                )
        except TimeoutError:
            return "", "The node has not answered yet; load the page again, or use gpeek."
        except GschedError as error:
            return "", f"{error.message}."
        text = chunk.data.decode("utf-8", "replace")
        if chunk.offset:
            text = text.partition("\n")[2]
        lines = "".join(
            each if each in "\n\t" or each.isprintable() else "\N{REPLACEMENT CHARACTER}"
            for each in text.replace("\r\n", "\n").replace("\r", "\n")
        )
        if not chunk.path:
            return "", "It has written nothing yet."
        return lines, f"The end of {chunk.path} on {chunk.node}, {chunk.size_bytes} bytes."

    async def act(self, request: web.Request, viewer: Viewer, form: Form) -> web.StreamResponse:
        """``POST /jobs/ID/ACTION``.

        Raises:
            GschedError: the head refuses it.
        """
        job, name = request.match_info["id"], request.match_info["action"]
        if name not in _ACTIONS:
            raise InvalidRequestError(
                f"unknown action {name[:40]!r}", hint=f"valid: {', '.join(_ACTIONS)}"
            )
        own_job_number(job, server=self._model.server)
        body = _ACTIONS[name][1](job, form)
        reply = await self._model.head.post("/v1/jobs/actions", body, ActionReply, viewer=viewer)
        for result in reply.results:
            if result.error is not None:
                raise refused_part(result.error)
        return self._site.sent_to(f"/jobs/{job}", done=name)

    async def rerun_failed(
        self, request: web.Request, viewer: Viewer, form: Form
    ) -> web.StreamResponse:
        """``POST /jobs/ID/rerun-failed``: the failed job, or failed elements, as a new job.

        What that job would lack is shown first, on a page with this form.
        """
        job = request.match_info["id"]
        body = RerunFailed(job=job, key=form_key(form))
        send = partial(
            self._model.head.post, "/v1/jobs/rerun-failed", answer=RerunReply, viewer=viewer
        )
        if "told" not in form:
            would = await send(body=structs.replace(body, dry_run=True))
            if would.warnings:
                return self._site.page(
                    "again.html",
                    viewer,
                    title=f"Submit job {job} again",
                    here="/",
                    id=job,
                    sent_key=body.key,
                    warnings=would.warnings,
                )
        reply = await send(body=body)
        if not reply.id:
            raise InvalidRequestError(reply.nothing or "nothing has failed")
        return self._site.sent_to(f"/jobs/{reply.id}{'[]' if reply.elements else ''}")


async def _whole(story: JobStory) -> tuple[JobStory, str]:
    """Return a story that the head has given, without a warning."""
    return story, ""


def possible_actions(story: JobStory, *, is_operator: bool) -> dict[str, bool | str]:
    """Return which buttons a job has; of a release it is which holds."""
    row = story.row
    state, is_done = row.state, row.state == JobState.DONE
    releases = {"user", "operator", "system"} if is_operator else {"user"}
    failed = row.outcome is not None and row.outcome.exit_status != 0
    return {
        "hold": state in {JobState.QUEUED, JobState.WAITING},
        "release": "" if is_done else ",".join(each for each in story.holds if each in releases),
        "cancel": not is_done and state != JobState.EXITING,
        "requeue": state in _RUNS and story.rerunnable,
        "resubmit": story.interactive is None,
        "rerun_failed": (is_done and failed) or (row.array is not None and row.array.failed > 0),
    }


def _why(story: JobStory) -> list[tuple[str, list[str]]]:
    """Return why a job waits: labels, each with its lines."""
    found: list[tuple[str, list[str]]] = []
    for label, text in why_lines(story):
        if label:
            found.append((label, []))
        found[-1][1].append(text)
    return found


def _facts(story: JobStory) -> Iterator[tuple[str, str]]:
    """Yield names and texts of what most users look for."""
    row = story.row
    outcome = row.outcome
    limit = f" of {format_duration(row.walltime_s)}" if row.walltime_s else ""
    elapsed = str(FIELDS["elapsed"].shown(row, story))
    pairs = (
        ("User", row.user),
        ("Account", story.account),
        ("QOS", story.qos),
        ("Queue", row.queue),
        ("Request", story.resources),
        ("Submitted", format_moment(row.submitted_s)),
        ("Started", format_moment(row.started_s) if row.started_s else ""),
        ("Ended", format_moment(row.ended_s) if row.ended_s else ""),
        ("Run time", f"{elapsed}{limit}" if elapsed else ""),
        ("Outcome", "" if outcome is None else outcome_words(outcome, walltime_s=row.walltime_s)),
        ("Array", "" if row.array is None else array_summary(row.array)),
        ("Deadline", format_moment(row.deadline_s) if row.deadline_s else ""),
        ("Predicted end", format_moment(row.predicted_end_s) if row.predicted_end_s else ""),
        ("Slack", str(FIELDS["marked_slack"].shown(row, story))),
        ("Late because", story.late_reason),
        ("Migrations", str(FIELDS["moves"].shown(row, story))),
        ("Preempted", str(FIELDS["preempted"].shown(row, story))),
        ("Depends on", story.depends),
        ("Rerun of", story.rerun_of),
        ("Comment", story.comment),
        ("Directory", story.workdir),
        ("Output", story.stdout_path),
        ("Errors", story.stderr_path if story.stderr_path != story.stdout_path else ""),
    )
    return ((name, text) for name, text in pairs if text)


def _attempt(attempt: AttemptRow, story: JobStory) -> dict[str, object]:
    outcome = attempt.outcome
    return {
        "number": attempt.attempt,
        "state": attempt.state,
        "started": format_moment(attempt.started_s) if attempt.started_s else "not started",
        "ended": format_moment(attempt.ended_s) if attempt.ended_s else "",
        "nodes": [(part.node, part_words(part, story, outcome)) for part in attempt.parts],
        "used": "" if attempt.usage is None else usage_words(attempt.usage),
        "outcome": ""
        if outcome is None
        else outcome_words(outcome, walltime_s=story.row.walltime_s, grace_s=story.grace_s),
    }
