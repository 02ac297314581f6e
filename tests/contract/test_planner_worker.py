"""The worker process, for real: it answers, fails, hangs, dies and is started again."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from baselines import edf
from gsched.clock import SystemClock
from gschedd.core.cycle.rounds import AskCheck, AskPlan, Checked, Failed, Planned
from gschedd.plan.compose import Composed
from gschedd.plan.snapshot import Policy, Snapshot
from gschedd.planner.process import Worker
from gschedd.policies.queue import fifo
from tests.support.odd_policies import dies, once, raises, spins
from tests.support.training_jobs import elastic, gpu_nodes, profile, snapshot_of

pytestmark = pytest.mark.timeout(180)

LONG_S = 120.0


def seen() -> Snapshot:
    """Return two idle GPUs and a training that wants them."""
    return snapshot_of(gpu_nodes(2), [profile(1, request=elastic(2, 2), deadline_s=1e6)]).detach()


def with_worker(
    policy: Policy, work: Callable[[Worker], Awaitable[None]], *, limit_s: float = LONG_S
) -> None:
    """Do something with a worker, and end it."""

    async def run() -> None:
        worker = Worker(
            Composed(policy, fifo.plan), name="planner", time_limit_s=limit_s, clock=SystemClock()
        )
        try:
            await work(worker)
        finally:
            await worker.close()

    asyncio.run(run())


def test_it_answers_as_the_policy_does() -> None:
    """And remembers the plan that a check goes on from."""

    async def work(worker: Worker) -> None:
        planned = await worker.ask(AskPlan(number=1, seen=seen()))
        checked = await worker.ask(AskCheck(number=2, starts=edf.plan(seen()).starts))

        assert planned == Planned(number=1, plan=edf.plan(seen()))
        assert checked == Checked(number=2, late={1: 0})
        assert worker.trouble == ""

    with_worker(edf.plan, work)


def test_a_policy_that_raises_says_what_it_raised() -> None:
    """The process goes on."""

    async def work(worker: Worker) -> None:
        first = await worker.ask(AskPlan(number=1, seen=seen()))
        pid = worker.pid
        again = await worker.ask(AskPlan(number=2, seen=seen()))

        for answer in (first, again):
            assert isinstance(answer, Failed)
            assert answer.raised
            assert "ZeroDivisionError: nobody is there to share with" in answer.why
        assert worker.pid == pid

    with_worker(raises, work)


def test_one_that_hangs_is_killed_and_the_next_answers(tmp_path: Path) -> None:
    """It hangs in the interpreter, where no exception reaches it."""
    policy = partial(once, odd=spins, path=str(tmp_path / "hung"))

    async def work(worker: Worker) -> None:
        late = await worker.ask(AskPlan(number=1, seen=seen()))
        trouble = worker.trouble
        answer = await worker.ask(AskPlan(number=2, seen=seen()))

        assert isinstance(late, Failed)
        assert "has not answered within 3 s" in late.why
        assert "has not answered" in trouble
        assert isinstance(answer, Planned)
        assert worker.trouble == ""

    with_worker(policy, work, limit_s=3.0)


def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    """And says how it died."""
    policy = partial(once, odd=dies, path=str(tmp_path / "died"))

    async def work(worker: Worker) -> None:
        dead = await worker.ask(AskPlan(number=1, seen=seen()))
        answer = await worker.ask(AskPlan(number=2, seen=seen()))
        check = await worker.ask(AskCheck(number=9, starts=()))

        assert isinstance(dead, Failed)
        assert "has ended with exit status 3" in dead.why
        assert isinstance(answer, Planned)
        assert isinstance(check, Failed), "it knows nothing of a plan of number 8"

    with_worker(policy, work)


def test_one_that_is_killed_between_two_questions_is_started_again() -> None:
    """By a signal from outside, say of the kernel where memory runs out."""

    async def work(worker: Worker) -> None:
        await worker.ask(AskPlan(number=1, seen=seen()))
        os.kill(worker.pid, signal.SIGKILL)
        dead = await worker.ask(AskPlan(number=2, seen=seen()))
        answer = await worker.ask(AskPlan(number=3, seen=seen()))

        assert isinstance(dead, Failed)
        assert "was killed by signal 9 (SIGKILL)" in dead.why
        assert isinstance(answer, Planned)

    with_worker(edf.plan, work)


def test_it_dies_with_its_head() -> None:
    """Also in the middle of a plan that never ends."""
    script = (
        "import asyncio, sys\n"
        "from gsched.clock import SystemClock\n"
        "from gschedd.core.cycle.rounds import AskPlan\n"
        "from gschedd.plan.compose import Composed\n"
        "from gschedd.planner.process import Worker\n"
        "from baselines import edf\n"
        "from gschedd.policies.queue import fifo\n"
        "from tests.contract.test_planner_worker import seen\n"
        "async def main():\n"
        "    worker = Worker(Composed(edf.plan, fifo.plan), name='planner', time_limit_s=60,\n"
        "                    clock=SystemClock())\n"
        "    await worker.ask(AskPlan(number=1, seen=seen()))\n"
        "    print(worker.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    head = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert head.stdout is not None
    pid = int(head.stdout.readline())
    opened = os.pidfd_open(pid)

    head.kill()
    head.wait()
    head.stdout.close()

    assert select.select([opened], [], [], LONG_S)[0], "it lives on"
    os.close(opened)
