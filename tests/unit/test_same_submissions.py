"""Jobs of one request that differ in their keys only: each is what it would be alone."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from gsched.errors import GschedError, InvalidRequestError, TryAgainError
from gsched.model import limits
from gsched.model.job import JobSpec
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.requests.submit import after
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.policies.queue import fifo
from tests.support.world import ADMIN, ALICE, BEGIN_S, settings, submission

KINDS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "with values": {
        "resources": ("nodes=1:ppn=2,walltime=60",),
        "environment": {"A": "1", "PBS_O_HOST": "login"},
        "arguments": ("x", "y"),
        "grace_s": 3.0,
    },
    "with a warning": {"mail_points": "e", "mail_to": "a@b.c"},
    "held": {"holds": ("user",)},
    "an array": {"array": "0-3"},
    "later": {"start_after_s": BEGIN_S + 60},
}


def command(key: str, caller: Caller = ALICE, **changes: object) -> c.Submit:
    submitted = submission(key=key, **changes)
    digests = (f"of {submitted.script}", f"of {sorted(submitted.environment.items())}")
    return c.Submit(caller=caller, submitted=submitted, digests=digests)


def new_head(config: Settings | None = None) -> Head:
    return Head(state=State(), settings=config or settings(), policy=fifo.plan)


def in_one_request(head: Head, *commands: c.Submit) -> list[Step]:
    """Submit jobs as one slice of a request, each after the last one that was accepted."""
    before: tuple[c.Submit, Step] | None = None
    steps: list[Step] = []
    for each in commands:
        step = head.command(after(each, before), BEGIN_S)
        before = (each, step) if step.facts else before
        steps.append(step)
    return steps


def specs_of(head: Head, steps: list[Step]) -> list[JobSpec]:
    assert [step.error for step in steps] == [None] * len(steps)
    return [head.state.jobs[step.job].spec for step in steps]


@pytest.mark.parametrize("kind", KINDS)
def test_each_job_is_as_if_it_came_alone(kind: str) -> None:
    commands = [command(f"k{number}", **KINDS[kind]) for number in range(3)]
    together, alone = new_head(), new_head()

    steps = in_one_request(together, *commands)
    expected = [alone.command(each, BEGIN_S) for each in commands]

    assert after(commands[1], (commands[0], steps[0])).same_as is not None, "else nothing is tested"
    assert specs_of(together, steps) == specs_of(alone, expected)
    assert [step.warnings for step in steps] == [step.warnings for step in expected]
    assert [step.facts for step in steps] == [step.facts for step in expected]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"script": "#!/bin/sh\ntrue\n"},
        {"environment": {"A": "2"}},
        {"priority": 1},
    ],
)
def test_a_job_that_differs_in_more_than_its_key_is_read_by_itself(
    changes: dict[str, Any],
) -> None:
    first = command("a")
    head = new_head()
    step = head.command(first, BEGIN_S)
    other = command("b", **changes)

    assert after(other, (first, step)) is other
    (spec,) = specs_of(head, [head.command(other, BEGIN_S)])
    assert spec != structs.replace(head.state.jobs[step.job].spec, client_key="b")


def test_a_job_that_depends_on_others_is_read_by_itself() -> None:
    first, second = (command(key, depends=("afterany:1",)) for key in "ab")

    assert after(second, (first, Step(job=1))) is second


def test_the_limit_of_unfinished_jobs_holds_within_a_request() -> None:
    head = new_head(settings(max_queued_per_user=2))

    steps = in_one_request(head, *(command(f"k{number}") for number in range(4)))

    assert [type(step.error) for step in steps] == [type(None)] * 2 + [TryAgainError] * 2
    assert len(head.state.jobs) == 2


def test_the_arguments_of_a_request_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_USER_ARGUMENT_BYTES", 2_500)
    head = new_head()

    steps = in_one_request(
        head, *(command(f"k{number}", arguments=("x" * 1_000,)) for number in range(3))
    )

    assert [step.error is None for step in steps] == [True, True, False]


def test_a_key_that_is_too_long_is_refused_also_of_the_second_job() -> None:
    head = new_head()

    first, second = in_one_request(head, command("a"), command("b" * (limits.MAX_WORD + 1)))

    assert first.error is None
    assert isinstance(second.error, InvalidRequestError)
    assert "key has 256 characters" in second.error.message


def test_a_key_that_is_known_makes_no_further_job() -> None:
    head = new_head()

    steps = in_one_request(head, command("a"), command("a"), command("b"))

    assert [step.job for step in steps] == [1, 1, 2]
    assert head.state.jobs[2].spec.client_key == "b"


def test_after_a_refusal_the_next_job_is_read_by_itself() -> None:
    head = new_head()
    bad = command("a", workdir="relative")

    steps = in_one_request(head, bad, command("b", workdir="relative"), command("c", ADMIN))

    assert [isinstance(step.error, GschedError) for step in steps] == [True, True, False]
