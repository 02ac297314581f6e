"""The page: what it shows, and what can be done there."""

import asyncio
import os
import pwd
import re
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlencode

import aiohttp
import pytest
from aiohttp import web
from msgspec import structs

from gsched.cli.times import format_moment
from gsched.client import new_job
from gsched.protocol import actions as a
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.monitor import Browser, Response, address, get, is_ready


def submit(cluster: Cluster, count: int = 1, **options: object) -> list[int]:
    given = {"name": "train", "workdir": "/tmp", "script": "#!/bin/sh\nsleep 60\n"} | options
    reply = cluster.head.submit([new_job(**given) for _ in range(count)])  # type: ignore[arg-type] # any option
    return [result.id for result in reply.results]


def test_the_queue_shows_the_reason_and_folds_equal_jobs(
    watched: Cluster, browser: Browser
) -> None:
    watched.start_node("n1", cpus=2)
    submit(watched, 1, resources=("nodes=1:ppn=2",))
    waiting = submit(watched, 3, resources=("nodes=1:ppn=2",), name="behind")
    watched.head.act(a.HoldJob(ids=(str(waiting[2]),)))
    wait_until(lambda: "n1</td>" in browser.get("/").text, what="the first job to run")
    page = browser.get("/").text
    held = browser.get("/?state=held").text
    named = browser.get("/?name=beh").text

    assert "CPUs short" in page or "behind job" in page
    assert "held by" in held
    assert held.count("<tr role=") == 2
    assert "train" not in named.partition("<tbody")[2]


def test_what_users_write_is_text_and_not_html(watched: Cluster, browser: Browser) -> None:
    submit(watched, name="<b>bold&amp;", account="x")
    page = browser.get("/?name=<script>alert(1)</script>").text + browser.get("/").text

    assert "<b>bold" not in page
    assert "&lt;b&gt;bold&amp;amp;" in page
    assert "<script>alert" not in page


def test_filters_are_values_and_never_sql(watched: Cluster, browser: Browser) -> None:
    submit(watched)
    odd = urlencode(
        {"user": "' OR 1=1 --", "sort": "id; DROP TABLE jobs", "state": "x", "number": "-4"}
    )

    assert "No jobs match" in browser.get(f"/?{odd}").text
    assert browser.get("/?number=999999999999999999").status == 200


# --- gsched web ---


