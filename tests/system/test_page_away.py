"""The page while the head does not answer, or is in safe mode: it says so, and since when."""

import re
import signal

import psutil

from gsched.client import new_job
from gschedd.monitor.page.site import PAGES
from tests.support.cluster import Cluster, wait_until
from tests.support.monitor import Browser, address, socket_of


def submit(cluster: Cluster, count: int = 1, **options: object) -> list[int]:
    given = {"name": "train", "workdir": "/tmp", "script": "#!/bin/sh\nsleep 60\n"} | options
    reply = cluster.head.submit([new_job(**given) for _ in range(count)])  # type: ignore[arg-type] # any option
    return [result.id for result in reply.results]


def let_hang(cluster: Cluster) -> None:
    """Stop the head with SIGSTOP. Its threads end what they do on a processor first."""
    head = cluster.head_process
    head.send_signal(signal.SIGSTOP)
    wait_until(
        lambda: psutil.Process(head.pid).status() == psutil.STATUS_STOPPED, what="the stopped head"
    )


def test_a_head_that_does_not_answer_is_named_on_all_pages(
    watched: Cluster, browser: Browser
) -> None:
    """With the time of its last answer and what to do; no page waits for it any more.

    What a page has waited for when that is noticed ends with the same words.
    """
    (job,) = submit(watched)
    words = "he head has not answered since "
    form = browser.get("/submit").text
    key = re.findall(r'name="key" value="([^"]+)"', form)[0]
    token = browser.form_token()
    let_hang(watched)
    try:
        waited = browser.get(f"/submit?from={job}")
        wait_until(lambda: words in browser.get("/").text, what="the banner")
        pages = {path: browser.get(path).text for path, _ in PAGES}
        fields = {"form_token": token, "key": key, "name": "mine", "workdir": "/tmp", "script": "x"}
        unsent = browser.post("/submit", fields)
    finally:
        watched.head_process.send_signal(signal.SIGCONT)

    advice = f"kill -CONT {watched.head_process.pid} lets it continue"
    assert all(advice in text for text in (*pages.values(), waited.text, unsent.text))
    assert (waited.status, unsent.status) == (503, 503)
    assert words in waited.text
    assert f'name="key" value="{key}"' in unsent.text  # sent again, it is the same job
    assert 'name="name" value="mine"' in unsent.text
    assert '<textarea name="script"' in pages["/submit"]
    assert {path: text.count(words) for path, text in pages.items()} == dict.fromkeys(pages, 1)
    assert all("is stopped by a signal (SIGSTOP)" in text for text in pages.values())
    wait_until(lambda: words not in browser.get("/").text, what="no banner")


def test_safe_mode_is_named_on_all_pages(cluster: Cluster) -> None:
    cluster.start_head()
    cluster.stop_head()
    (cluster.state_dir / "gsched.mark").unlink()
    cluster.has_monitor = True
    cluster.start_head()
    assert cluster.head.status().safe_mode
    wait_until(socket_of(cluster).exists, what="the monitor")
    browser = Browser(address(cluster))
    browser.log_in()

    wait_until(lambda: "Safe mode (" in browser.get("/").text, what="the banner")
    pages = {path: browser.get(path).text for path, _ in PAGES}
    assert {path: text.count("ends it with gsched recover") for path, text in pages.items()} == (
        dict.fromkeys(pages, 1)
    )


def test_without_the_head_its_database_still_shows_the_queue(
    watched: Cluster, browser: Browser
) -> None:
    submit(watched, 2)
    let_hang(watched)
    try:
        found = browser.get("/")
        nodes, reservations = browser.get("/nodes"), browser.get("/reservations")
    finally:
        watched.head_process.send_signal(signal.SIGCONT)

    assert found.status == 200
    assert "train" in found.text
    assert re.search(r"The head (does not answer|has not answered)", found.text)
    assert re.search('data-label="CPUs"[^>]*>0<', found.text) is None  # the head alone knows them
    assert nodes.status == reservations.status == 503
    for page in (nodes, reservations):
        assert re.search(r"The head (does not answer|has not answered)", page.text)
    assert "TimeoutError" not in found.text + nodes.text


def test_without_the_head_its_database_still_shows_a_job(
    watched: Cluster, browser: Browser
) -> None:
    (waits,) = submit(watched, name="waits")
    (held,) = submit(watched, name="held", holds=("user",))

    def summary(text: str) -> str:  # the attributes below may have what the forecast said before
        return text.partition("All attributes")[0]

    reason = "no node has registered yet"
    wait_until(
        lambda: reason in summary(browser.get(f"/jobs/{waits}").text), what="the reason of the head"
    )
    let_hang(watched)
    try:
        pages = [browser.get(f"/jobs/{job}") for job in (waits, held)]
    finally:
        watched.head_process.send_signal(signal.SIGCONT)

    assert [page.status for page in pages] == [200, 200]
    assert reason not in summary(pages[0].text)
    assert all("The head has not answered" in page.text for page in pages)
    assert "grls -h u" in pages[1].text
