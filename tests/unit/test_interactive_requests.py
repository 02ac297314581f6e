"""What an interactive job can be, and who may enter a job: rules without a cluster."""

import msgspec
import pytest
from msgspec import structs

from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.job import Interactive, JobSpec, Owner
from gsched.model.resources import Request
from gsched.model.states import JobState
from gsched.protocol.api import SubmitJob
from gschedd.core.requests.interactive import may_enter, with_terminal
from gschedd.core.settings import Caller, QueueSettings, Settings
from gschedd.core.state import Job

SETTINGS = Settings(
    server="test",
    queues={"batch": QueueSettings(), "short": QueueSettings(detach_timeout_s=60.0)},
    detach_timeout_s=600.0,
)


def asked(**more: object) -> SubmitJob:
    stated = {"key": "k", "name": "i", "workdir": "/", "launch": "command", "interactive": {}}
    return msgspec.convert(stated | more, SubmitJob)


@pytest.mark.parametrize(
    ("more", "timeout_s"),
    [
        ({}, 600.0),
        ({"queue": "short"}, 60.0),
        ({"interactive": {"detach_timeout_s": 0.0}}, 0.0),
        ({"queue": "short", "interactive": {"detach_timeout_s": 5.0}}, 5.0),
    ],
)
def test_the_detach_timeout_is_the_jobs_its_queues_or_the_heads(
    more: dict[str, object], timeout_s: float
) -> None:
    made = with_terminal(asked(**more), SETTINGS)

    assert made.interactive == Interactive(detach_timeout_s=timeout_s)
    assert not made.rerunnable


def test_a_batch_job_stays_as_it_is() -> None:
    job = asked(interactive=None)

    assert with_terminal(job, SETTINGS) is job


@pytest.mark.parametrize(
    "more",
    [
        {"array": "0-9"},
        {"launch": "torchrun"},
        {"places_max": 4},
        {"movable": True},
        {"checkpoint_signal": 10},
        {"deadline_after_s": 60.0},
        {"urgency": "urgent"},
        {"every_node": True},
        {"requeue_on": "node-failure"},
        {"lease_s": 60.0},
        {"interactive": {"detach_timeout_s": -1.0}},
        {"interactive": {"detach_timeout_s": 1e9}},
    ],
)
def test_what_an_interactive_job_cannot_be_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        with_terminal(asked(**more), SETTINGS)


def caller(user: str, uid: int, *, operator: bool = False) -> Caller:
    return Caller(user=user, uid=uid, gid=uid, operator=operator)


@pytest.mark.parametrize(
    ("who", "owner_uid", "allowed_by_default", "allowed_by_the_site"),
    [
        (caller("alice", 1000), 1000, True, True),
        (caller("mallory", 1000), 1000, False, False),  # who has the uid of a deleted alice
        (caller("bob", 1001), 1000, False, False),
        (caller("olga", 1002, operator=True), 1000, False, True),
        (caller("root", 0, operator=True), 1000, True, True),
        (caller("olga", 1002, operator=True), 0, False, False),
        (caller("alice", 1000), 0, False, False),
    ],
)
def test_who_may_enter_a_job(
    who: Caller, owner_uid: int, *, allowed_by_default: bool, allowed_by_the_site: bool
) -> None:
    owner = Owner(user="alice" if owner_uid else "root", uid=owner_uid, gid=owner_uid)
    spec = JobSpec(owner=owner, name="i", queue="batch", request=Request(), workdir="/")
    job = Job(id=7, spec=spec, state=JobState.RUNNING, submitted_s=0.0, eligible_s=0.0)
    for settings, allowed in (
        (SETTINGS, allowed_by_default),
        (structs.replace(SETTINGS, operators_enter_jobs=True), allowed_by_the_site),
    ):
        if allowed:
            may_enter(who, job, settings)
        else:
            with pytest.raises(NotPermittedError):
                may_enter(who, job, settings)