def test_gsched_web_prints_an_address_that_begins_a_session(watched: Cluster) -> None:
    ssh = {"SSH_CONNECTION": "10.0.0.9 4711 10.0.0.1 22", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    ran = run_command("gsched", "web", head=watched.socket, env=ssh)
    path = ran.stdout.strip().partition("/login")[2]

    assert ran.status == 0, ran.stderr
    assert "ssh -L" in ran.stderr
    assert Browser(address(watched)).get(f"/login{path}").status == 200


def test_gsched_web_tells_why_there_is_no_page(cluster: Cluster) -> None:
    away = run_command("gsched", "web", "--print", head=cluster.socket)
    cluster.start_head()
    off = run_command("gsched", "web", "--print", head=cluster.socket)
    remote = run_command("gsched", "web", "--print", head="http://127.0.0.1:1")

    assert "does not answer, so there is no page" in away.stderr
    assert "runs without a page" in off.stderr
    assert "on the head's machine only" in remote.stderr
    assert away.status == off.status == 69


def test_a_reload_answers_when_the_page_is_there_again(watched: Cluster) -> None:
    """What it says is in force, is."""
    config = watched.directory / "head.toml"
    text = config.read_text(encoding="utf-8")
    for hours in (2.0, 3.0):
        config.write_text(f"{text}session_hours = {hours}\n", encoding="utf-8")
        reply = watched.head.reload()
        assert get(watched, "/", {"Host": "localhost"}).status == 200
        assert [each.place for each in reply.changed] == ["[web] session_hours"]


# --- jobs, nodes and GPUs ---


def act(browser: Browser, job: int, action: str, **fields: str) -> Response:
    token = browser.form_token(f"/jobs/{job}")
    return browser.post(f"/jobs/{job}/{action}", {"form_token": token} | fields)


def test_own_jobs_are_held_released_and_cancelled(watched: Cluster, browser: Browser) -> None:
    (job,) = submit(watched)
    held = act(browser, job, "hold")
    page = browser.get(held.headers["location"])
    released = act(browser, job, "release", holds="user")
    cancelled = act(browser, job, "cancel", message="wrong data")
    again = act(browser, job, "cancel")
    assert f'<a href="/jobs/{job}">Back to the job</a>' in again.text

    assert held.status == released.status == cancelled.status == 303
    assert "The job is held" in page.text
    assert "Release" in page.text
    assert watched.head.job(job).row.state == "done"
    assert "wrong data" in browser.get(f"/jobs/{job}").text
    assert again.status == 409
    assert f"/jobs/{job}" in browser.get("/jobs?id=" + str(job)).headers["location"]


def test_nothing_changes_without_a_form(watched: Cluster, browser: Browser) -> None:
    (job,) = submit(watched)

    assert browser.get(f"/jobs/{job}/hold").status in {404, 405}
    assert browser.post(f"/jobs/{job}/hold", {}).status == 403
    assert browser.post(f"/jobs/{job}/hold", {"form_token": "0" * 64}).status == 403
    assert watched.head.job(job).row.state == "queued"


def test_a_job_that_was_cancelled_while_held_is_not_released(
    watched: Cluster, browser: Browser
) -> None:
    (job,) = submit(watched, holds=("user",))
    assert "Release" in browser.get(f"/jobs/{job}").text
    act(browser, job, "cancel")
    assert "Release" not in browser.get(f"/jobs/{job}").text


def test_a_job_is_submitted_and_a_refusal_is_shown(watched: Cluster, browser: Browser) -> None:
    token = browser.form_token("/submit")
    fields = {
        "form_token": token,
        "key": "6f1c1f0e-0000-4000-8000-000000000001",
        "name": "from-page",
        "queue": "batch",
        "resources": "nodes=1:ppn=1,walltime=0:10:00",
        "workdir": "/tmp",
        "script": "#!/bin/sh\r\necho <hello>\r\n",
    }
    checked = browser.post("/submit", fields | {"check": "1"})
    refused = browser.post("/submit", fields | {"resources": "nodes=1:ppn=none"})
    began = browser.post("/submit", fields)
    again = browser.post("/submit", fields)
    job = began.headers["location"].rpartition("/")[2]
    like = browser.get(f"/submit?from={job}")

    assert "would accept this job" in checked.text
    assert refused.status == 400
    assert "What to do" in refused.text or "ppn" in refused.text
    assert again.headers["location"] == began.headers["location"]
    assert watched.head.job(job).row.name == "from-page"
    assert "echo &lt;hello&gt;" in like.text
    assert "\r" not in like.text


def test_a_node_shows_its_jobs_and_the_use_of_its_gpus(cluster: Cluster) -> None:
    cluster.has_monitor = True
    cluster.web_settings = {"sample_period_s": 1.0}
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=2)
    (job,) = submit(cluster, resources=("nodes=1:ppn=1:gpus=1",))
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    browser = Browser(address(cluster))
    browser.log_in()
    used = f'<a href="/jobs/{job}">'
    wait_until(lambda: used in browser.get("/nodes/n1/gpus/0").text, what="a sample with the job")
    node = browser.get("/nodes/n1").text

    assert "n1 GPU 1" in browser.get("/gpus?state=free").text
    assert used in browser.get("/gpus?state=busy").text
    me = pwd.getpwuid(os.getuid()).pw_name
    mine = browser.get(f"/gpus?name=n1&user={me}").text
    assert used in mine
    assert "n1 GPU 1" not in mine  # nobody has it
    for others in ("user=nobody", "name=n2"):
        assert "No GPUs match" in browser.get(f"/gpus?{others}").text
    assert browser.get(f"/jobs?id=%20{job}").headers["location"] == f"/jobs/{job}"
    assert used in node
    assert '<svg viewBox="0 0 440 120" role="img"' in node
    assert browser.get("/nodes/n2").status == 404
    assert browser.get("/nodes/n1/gpus/7").status == 404
    assert browser.get("/jobs/77").status == 404
    for path in ("/nodes", "/users", "/deadlines", "/reports", f"/jobs/{job}"):
        assert browser.get(path).status == 200, path


