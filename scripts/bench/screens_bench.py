"""Screenshots of the page with a busy cluster of simulated nodes and a head that answers.

Jobs of several users run and wait on 200 nodes: training on GPUs, a large array, jobs that are
held, have a deadline or depend on others, reservations, maintenance and a drained node. After
--seconds, when charts have a line, each page is saved in DIRECTORY as PAGE-WIDTH-SCHEME.png, whole,
at 1280 and 390 pixels, light and dark. What is wider than the window is printed. With --serve the
cluster then stays until Ctrl-C, and an address with a token is printed every minute.

Example: scripts/bench/screens /tmp/screens --seconds 120
"""

import argparse
import base64
import getpass
import pwd
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from respond_bench import World, world  # noqa: E402 - the path comes first

from gsched.client import new_job  # noqa: E402 - as above
from gsched.model.ids import short_job_id  # noqa: E402 - as above
from gsched.protocol.submissions import SubmitReply, SubmitRequest  # noqa: E402 - as above
from gschedd.http.callers import ON_BEHALF_OF  # noqa: E402 - as above
from tests.support.cluster import wait_until  # noqa: E402 - as above
from tests.support.commands import run_command  # noqa: E402 - as above
from tests.support.monitor import UnixConnection, address, is_ready, send  # noqa: E402 - as above

GPUS, CPUS = 8, 64
#: Accounts that every Debian has stand for users.
USERS = ("daemon", "games", "mail", "news", "backup", "list", "www-data")
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
TRIES = 10
LONG = "resnet152-imagenet21k-lr3e-4-wd5e-2-batch4096-augment-randaug-mixup-seed17-second-try"


def submit(made: World, user: str, count: int = 1, **terms: object) -> list[int]:
    """Submit jobs as a user, and return their ids."""
    given = {"workdir": "/tmp", "script": "#!/bin/sh\nsleep 1\n"} | terms
    jobs = tuple(new_job(**given) for _ in range(count))  # type: ignore[arg-type] # any terms
    account = pwd.getpwnam(user)
    headers = {
        ON_BEHALF_OF: f"{account.pw_uid}:{account.pw_gid}",
        "Content-Type": "application/json",
    }
    body = msgspec.json.encode(SubmitRequest(jobs=jobs)).decode()
    connection = UnixConnection(made.cluster.socket)
    response = send(connection, "POST", "/v1/jobs", body=body, headers=headers)
    if response.status != 200:
        sys.exit(response.text)
    results = msgspec.json.decode(response.text, type=SubmitReply).results
    for each in results:
        if each.error is not None:
            sys.exit(each.error.message)
    return [each.id for each in results]


def run(made: World, *words: str) -> None:
    """Run a command of an operator."""
    ran = run_command(*words, head=made.cluster.socket)
    if ran.status != 0:
        sys.exit(ran.stderr)


