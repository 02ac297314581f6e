"""Which processes of a job take its checkpoint signal, and what is said if none does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGUSR1

import pytest

from gnode.supervisor import journal, proc
from gnode.supervisor.asking import LOOK_S, PATIENCE_S, YOUNG_S, Asking
from gnode.supervisor.ending import Ending

GRACE_S = 60.0
BLOCKED = "signal.pthread_sigmask(signal.SIG_BLOCK, {10})"
WAITING = (
    f"{BLOCKED}; import threading, time; "
    "threading.Thread(target=lambda: (signal.sigwait({10}), print('got', flush=True))).start(); "
    "time.sleep(0.1)"
)
#: As a step agent is called, which catches signals and leaves them to its tasks.
OWN = "open('/proc/self/comm', 'w').write('gsv steps')"
CAUGHT = "signal.signal(10, lambda *_: print('got', flush=True))"
PROGRAM = """
import signal, sys
for line in iter(sys.stdin.readline, ""):
    exec(line)
    print("done", flush=True)
"""


class Job:
    """A job of one process, which does what it is told."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.journal = journal.make_journal(self.directory)
        self.ending = Ending(walltime_s=None, grace_s=GRACE_S)
        self.asking = Asking()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.started_s = proc.start_ticks(self.process.pid) / os.sysconf("SC_CLK_TCK")

    def do(self, line: str) -> None:
        """Let it do something."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        assert self.process.stdout.readline() == "done\n"

    def says(self) -> str:
        """Return the next line that it prints, or nothing at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, request: int, now_s: float) -> None:
        """Give its supervisor the order, and look for the first time."""
        self.asking.take(SIGUSR1, request, self.ending, now_s)
        self.look(now_s)

    def look(self, now_s: float) -> None:
        """Let its supervisor look."""
        pids = {self.process.pid}
        self.asking.step(lambda: pids, self.ending, self.journal, GRACE_S, now_s)

    def answers(self) -> tuple[int, int]:
        """Return the last migrations for which the signal was sent, and was not."""
        story = journal.read_story(self.directory)
        return story.signalled, story.unhandled


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Return a job that runs until the end of the test."""
    made = Job(tmp_path)
    made.do("pass")
    with made.process:
        yield made
        made.process.kill()
    made.journal.close()


@pytest.mark.parametrize(
    ("line", "takes"),
    [
        ("pass", ()),
        ("signal.signal(10, signal.SIG_IGN)", ()),
        (CAUGHT, ("catches",)),
        (BLOCKED, ("blocks",)),
        (f"{BLOCKED}; signal.signal(10, signal.SIG_IGN)", ()),
        (f"{CAUGHT}; {BLOCKED}", ("catches", "blocks")),
        (WAITING, ("blocks",)),
        (f"{CAUGHT}; {OWN}", ()),
        (f"{BLOCKED}; {OWN}", ()),
        (f"import threading; threading.Thread(target=input).start(); {BLOCKED}", ()),
    ],
)
def test_a_process_takes_a_signal_that_it_catches_or_that_all_its_threads_block(
    job: Job, line: str, takes: tuple[str, ...]
) -> None:
    job.do(line)
    pids = {job.process.pid}

    assert proc.handlers_of(pids, SIGUSR1) == (pids if "catches" in takes else set())
    assert proc.blockers_of(pids, SIGUSR1) == (pids if "blocks" in takes else set())


def test_a_process_that_has_ended_takes_nothing() -> None:
    assert proc.handlers_of({1 << 30}, SIGUSR1) == proc.blockers_of({1 << 30}, SIGUSR1) == set()


def test_a_signal_that_is_caught_is_sent_once(job: Job) -> None:
    job.do(CAUGHT)

    job.ask(3, 1000.0)
    assert job.says() == "got\n"
    job.ask(3, 1001.0)

    assert (job.ending.signalled, job.ending.signalled_s, job.answers()) == (3, 1000.0, (3, 0))
    assert job.asking.due_s is None
    job.do("pass")  # it prints nothing else


def test_old_processes_that_do_not_handle_it_are_told_of_at_once(job: Job) -> None:
    job.ask(2, job.started_s + YOUNG_S)

    assert (job.ending.signalled, job.asking.refused, job.answers()) == (0, 2, (0, 2))
    assert job.asking.due_s is None
    job.ask(2, job.started_s + YOUNG_S)
    assert job.asking.due_s is None
    job.do("pass")  # it lives


def test_young_processes_may_still_install_a_handler(job: Job) -> None:
    young_s = job.started_s
    job.ask(1, young_s)
    assert (job.answers(), job.asking.due_s) == ((0, 0), young_s + LOOK_S)
    job.look(young_s + PATIENCE_S)
    assert job.answers() == (0, 1)
    job.ask(2, young_s)
    job.do(CAUGHT)
    job.look(young_s + LOOK_S)
    assert job.answers() == (2, 1)


def test_a_signal_that_is_blocked_for_a_moment_only_is_not_waited_for(job: Job) -> None:
    """A process blocks all signals while it starts another one, and would die afterwards."""
    old_s = job.started_s + YOUNG_S
    job.do(BLOCKED)
    job.ask(1, old_s)
    job.do("signal.pthread_sigmask(signal.SIG_UNBLOCK, {10})")
    job.look(old_s + LOOK_S)
    assert job.answers() == (0, 1)

    job.do(WAITING)
    job.ask(2, old_s)
    job.look(old_s + LOOK_S)

    assert job.answers() == (2, 1)
    assert job.says() == "got\n"


def test_a_job_that_is_being_stopped_is_not_asked(job: Job) -> None:
    job.do(CAUGHT)
    job.ending.stop("delete", 5.0, 1000.0)

    job.ask(1, 1000.0)

    assert (job.answers(), job.asking.due_s) == ((0, 0), None)
