"""The page: who may look, sessions and their end, and what keeps others from using it."""

import asyncio
import os
import pwd
import re
import stat
from pathlib import Path

import psutil
import pytest
from aiohttp.test_utils import make_mocked_request

from gsched.clock import SystemClock
from gsched.errors import NotPermittedError
from gschedd.monitor.accounts import KnownAccounts
from gschedd.monitor.ended_sessions import EndedSessions
from gschedd.monitor.viewers import COOKIE, Viewer, Viewers
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.monitor import Browser, address, get, is_ready


def test_a_session_begins_with_an_address_that_works_once(watched: Cluster) -> None:
    browser = Browser(address(watched))
    assert browser.send("HEAD", f"/login?token={browser.found.token}").status == 404  # a preview
    stranger = browser.get("/")
    offered = browser.get(f"/login?token={browser.found.token}")
    began = browser.log_in()
    again = browser.post("/login", {"token": browser.found.token})

    assert stranger.status == 401
    assert "gsched web" in stranger.text
    assert offered.status == 200
    assert f"Log in as {pwd.getpwuid(os.getuid()).pw_name}" in offered.text
    assert "set-cookie" not in offered.headers
    assert began.status == 303
    assert began.headers["location"] == "/"
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(began.headers["set-cookie"].split("; "))
    assert "Secure" not in began.headers["set-cookie"]
    assert browser.get("/").status == 200
    assert again.status == 401
    assert "was used before" in again.text


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_a_page_of_somebody_else_begins_no_session(watched: Cluster, origin: str) -> None:
    """Else a user could work in the session of another one without noticing it."""
    browser = Browser(address(watched))
    refused = browser.post("/login", {"token": browser.found.token}, Origin=origin)

    assert refused.status == 401
    assert "set-cookie" not in refused.headers
    assert browser.log_in().status == 303


def test_a_session_ends_for_whoever_has_copied_it(browser: Browser) -> None:
    token = browser.form_token()
    forged = browser.post("/logout", {"form_token": "0" * 64})
    left = browser.post("/logout", {"form_token": token})

    assert forged.status == 403
    assert left.status == 200
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert browser.get("/").status == 401


def restart_monitor(cluster: Cluster) -> None:
    """Kill the monitor and wait for the next one."""
    head = psutil.Process(cluster.head_process.pid)
    first = next(each for each in head.children() if "gschedd.monitor.worker" in each.cmdline())
    first.kill()
    psutil.wait_procs([first])
    wait_until(lambda: is_ready(cluster), what="another monitor")