def fill(made: World, nodes: int) -> dict[str, str]:
    """Give the cluster work, and return the paths of its pages by name."""
    gpu_nodes = nodes * 3 // 5
    told = {"reports": "uses", "every": 5}
    has = {"gpus": GPUS, "gpu_type": "a100", "memory_gb": 512}
    made.start_nodes("gpu", gpu_nodes, seconds=5e4, cpus=CPUS, **has, **told)
    made.start_nodes("cpu", nodes - gpu_nodes, seconds=20.0, cpus=CPUS, **told)
    run(made, "gnodes", "drain", "gpu0007", "--reason", "fan 3 fails, ticket 4711")
    when = ("--start", "tomorrow 08:00", "--duration", "8h")
    course = (*when, "--nodes", "4", "--users", "games,mail", "-m", "course on diffusion models")
    run(made, "gres", "create", "course", *course)
    night = ("--start", "22:00", "--duration", "6h", "--gpus", "16", "--users", "backup,list")
    run(made, "gres", "create", "nightly-evaluation", *night, "--recur", "weekdays")
    window = ("--from", "+3d", "--to", "+8h", "--reason", "new firmware")
    run(made, "gnodes", "maintenance", f"gpu[{gpu_nodes - 20:04}-{gpu_nodes - 10:04}]", *window)
    whole = f"ppn={CPUS}:gpus={GPUS},walltime=48:0:0"
    first = [
        submit(made, user, 3, name=f"llama-{user}", resources=(f"nodes=4:{whole}",))[0]
        for user in USERS[:5]
    ]
    for at in range(40):
        part = (f"nodes=1:ppn={4 + at % 8}:gpus={1 + at % 4},walltime={8 + at}:0:0",)
        submit(made, USERS[at % len(USERS)], 3, name=f"sweep-{at}", resources=part)
    queued = submit(made, "games", name=LONG, resources=(f"nodes=2:{whole}",))
    time.sleep(5.0)  # they start
    waiting = [
        submit(made, user, 4, name=f"finetune-{user}", resources=(f"nodes=16:{whole}",))[0]
        for user in USERS
    ]
    for at in range(120):
        more = (f"nodes={1 + at % 3}:ppn=8:gpus={1 + at % 8},walltime={1 + at % 30}:0:0",)
        submit(made, USERS[at % len(USERS)], name=f"ablation-{at}", resources=more)
    elements: dict[str, Any] = {
        "array": "0-9999%100",
        "resources": ("nodes=1:ppn=8,walltime=0:10:0",),
    }
    array = submit(made, "news", name="preprocess", **elements)
    submit(made, "mail", 2, name="held", holds=("user",), resources=("nodes=1:gpus=1",))
    submit(made, "list", depends=(f"afterok:{short_job_id(waiting[0])}",), name="evaluate")
    for hours in (3, 9, 60):
        soon = f"nodes=2:ppn={CPUS}:gpus={GPUS},walltime={hours - 1}:0:0"
        late: dict[str, Any] = {"deadline_after_s": 3600.0 * hours, "resources": (soon,)}
        submit(made, USERS[-1], name=f"camera-ready-{hours}h", **late)
    mine: dict[str, Any] = {"deadline_after_s": 9 * 3600.0, "comment": "ablation without mixup"}
    mine |= {"mail_points": "ae", "arguments": ("--lr", "3e-4", "--out", "runs/of this week")}
    one = {"resources": ("nodes=1:ppn=8:gpus=1,mem=64gb,walltime=8:00:00",)}
    own = submit(made, getpass.getuser(), name="ablation", kind="resnet152", **mine, **one)
    begin_s = int(time.time()) - 86400
    return {
        "queue": "/",
        "waiting": "/?state=waiting",
        "nodes": "/nodes",
        "node": "/nodes/gpu0002",
        "gpus": "/gpus",
        "gpu": "/nodes/gpu0002/gpus/2",
        "running-job": f"/jobs/{short_job_id(first[0])}",
        "queued-job": f"/jobs/{short_job_id(queued[0])}",
        "array": f"/jobs/{short_job_id(array[0])}[]",
        "users": "/users",
        "deadlines": "/deadlines",
        "reservations": "/reservations",
        "report": f"/v1/report.html?since={begin_s}&until={begin_s + 86400}&form=daily",
        "reports": "/reports",
        "submit": "/submit",
        "submit-again": f"/submit?from={short_job_id(own[0])}",
    }


@contextmanager
def browser() -> Iterator[Any]:
    """Yield Chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def load(driver: Any, page: str) -> None:
    """Load a page; again where the head had not answered yet."""
    for _ in range(TRIES):
        driver.get(page)
        if not driver.find_elements("css selector", "[data-again], .notice.bad"):
            return
        time.sleep(1.0)
    print(f"{page}: not complete after {TRIES} tries")


def save(made: World, paths: Mapping[str, str], directory: Path) -> None:
    """Save each page at each width and in each colour scheme."""
    found = address(made.cluster)
    with browser() as driver:
        driver.get(f"http://{found.address}/login?token={found.token}")
        driver.find_element("css selector", "main button").click()
        for name, path in paths.items():
            for width in WIDTHS:
                for scheme in SCHEMES:
                    size = {"width": width, "height": 900, "deviceScaleFactor": 1}
                    size |= {"mobile": width < 800}
                    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
                    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
                    load(driver, f"http://{found.address}{path}")
                    whole = {"captureBeyondViewport": True}
                    taken = driver.execute_cdp_cmd("Page.captureScreenshot", whole)["data"]
                    picture = directory / f"{name}-{width}-{scheme}.png"
                    picture.write_bytes(base64.b64decode(taken))
                    wide = driver.execute_script("return document.documentElement.scrollWidth")
                    if wide > width:
                        print(f"{picture.name}: {wide} pixels wide")


def main() -> None:
    """Save screenshots."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="for the pictures")
    parser.add_argument("--nodes", type=int, default=200, help="simulated (default 200)")
    parser.add_argument("--seconds", type=float, default=150.0, help="until then (default 150)")
    parser.add_argument("--only", default="", metavar="LIST", help="pages by name")
    parser.add_argument("--serve", action="store_true", help="keep the cluster until Ctrl-C")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # what was started is ended
    given.directory.mkdir(parents=True, exist_ok=True)
    with world() as made:
        made.cluster.has_monitor = True
        made.cluster.head_settings |= {"single_user": False, "min_uid": 1}
        made.cluster.web_settings = {"sample_period_s": 2.0}
        made.cluster.start_head()
        paths = fill(made, given.nodes)
        wait_until(lambda: is_ready(made.cluster), 120.0, what="the monitor to be ready")
        time.sleep(given.seconds)
        only = given.only.split(",") if given.only else list(paths)
        save(made, {name: paths[name] for name in only}, given.directory)
        while given.serve:
            found = address(made.cluster)
            print(f"http://{found.address}/login?token={found.token}", made.cluster.socket, paths)
            sys.stdout.flush()
            time.sleep(60.0)


if __name__ == "__main__":
    main()
