"""Users cannot raise their jobs above the priority that the site allows; operators can."""

import pytest

from gsched.config.load import parse_config
from gsched.errors import InvalidRequestError, NotPermittedError
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller
from gschedd.daemon.setup import settings_from
from tests.support.world import ADMIN, ALICE, World, settings, submission


def submitted(asked: int, by: Caller, limit: int) -> tuple[int, tuple[str, ...]]:
    """Return the priority a job got, and the warnings of its submission."""
    world = World(config=settings(max_user_priority=limit))
    step = world.do(c.Submit(caller=by, submitted=submission(priority=asked), digests=("", "")))
    return world.job(step.job).spec.priority, step.warnings


def test_a_site_that_says_nothing_allows_0() -> None:
    """The default of the configuration."""
    assert settings_from(parse_config("", where="x")).config.head.max_user_priority == 0
    text = "[head]\nmax_user_priority = 10\n"
    assert settings_from(parse_config(text, where="x")).config.head.max_user_priority == 10


@pytest.mark.parametrize(
    ("asked", "limit", "given"), [(1023, 0, 0), (1, 0, 0), (0, -5, -5), (11, 10, 10)]
)
def test_a_priority_above_the_limit_becomes_the_limit_with_a_warning(
    asked: int, limit: int, given: int
) -> None:
    """A script written for another site is still taken."""
    priority, warnings = submitted(asked, ALICE, limit)

    assert priority == given
    assert (
        f"priority {asked} is above the limit for users, {limit}: the job has priority {given}"
        in warnings
    )


@pytest.mark.parametrize(
    ("asked", "by"), [(0, ALICE), (-1, ALICE), (-1024, ALICE), (1023, ADMIN), (-1, ADMIN)]
)
def test_what_the_site_allows_is_given_without_a_warning(asked: int, by: Caller) -> None:
    """Users may lower the priority of their jobs, operators may do anything."""
    priority, warnings = submitted(asked, by, 0)

    assert priority == asked
    assert not any("priority" in warning for warning in warnings)


def test_a_user_can_lower_a_priority_but_not_raise_it_above_the_limit() -> None:
    """Also where an operator has raised it: the user may keep it or lower it."""
    world = World(config=settings(max_user_priority=0))
    job = world.submit(priority=-10)
    world.alter(job, priority=0)
    with pytest.raises(NotPermittedError, match="priority 1 is above the limit for users, 0"):
        world.alter(job, priority=1)
    assert world.job(job).spec.priority == 0

    world.alter(job, by=ADMIN, priority=500)
    world.alter(job, priority=500, name="kept")
    world.alter(job, priority=400)
    with pytest.raises(NotPermittedError):
        world.alter(job, priority=401)
    assert (world.job(job).spec.priority, world.job(job).spec.name) == (400, "kept")


def test_the_range_of_qsub_holds_for_operators_too() -> None:
    """Beyond it nothing is taken."""
    world = World(config=settings(max_user_priority=0))
    job = world.submit()

    with pytest.raises(InvalidRequestError, match="not between -1024 and 1023"):
        world.alter(job, by=ADMIN, priority=1024)
