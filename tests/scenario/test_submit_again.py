"""A job is submitted again with changes: all else is kept, and what cannot be kept is told."""

import pytest
from msgspec import structs

from gsched.config.notify import NotifyConfig
from gsched.config.tables import QueueConfig
from gsched.errors import BadStateError, GschedError, InvalidRequestError, NotPermittedError
from gsched.model.states import HoldKind
from gsched.protocol.rerun import JobChanges
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from gschedd.core.requests import commands as c
from gschedd.core.requests.resubmit import changed_submission, prepare_again, stated_spec
from gschedd.core.requests.submit import Submission
from gschedd.core.state.settings import Caller
from gschedd.core.views.kept import kept_words
from tests.support.site import changed
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, Program, World, node, settings


def again(world: World, job: int, *, by: Caller = ALICE, **changes: object) -> c.Resubmit:
    """Return the command that submits a job again."""
    original = world.job(job)
    array = original.spec.array
    anew = changed_submission(stated_spec(original.spec), JobChanges(**changes), "")  # type: ignore[arg-type]  # of a test
    return c.Resubmit(
        caller=by,
        original=original,
        elements=array.spans if array is not None else (),
        anew=anew,
        past={each: job.outcome is not None and job.outcome.succeeded
              for each, job in world.done.items()},
    )  # fmt: skip


def would_be(world: World, command: c.Resubmit) -> Submission:
    return prepare_again(command, world.head.state, world.head.settings, world.now_s)


def lacks(world: World, command: c.Resubmit, name: str, words: str) -> None:
    """Check that a new job lacks one thing, which it is submitted without only if that is said."""
    found = would_be(world, command)
    assert found.left_out.keys() == {name}
    assert words in found.left_out[name]
    refusal = world.refusal(command)
    assert isinstance(refusal, BadStateError)
    assert refusal.message == found.left_out[name]
    step = world.do(structs.replace(command, without=(name,)))
    assert found.left_out[name] in step.warnings


def test_a_job_in_any_state_is_submitted_again_as_it_was() -> None:
    world = World(node("n1", cpus=64))
    array = world.submit(array="0-9:3%2", name="many", account="physics", priority=5)
    held = world.submit("walltime=60", holds=("user",), start_after_s=BEGIN_S + 500)
    world.run_until(100)

    for job in (array, held):
        new = world.do(again(world, job)).job
        assert world.job(new).spec == world.job(job).spec
        assert world.job(new).spec.rerun_of == 0
    assert world.job(held + 2).holds == (HoldKind.USER,)


def test_what_is_stated_anew_is_checked_as_in_a_submission() -> None:
    world = World(node("n1", cpus=64), config=settings(max_user_priority=0))
    job = world.submit("nodes=1:ppn=2,walltime=60")
    for changes, words in (
        ({"name": "a b"}, "job name 'a b' cannot be used"),
        ({"queue": "none"}, "unknown queue 'none'"),
        ({"resources": "nodes=1:ppn=x"}, "ppn=x"),
        ({"resources": "nodes=1:ppn=65"}, "65"),
        ({"workdir": "here"}, "not absolute"),
        ({"arguments": ()}, "without anything to run"),
        ({"arguments": ("a\0b",)}, "NUL"),
    ):
        assert words in world.refusal(again(world, job, **changes)).message

    step = world.do(again(world, job, name="other", resources="nodes=1", arguments=("false", "x")))
    spec = world.job(step.job).spec
    assert (spec.name, spec.arguments, spec.walltime_s) == ("other", ("false", "x"), None)
    assert spec.request.chunks[0].cpus == 1


@pytest.mark.parametrize("by", [BOB, ADMIN])
def test_nobody_states_anew_what_a_job_of_somebody_else_runs(by: Caller) -> None:
    """Not an operator either: it would run as its owner."""
    world = World(node("n1", cpus=64))
    job = world.submit()
    assert isinstance(world.refusal(again(world, job, by=by)), NotPermittedError)


