"""A user's program that submits jobs until it is told to stop, whatever happens to the head.

``python -m tests.support.submitter --socket S --jobs DIR --script FILE --acks FILE --stop FILE
--seed N [--cli] [--account A] [--reservation R]`` appends a line ``ID KEY`` to ``--acks`` for each
job that it was told an id of.
With ``--cli`` it runs gsub, else it uses `gsched.client`. With an account, half of its jobs request
a GPU; a third of them name the reservation.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from gsched.client import HeadClient, new_job, new_key
from gsched.errors import HeadUnreachableError, TryAgainError
from gsched.model.ids import read_job_id

PAUSE_S_MEAN = 0.3
RETRY_S = 0.1


def main() -> None:
    """Submit until the stop file is there."""
    parser = argparse.ArgumentParser()
    for name in ("socket", "jobs", "script", "acks", "stop"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cli", action="store_true")
    parser.add_argument("--account", default="")
    parser.add_argument("--reservation", default="")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    submit = _by_command if given.cli else _by_client
    while not given.stop.exists():
        time.sleep(rng.uniform(0, 2 * PAUSE_S_MEAN))
        told = submit(given, _choose(given, rng))
        if told is not None:
            _note(given.acks, told)


def _choose(given: argparse.Namespace, rng: random.Random) -> dict[str, str]:
    """Return the account, resources and reservation of the next job."""
    if not given.account:
        return {}
    chosen = {"account": given.account, "walltime": "60"}
    if rng.random() < 0.5:
        chosen["gpus"] = "1"
        if given.reservation and rng.random() < 0.3:
            chosen["reservation"] = given.reservation
    return chosen


def _words(key: str, value: str) -> tuple[str, ...]:
    """Return an option of gsub."""
    return {
        "account": ("-A", value),
        "reservation": ("--reservation", value),
    }.get(key, ("-l", f"{key}={value}"))


def _note(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, text.encode() + b"\n")
    os.close(fd)


def _by_client(given: argparse.Namespace, chosen: dict[str, str]) -> str | None:
    """Submit one job, again and again with one key, until there is an id."""
    head = HeadClient(str(given.socket), patience_s=RETRY_S)
    key = new_key()
    script = given.script.read_text(encoding="ascii")
    more: dict[str, object] = {
        key: value for key, value in chosen.items() if key in {"account", "reservation"}
    }
    words = [f"{key}={chosen[key]}" for key in ("walltime", "gpus") if key in chosen]
    more["resources"] = tuple(words)
    workdir = str(given.jobs)
    job = new_job(key=key, name="chaos", workdir=workdir, script=script, grace_s=1.0, **more)
    while True:
        try:
            (result,) = head.submit([job]).results
        except (HeadUnreachableError, TryAgainError):
            time.sleep(RETRY_S)
            continue
        assert result.error is None, result.error
        return f"{result.id} {key}"


def _by_command(given: argparse.Namespace, chosen: dict[str, str]) -> str | None:
    """Submit one job by gsub; without an id nobody was guaranteed anything."""
    options = [word for key, value in chosen.items() for word in _words(key, value)]
    done = subprocess.run(
        [sys.executable, "-m", "gsched.cli.commands.gsub", *options, str(given.script)],
        env={**os.environ, "GSCHED_HEAD": str(given.socket)},
        cwd=given.jobs,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 69, 75}, done
    if done.returncode != 0:
        assert done.stdout == "", done
        return None
    return f"{read_job_id(done.stdout.strip()).number} gsub-{new_key()}"


if __name__ == "__main__":
    main()
