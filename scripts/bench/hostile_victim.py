"""An ordinary user beside the attacks: one small job after the other, each waited for.

``hostile_victim.py SOCKET FILE`` writes a line of JSON to FILE for each job, until SIGTERM. A job
that sleeps all the time runs beside them; it must be the same attempt at the end.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gsched.client import HeadClient, new_job  # noqa: E402 - the path comes first
from gsched.protocol.actions import DeleteJob  # noqa: E402 - as above
from gsched.protocol.job_rows import JobStory  # noqa: E402 - as above

PAUSE_S = 0.5
GIVEN_UP_S = 60.0
NOTICE_EACH = 10


class Ended(BaseException):
    """SIGTERM came."""


def _end(*_: object) -> None:
    raise Ended


def _line(story: JobStory, submit_s: float, ack_s: float, end_s: float, *, notice: bool) -> str:
    attempts = story.attempts
    started_s = attempts[0].started_s if attempts else None
    record = {
        "id": story.row.id,
        "state": str(story.row.state),
        "outcome": story.row.outcome.shell_status if story.row.outcome else None,
        "attempts": len(attempts),
        "notice": notice,
        "submit_s": submit_s,
        "ended_s": end_s,
        "ack_ms": (ack_s - submit_s) * 1000,
        "start_ms": ((started_s or end_s) - submit_s) * 1000,
        "end_ms": (end_s - submit_s) * 1000,
    }
    return json.dumps(record)


def main() -> None:
    """Submit and wait until SIGTERM."""
    path, file = sys.argv[1:]
    head = HeadClient(path)
    quiet = {"stdout_path": "/dev/null", "stderr_path": "/dev/null"}
    small = {"launch": "command", "arguments": ("true",), "resources": ("walltime=60",), **quiet}
    workdir = os.getcwd()
    long = new_job(
        name="long", workdir=workdir, **small | {"arguments": ("sleep", "36000"), "resources": ()}
    )
    long_id = head.submit([long]).results[0].id
    signal.signal(signal.SIGTERM, _end)
    count = 0
    with open(file, "w", encoding="ascii", buffering=1) as stream:
        try:
            while True:
                notice = count % NOTICE_EACH == 0
                submit_s = time.time()
                points = {"mail_points": "e"} if notice else {}
                job = head.submit([new_job(name="small", workdir=workdir, **small, **points)])
                ack_s = time.time()
                [story] = head.wait([job.results[0].id], timeout_s=GIVEN_UP_S)
                stream.write(_line(story, submit_s, ack_s, time.time(), notice=notice) + "\n")
                count += 1
                time.sleep(PAUSE_S)
        except Ended:
            pass
        story = head.job(long_id)
        head.act(DeleteJob(ids=(str(long_id),)))
    state, attempts = str(story.row.state), len(story.attempts)
    print(json.dumps({"jobs": count, "long": state, "long attempts": attempts}), flush=True)


if __name__ == "__main__":
    main()