def test_a_walltime_is_the_stated_one_unless_it_is_changed() -> None:
    queue = QueueConfig(name="batch", walltime_extension="1:00:00", walltime_extensions_per_user=1)
    world = World(node("n1", cpus=64), config=settings(queues={"batch": queue}))
    job = world.submit("walltime=60", runs_s=1000.0)
    world.run_until(10)
    world.alter(job, resources=("walltime=+300",))
    assert world.job(job).spec.extended_s == 300

    assert world.job(world.do(again(world, job)).job).spec.walltime_s == 60
    other = world.do(again(world, job, resources="nodes=1,walltime=90"))
    assert world.job(other.job).spec.walltime_s == 90


def test_a_range_of_gpus_is_kept_beside_other_resources() -> None:
    world = World(node("n1", cpus=64, gpus=8))
    job = world.submit("nodes=1:gpus=1,walltime=60", places_max=4)
    step = world.do(again(world, job, resources="nodes=1:gpus=1,walltime=90"))
    assert world.job(step.job).spec.request.places_max == 4
    too_many = again(world, job, resources="nodes=8:gpus=1")
    assert isinstance(world.refusal(too_many), InvalidRequestError)


def test_a_deadline_that_has_passed_is_told() -> None:
    world = World(node("n1", cpus=64))
    job = world.submit("walltime=10", deadline_s=BEGIN_S + 50)
    world.run_until(100)
    lacks(world, again(world, job), "deadline", "has passed: the new job has no deadline")


def test_a_reservation_that_has_ended_is_told() -> None:
    world = World(node("n1", cpus=4))
    terms = ReservationTerms(
        from_s=BEGIN_S, to_s=BEGIN_S + 100, node_names=("n1",), users=("alice",)
    )
    change = ReservationChange(verb="create", name="r", terms=terms)
    world.do(c.ChangeReservation(caller=ADMIN, action=change))
    job = world.submit("walltime=10", reservation="r")
    assert would_be(world, again(world, job)).spec.reservation == "r"
    world.run_until(200)
    lacks(world, again(world, job), "reservation", "reservation r has ended or was deleted")


def test_dependencies_are_kept_as_far_as_they_can_come_about() -> None:
    world = World(node("n1", cpus=4))
    held = world.submit(holds=("user",))
    fails = world.submit(program=Program(exit_code=1, runs_s=20.0))
    job = world.submit(depends=(f"afterok:{held}", f"afterok:{fails}", "on:1"))
    spec = world.job(job).spec

    same = world.do(again(world, job))
    assert world.job(same.job).spec == spec
    assert HoldKind.DEPENDENCY in world.job(same.job).holds
    world.run_until(100)
    # the failure has cancelled both; of what they waited for the other two can still come about
    lacks(world, again(world, job), "depends", f"afterok:{fails} can never be satisfied")
    last = world.job(world.head.state.next_job - 1).spec
    assert [each.kind for each in last.depends] == ["afterok", "on"]


def test_a_url_that_is_not_allowed_any_more_is_told() -> None:
    allowed = NotifyConfig(allow_urls=("https://hooks.example",))
    world = World(node("n1", cpus=64), config=settings(notify=allowed))
    job = world.submit(notify_url="https://hooks.example/me")
    world.head.settings = changed(world.settings, notify=NotifyConfig())
    lacks(world, again(world, job), "notify_url", "it is ignored")


def test_an_interactive_job_is_not_submitted_again() -> None:
    world = World(node("n1", cpus=64))
    job = world.submit()
    original = world.job(job)
    terminal = structs.replace(original.spec, interactive={})
    command = structs.replace(again(world, job), original=structs.replace(original, spec=terminal))
    refusal: GschedError = world.refusal(command)
    assert "its terminal is gone" in refusal.message


def test_what_is_kept_is_listed_in_words() -> None:
    world = World(node("n1", cpus=64, gpus=4))
    job = world.submit(
        "nodes=1:gpus=1", places_max=4, umask=0o27, rerunnable=False, grace_s=90.0,
        deadline_s=BEGIN_S + 9000, stdout_path="/tmp/o", checkpoint_signal=10, mail_points="ae",
    )  # fmt: skip
    found = kept_words(world.job(job).spec)
    assert found["gpus"] == "1 to 4"
    assert found["umask"] == "027"
    assert found["rerunnable"] == "no"
    assert found["grace"] == "00:01:30"
    assert found["deadline"].endswith(" UTC")
    assert found["stdout_path"] == "/tmp/o"
    assert "USR1" in found["checkpoint_signal"]
    assert not {"owner", "client_key", "request", "name", "join"} & found.keys()