def test_windows_of_maintenance_are_listed_with_their_nodes(
    watched: Cluster, browser: Browser
) -> None:
    for name in ("n1", "n2"):
        watched.start_node(name, cpus=1)
    assert "Maintenance</h2>" not in browser.get("/nodes").text
    begin_s = (int(time.time()) // 60 + 1440) * 60
    begin = time.strftime("%Y-%m-%dT%H:%M", time.localtime(begin_s))
    window = ("--from", begin, "--to", "+1h", "--reason", "new <fans>")
    ordered = run_command("gnodes", "maintenance", "n1", "n2", *window, head=watched.socket)
    assert ordered.status == 0, ordered.stderr
    wait_until(lambda: "Maintenance</h2>" in browser.get("/nodes").text, what="the window")
    page = browser.get("/nodes").text.partition("Maintenance</h2>")[2]

    assert '<th scope="row" role="rowheader">n[1-2]</th>' in page
    assert "new &lt;fans&gt;" in page
    assert page.count('<td role="cell" data-label="Begin" ') == 1
    assert format_moment(begin_s) in page
    me = pwd.getpwuid(os.getuid()).pw_name
    assert f'data-label="Ordered by">{me}<' in page

    run_command("gnodes", "drain", "n2", "--reason", "fan", head=watched.socket)
    by = f'<span class="dim">(by {me})</span>'
    wait_until(lambda: by in browser.get("/nodes?closed=1").text, what="who has drained the node")
    assert by in browser.get("/nodes/n2").text
    assert "fan" in browser.get("/nodes/n2").text


def test_reservations_are_drawn_and_listed(watched: Cluster, browser: Browser) -> None:
    watched.start_node("n1", cpus=1)
    me = pwd.getpwuid(os.getuid()).pw_name
    assert "No reservation and no maintenance" in browser.get("/reservations").text
    for name, begin, more in (("soon", "tomorrow 08:00", ()), ("later", "+20d", ("-m", "<b>"))):
        when = ("--start", begin, "--duration", "2h", "--nodes", "n1", "--users", me, *more)
        created = run_command("gres", "create", name, *when, head=watched.socket)
        assert created.status == 0, created.stderr
    wait_until(lambda: ">later<" in browser.get("/reservations").text, what="the reservations")
    page = browser.get("/reservations").text
    drawn, _, listed = page.partition("All reservations</h2>")

    assert "<strong>soon</strong>" in drawn
    assert drawn.count('<rect class="window"') == 1  # the other one is after these days
    assert f"users {me}" in drawn
    assert "08:00:00" in drawn
    assert [">soon<" in listed, ">later<" in listed] == [True, True]
    assert "&lt;b&gt;" in listed


# --- a reverse proxy ---


async def passed_on(request: web.Request) -> web.Response:
    """Pass a request on as the example of nginx does: without the path, with the name."""
    path = request.raw_path.removeprefix("/gsched")
    headers = {name: value for name, value in request.headers.items() if name != "Connection"}
    headers |= {"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.0.0.9"}
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(
            request.method,
            f"http://{request.app[UPSTREAM]}{path}",
            headers=headers,
            data=await request.read(),
            allow_redirects=False,
        ) as response,
    ):
        kept = {"Content-Type", "Location", "Set-Cookie"}
        found = {name: value for name, value in response.headers.items() if name in kept}
        return web.Response(status=response.status, body=await response.read(), headers=found)


UPSTREAM = web.AppKey("upstream", str)


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[str]:
    """Yield the address of a proxy that shows the page of a cluster in a folder."""
    cluster.has_monitor = True
    cluster.web_settings = {"base_path": "/gsched", "origin": "https://hpc.example"}
    cluster.start_head()
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    loop = asyncio.new_event_loop()
    app = web.Application()
    app[UPSTREAM] = address(cluster).address
    app.router.add_route("*", "/gsched/{path:.*}", passed_on)
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield "{}:{}".format(*runner.addresses[0])
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(runner.cleanup())
    loop.close()


def test_the_page_works_in_a_folder_of_a_proxy(cluster: Cluster, proxy: str) -> None:
    (job,) = submit(cluster)
    named = {"Host": "hpc.example"}
    browser = Browser(structs.replace(address(cluster), address=proxy))
    offered = browser.get(f"/gsched/login?token={browser.found.token}", **named).text
    form = {"token": browser.found.token}
    origin = {"Origin": "https://hpc.example"} | named
    began = browser.post("/gsched/login", form, **origin)
    browser.cookie = began.headers["set-cookie"].partition(";")[0]
    page = browser.get(began.headers["location"], **named).text
    token = re.search(r'name="form_token" value="([^"]+)"', page)
    assert token is not None
    form = {"form_token": token[1]}
    held = browser.post(f"/gsched/jobs/{job}/hold", form, **origin)
    style = re.search(r'href="(/gsched/static/page.css[^"]*)"', page)

    assert 'action="/gsched/login"' in offered
    assert {"Secure", "Path=/gsched"} <= set(began.headers["set-cookie"].split("; "))
    assert held.headers["location"] == f"/gsched/jobs/{job}?done=hold"
    assert "The job is held" in browser.get(held.headers["location"], **named).text
    assert style is not None
    assert browser.get(style[1], **named).status == 200
    assert browser.post(f"/gsched/jobs/{job}/release", form, Origin="https://x.y").status == 403
