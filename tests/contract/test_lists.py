"""Long lists of jobs leave the head slice by slice, and read as the short ones do."""

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession, UnixConnector, web
from aiohttp.client_exceptions import ClientError

from gsched.client import new_job
from gsched.errors import StorageError
from gsched.protocol import job_rows
from gsched.protocol.actions import DeleteJob
from gschedd.http.lists import ROWS_PER_SLICE, send
from gschedd.http.pace import Turns
from gschedd.store.reader import Entry
from tests.support.cluster import Cluster
from tests.support.fake_api import NOW_S, make_row

LONG = 2 * ROWS_PER_SLICE + 7


def fetch(cluster: Cluster, target: str) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of an answer."""
    connection = http.client.HTTPConnection("head")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(cluster.socket))
    connection.request("GET", target)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return dict(answer.getheaders()), body


def test_a_long_history_has_all_jobs_in_order_and_the_totals(cluster: Cluster) -> None:
    """Finished ones newest first; with ``all`` those that wait stand at their places."""
    cluster.start_head()
    jobs = [new_job(name=f"j{each}", workdir="/", script="true") for each in range(LONG + 3)]
    ids = [result.id for result in cluster.head.submit(jobs).results]
    kept = [ids[0], ids[ROWS_PER_SLICE], ids[-1]]
    past = [job for job in ids if job not in kept]
    cluster.head.act(DeleteJob(ids=tuple(map(str, past))))

    headers, body = fetch(cluster, f"/v1/history?limit={LONG}")
    history = msgspec.json.decode(body, type=job_rows.HistoryReply)
    assert headers["Transfer-Encoding"] == "chunked"
    assert sorted((row.id for row in history.jobs), reverse=True) == past[::-1]
    ends = [row.ended_s or 0.0 for row in history.jobs]
    assert ends == sorted(ends, reverse=True)
    assert (history.total_jobs, history.total_cancelled, history.more) == (LONG, LONG, False)
    assert list(json.loads(body))[:3] == ["server", "now_s", "jobs"]

    short_headers, short = fetch(cluster, f"/v1/history?limit={ROWS_PER_SLICE}")
    assert "Content-Length" in short_headers
    first = msgspec.json.decode(short, type=job_rows.HistoryReply)
    assert (first.jobs, first.more) == (history.jobs[:ROWS_PER_SLICE], True)

    _, body = fetch(cluster, "/v1/jobs?all=1")
    listed = msgspec.json.decode(body, type=job_rows.JobList).jobs
    assert [row.id for row in listed] == ids
    assert [row.id for row in listed if row.state != "done"] == kept
    assert set(listed) >= set(history.jobs)
    _, body = fetch(cluster, "/v1/jobs")
    assert [row.id for row in msgspec.json.decode(body, type=job_rows.JobList).jobs] == kept


def test_a_list_that_cannot_be_read_to_its_end_breaks_off(tmp_path: Path) -> None:
    """What has left cannot be taken back, and half a list must not look like a whole one."""

    async def slices() -> AsyncIterator[Sequence[Entry]]:
        yield [object()] * ROWS_PER_SLICE  # type: ignore[list-item]  # nothing looks at it
        raise StorageError("the disk is gone")

    async def handle(request: web.Request) -> web.StreamResponse:
        reply = job_rows.JobList(server="s", now_s=NOW_S, jobs=())
        return await send(request, lambda: reply, slices(), lambda _: make_row(1), is_long=True)

    async def ask() -> None:
        app = web.Application()
        app.router.add_get("/", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "s")).start()
        try:
            async with ClientSession(connector=UnixConnector(str(tmp_path / "s"))) as session:
                with pytest.raises(ClientError):
                    await (await session.get("http://head/")).read()
        finally:
            await runner.cleanup()

    asyncio.run(ask())


def test_a_user_has_some_turns_and_never_those_of_others() -> None:
    async def take() -> tuple[list[str], list[str]]:
        turns, began, go = Turns(3, of_user=2), [], asyncio.Event()

        async def work(uid: int, name: str) -> None:
            async with turns.turn(uid):
                began.append(name)
                await go.wait()

        tasks = [asyncio.create_task(work(1, f"first {each}")) for each in range(4)]
        tasks.append(asyncio.create_task(work(2, "second")))
        for _ in range(10):
            await asyncio.sleep(0)
        before = list(began)
        go.set()
        await asyncio.gather(*tasks)
        return before, began

    before, after = asyncio.run(take())
    assert before == ["first 0", "first 1", "second"]
    assert len(after) == 5