def variants(signed: str) -> list[str]:
    """Return texts that decode to the same signature."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    at = letters.index(signed[-1])
    return [signed, *(signed[:-1] + letters[at ^ bits] for bits in (1, 2, 3)), f"{signed}!"]


def test_a_logout_is_final_when_the_monitor_restarts(browser: Browser, watched: Cluster) -> None:
    """Others of the same user stay; a text that differs in unused bits is the same session."""
    other = Browser(address(watched))
    other.log_in()
    name, _, session = browser.cookie.partition("=")
    before = browser.get("/").status
    browser.post("/logout", {"form_token": browser.form_token()})

    def statuses() -> set[int]:
        return {browser.get("/", Cookie=f"{name}={text}").status for text in variants(session)}

    at_once = statuses()
    restart_monitor(watched)

    assert (before, at_once, statuses()) == (200, {401}, {401})
    assert other.get("/").status == 200
    mode = (watched.state_dir / "monitor.ended").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_all_sessions_are_over_where_the_list_of_ended_ones_is_damaged(
    browser: Browser, watched: Cluster
) -> None:
    (watched.state_dir / "monitor.ended").write_bytes(b"{")
    restart_monitor(watched)

    assert browser.get("/").status == 401
    assert Browser(address(watched)).log_in().status == 303


def test_a_token_works_once_however_it_is_written(watched: Cluster) -> None:
    browser = Browser(address(watched))
    browser.log_in()

    tries = [browser.post("/login", {"token": text}) for text in variants(browser.found.token)]
    assert {response.status for response in tries} == {401}


def test_pages_have_strict_headers(browser: Browser) -> None:
    """T58."""
    headers = browser.get("/").headers

    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example:15080", 400),
        ("localhost:15080", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("127.0.0.1.evil.example", 400),
    ],
)
def test_a_foreign_name_of_this_machine_is_refused(
    browser: Browser, host: str, status: int
) -> None:
    refused = browser.get("/", Host=host)
    assert refused.status == status
    assert "Nobody is logged in" not in refused.text
    assert browser.get("/v1/usage?by=user&since=0&until=1", Host=host).status == status


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_form_on_another_page_changes_nothing(browser: Browser, origin: str) -> None:
    token = browser.form_token()

    assert browser.post("/logout", {"form_token": token}, Origin=origin).status == 403
    assert browser.get("/").status == 200


def test_a_form_that_cannot_be_read_is_refused_in_words(browser: Browser) -> None:
    token = browser.form_token()
    unknown = "application/x-www-form-urlencoded; charset=bogus"
    for fields, kind, text in (
        ({"form_token": token}, unknown, "cannot be read"),
        (
            {"form_token": token} | {f"a{number}": "1" for number in range(5000)},
            "application/x-www-form-urlencoded",
            "too many fields",
        ),
    ):
        refused = browser.post("/logout", fields, Content_Type=kind)
        assert refused.status == 400
        assert text in refused.text


def test_an_address_of_no_page_is_refused_in_the_form_of_the_client(browser: Browser) -> None:
    accept = "text/html,*/*;q=0.8"
    page = browser.get("/jobs/1/cancel", Accept=accept)
    for wrong in ("/static/none.css", "/?state=held&state=held"):
        others = browser.get(wrong, Accept=accept)
        assert others.status == browser.get(wrong, Accept="*/*").status >= 400
        assert "Back to the queue" in others.text
    api = browser.get("/v1/usage?by=user&by=user", Accept=accept)
    assert api.headers["content-type"] == "application/json"
    program = browser.get("/nonsense", Accept="*/*")

    assert page.status == program.status == 404
    assert "there is no page" in page.text.lower()
    assert "</html>" in page.text
    assert program.headers["content-type"] == "application/json"


def test_a_session_is_of_an_account_and_not_of_its_number(tmp_path: Path) -> None:
    """An account that gets the number of a deleted one does not get its sessions."""
    names, clock = ["ann"], SystemClock()
    accounts = KnownAccounts(clock, lambda uid: account(names[-1], uid), version=lambda: len(names))
    ended = EndedSessions(str(tmp_path / "ended"))
    viewers = Viewers(b"key", ended, session_s=100.0, clock=clock, accounts=accounts)
    session = viewers.begin_session(viewers.new_token(Viewer(uid=4711, gid=4711, user="ann")))
    request = make_mocked_request("GET", "/", headers={"Cookie": f"{COOKIE}={session}"})

    async def look() -> None:
        assert (await viewers.of(request)).user == "ann"
        names.append("bob")
        with pytest.raises(NotPermittedError, match="nobody is logged in"):
            await viewers.of(request)

    asyncio.run(look())


def account(name: str, uid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))


def test_the_user_of_a_unix_socket_needs_no_session_but_a_proxy_does(watched: Cluster) -> None:
    here = {"Host": "localhost"}

    assert get(watched, "/", here).status == 200
    assert get(watched, "/", here | {"X-Forwarded-For": "10.0.0.1"}).status == 401


def test_behind_a_proxy_all_addresses_begin_with_its_path(cluster: Cluster) -> None:
    cluster.has_monitor = True
    cluster.web_settings = {"base_path": "/gsched", "origin": "https://hpc.example"}
    cluster.start_head()
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    browser = Browser(address(cluster))
    began = browser.log_in()
    page = browser.get("/", Host="hpc.example")
    addresses = re.findall(r'(?:href|action|src|data-updates)="([^"]+)"', page.text)
    printed = run_command("gsched", "web", "--print", head=cluster.socket)

    assert began.headers["location"] == "/gsched/"
    assert "Path=/gsched" in began.headers["set-cookie"]
    assert all(each.startswith(("/gsched/", "#")) for each in addresses)
    token = browser.form_token()
    from_page = {"Origin": "https://hpc.example", "X_Forwarded_Proto": "https"}
    assert browser.post("/logout", {"form_token": token}, **from_page).status == 200
    assert printed.stdout.startswith("https://hpc.example/gsched/login?token=")
    browser = Browser(address(cluster))
    began = browser.post("/login", {"token": browser.found.token}, **from_page)
    assert "Secure" in began.headers["set-cookie"]
