"""What a submission becomes, and every refusal with its way out."""

import pytest
from msgspec import structs

from gsched.config.tables import QueueConfig
from gsched.errors import (
    BadResourceError,
    GschedError,
    InvalidRequestError,
    NotPermittedError,
    RequestTooLargeError,
    TryAgainError,
    UnknownQueueError,
)
from gsched.model import limits
from gsched.model.job import DEFAULT_GRACE_S, JobSpec
from gsched.model.limits import MAX_ENVIRONMENT_BYTES, MAX_SCRIPT_BYTES
from gsched.model.states import HoldKind, Join, LaunchKind
from gschedd.core.head import MAX_INTERNED, Head
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.policies.queue import fifo
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, World, node, settings, submission

ROOT = Caller(user="root", uid=0, gid=0, operator=True)
NOBODY = Caller(user="nobody", uid=65534, gid=65534)
QUEUES = {
    "batch": QueueConfig(name="batch", default_walltime_s=60.0, max_walltime_s=3600.0),
    "closed": QueueConfig(name="closed", enabled=False),
}


def head_of(config: Settings) -> Head:
    return Head(state=State(), settings=config, policy=fifo.plan)


def submit(
    config: Settings | None = None, caller: Caller = ALICE, **changes: object
) -> tuple[Step, Head]:
    head = head_of(config or settings())
    command = c.Submit(caller=caller, submitted=submission(**changes), digests=("s", "e"))
    return head.command(command, BEGIN_S), head


def spec_after(**changes: object) -> JobSpec:
    step, head = submit(**changes)  # type: ignore[arg-type] # fields of a submission
    assert step.error is None, step.error
    return head.state.jobs[step.job].spec


def refused(
    config: Settings | None = None, caller: Caller = ALICE, **changes: object
) -> GschedError:
    step, head = submit(config, caller, **changes)
    assert step.error is not None, "it was taken"
    assert not head.state.jobs
    assert head.state.next_job == 1, "a refusal uses no number"
    return step.error


def test_a_submission_keeps_all_that_it_says() -> None:
    """Field by field; the owner is who the kernel says."""
    said = submission(
        name="train",
        priority=3,
        account="lab",
        start_after_s=BEGIN_S + 5,
        rerunnable=False,
        stdout_path="o",
        stderr_path="e",
        join="oe",
        umask=0o7077,
        shell="/bin/zsh",
        launch="torchrun",
        arguments=("train.py", "-x"),
        every_node=True,
        python="/usr/bin/python3",
        grace_s=0.0,
        mail_points="abe",
        mail_to="a@b",
        kind="test",
        key="k",
    )
    head = head_of(settings())
    step = head.command(c.Submit(caller=ALICE, submitted=said, digests=("s", "e")), BEGIN_S)
    spec = head.state.jobs[step.job].spec

    assert (spec.owner.user, spec.owner.uid, spec.owner.gid) == ("alice", 1001, 100)
    same = (
        *("name", "priority", "account", "start_after_s", "rerunnable", "stdout_path"),
        *("stderr_path", "shell", "arguments", "every_node", "python", "grace_s", "mail_points"),
        *("mail_to", "kind", "workdir"),
    )
    for name in same:
        assert getattr(spec, name) == getattr(said, name), name
    assert (spec.join, spec.launch, spec.umask) == (Join.INTO_OUT, LaunchKind.TORCHRUN, 0o077)
    assert (spec.script_digest, spec.environment_digest, spec.client_key) == ("s", "e", "k")


def test_what_is_not_said_has_its_default() -> None:
    """The first queue, its walltime, half a minute of grace."""
    spec = spec_after(config=settings(queues=QUEUES))

    assert (spec.queue, spec.walltime_s, spec.grace_s) == ("batch", 60.0, DEFAULT_GRACE_S)


def test_before_the_first_node_anything_is_taken_with_a_warning() -> None:
    """What will ever fit cannot be known yet."""
    step, _ = submit(resources=("nodes=99",))

    assert step.warnings == ("no node has registered yet: the job waits for one",)


def test_unknown_resources_can_be_warnings() -> None:
    """Where the site says so."""
    step, _ = submit(settings(unknown_resource="warn"), resources=("apples=1",))

    assert step.warnings[0] == "unknown resource 'apples': ignored"


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"name": ""}, InvalidRequestError, "job name ''"),
        ({"name": "a b"}, InvalidRequestError, "job name 'a b'"),
        ({"name": "x" * 237}, InvalidRequestError, "name has 237 characters; the limit is 236"),
        ({"name": "a\nb"}, InvalidRequestError, "cannot be shown"),
        ({"account": "a\x1b[31mb"}, InvalidRequestError, r"account 'a\x1b[31mb' has characters"),
        ({"workdir": "rel"}, InvalidRequestError, "'rel' is not absolute"),
        ({"launch": "fork"}, InvalidRequestError, "launch 'fork' is not known"),
        ({"launch": "script", "script": "  \n"}, InvalidRequestError, "the script is empty"),
        ({"launch": "torchrun", "arguments": ()}, InvalidRequestError, "without anything to run"),
        ({"script": "x" * (MAX_SCRIPT_BYTES + 1)}, InvalidRequestError, "more than"),
        ({"environment": {"A": "x" * MAX_ENVIRONMENT_BYTES}}, InvalidRequestError, "environment"),
        ({"environment": {"": "x"}}, InvalidRequestError, "environment variable ''"),
        ({"environment": {"A=B": "x"}}, InvalidRequestError, "'A=B'"),
        ({"environment": {"A": "x\0"}}, InvalidRequestError, "'A'"),
        ({"stdout_path": "a\0"}, InvalidRequestError, "NUL byte"),
        ({"arguments": ("a\0",)}, InvalidRequestError, "NUL byte"),
        ({"priority": 1024}, InvalidRequestError, "not between -1024 and 1023"),
        ({"priority": -1025}, InvalidRequestError, "not between"),
        ({"grace_s": -1.0}, InvalidRequestError, "not between 0 s and 24:00:00"),
        ({"grace_s": 86401.0}, InvalidRequestError, "not between"),
        ({"join": "x"}, InvalidRequestError, "-j x is not known"),
        ({"holds": ("mine",)}, InvalidRequestError, "hold 'mine' is not known"),
        ({"holds": ("operator",)}, NotPermittedError, "for operators"),
        ({"queue": "none"}, UnknownQueueError, "unknown queue 'none'"),
        ({"queue": "closed"}, UnknownQueueError, "takes no jobs now"),
        ({"resources": ("walltime=1:00:01",)}, InvalidRequestError, "over the limit of queue"),
        (
            {"resources": ("walltime=-1:00",)},
            BadResourceError,
            "walltime must be greater than zero, got -00:01:00",
        ),
        ({"resources": ("walltime=+1:00",)}, BadResourceError, "without a sign"),
        ({"resources": ("apples=1",)}, BadResourceError, "unknown resource"),
    ],
)
def test_what_cannot_be_taken_is_refused(
    changes: dict[str, object], kind: type[GschedError], text: str
) -> None:
    """With what was said, and no job number is used up."""
    error = refused(settings(queues=QUEUES), ALICE, **changes)

    assert isinstance(error, kind)
    assert text in f"{error.message} {error.hint}"


def test_the_extremes_of_the_ranges_are_taken() -> None:
    """Limits are inclusive."""
    for changes in (
        {"priority": 1023},
        {"priority": -1024},
        {"grace_s": 0.0},
        {"grace_s": 86400.0},
        {"name": "x" * 236},
        {"resources": ("walltime=1:00:00",)},
        {"script": "x" * MAX_SCRIPT_BYTES},
    ):
        assert submit(settings(queues=QUEUES), **changes)[0].job == 1, changes


def test_a_job_without_walltime_gets_the_most_that_its_queue_allows() -> None:
    queues = {"batch": QueueConfig(name="batch", max_walltime_s=60.0)}

    step, head = submit(settings(queues=queues))

    assert head.state.jobs[step.job].spec.walltime_s == 60.0


def test_who_may_submit() -> None:
    """Root only where allowed, nobody never, others not on a cluster of one user."""
    assert isinstance(refused(caller=ROOT), NotPermittedError)
    assert submit(settings(allow_root_jobs=True), ROOT)[0].job == 1
    assert isinstance(refused(settings(allow_root_jobs=True), NOBODY), NotPermittedError)
    assert isinstance(refused(settings(only_uid=1001), BOB), NotPermittedError)
    assert submit(settings(only_uid=1001), ALICE)[0].job == 1


def test_a_system_account_is_refused_when_it_submits() -> None:
    """Not first at the launch; a cluster of one user may be a system account's own."""
    www = Caller(user="www-data", uid=33, gid=33)
    config = settings(min_uid=1000)

    error = refused(config, www)

    assert isinstance(error, NotPermittedError)
    assert "www-data (uid 33) is a system account, below 1000" in error.message
    assert submit(config, ALICE)[0].job == 1
    assert submit(settings(min_uid=1000, only_uid=33), www)[0].job == 1
    assert submit(settings(min_uid=1000, allow_root_jobs=True), ROOT)[0].job == 1


def test_a_user_without_a_name_cannot_submit_now() -> None:
    """A name service may be away: a job that stored a number as its user could never run."""
    error = refused(caller=Caller(user="1001", uid=1001, gid=1001))

    assert isinstance(error, TryAgainError)
    assert "knows no user with uid 1001" in error.message


def test_an_operator_may_hold_as_one() -> None:
    """Kinds are kept once and in order."""
    step, head = submit(caller=ADMIN, holds=("user", "operator", "user"))

    assert head.state.jobs[step.job].holds == (HoldKind.OPERATOR, HoldKind.USER)


@pytest.mark.parametrize("kind", ["operator", "system"])
def test_a_user_may_hold_only_as_a_user(kind: str) -> None:
    error = refused(holds=("user", kind))

    assert isinstance(error, NotPermittedError)
    assert f"{kind} holds are for operators" in error.message


def test_a_user_has_a_limit_of_unfinished_jobs() -> None:
    """Another user has an own one; an ended job makes room (I14)."""
    world = World(config=settings(max_queued_per_user=2))
    first = world.submit()
    world.submit()

    with pytest.raises(TryAgainError, match="alice has 2 unfinished jobs"):
        world.submit()
    assert world.submit(by=BOB)
    world.delete(first)
    assert world.submit()


def test_the_arguments_of_a_users_jobs_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They stay in the head's memory; another user has an own limit, and an end makes room."""
    monkeypatch.setattr(limits, "MAX_USER_ARGUMENT_BYTES", 3_000)
    world = World()
    first = world.submit(arguments=("x" * 1_000,))
    world.submit(arguments=("y" * 1_000, "z"))

    with pytest.raises(TryAgainError, match="arguments of alice's unfinished jobs"):
        world.submit(arguments=("x" * 1_000,))
    assert world.submit(by=BOB, arguments=("x" * 1_000,))
    world.delete(first)
    assert world.submit(arguments=("x" * 1_000,))


def test_what_no_node_can_ever_hold_is_refused_although_all_are_busy_or_down() -> None:
    """Busy and drained nodes count as idle: they may come back."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    world.submit("nodes=2:ppn=4")
    world.disconnect("n1")

    assert world.submit("nodes=2:ppn=4")
    for resources in ("nodes=3", "nodes=1:ppn=5", "nodes=1:gpus=1", "select=5:ncpus=2"):
        with pytest.raises(RequestTooLargeError):
            world.submit(resources)


def test_equal_requests_share_memory_and_the_memory_is_bounded() -> None:
    """Ten thousand different ones begin anew."""
    world = World()
    first, second = world.submit("nodes=2"), world.submit("nodes=2")
    jobs = world.head.state.jobs
    assert jobs[first].spec.request is jobs[second].spec.request

    template = jobs[first].spec.request
    for number in range(MAX_INTERNED):
        chunk = structs.replace(template.chunks[0], cpus=number + 2)
        world.head._intern(structs.replace(template, chunks=(chunk,)))

    assert len(world.head._requests) <= MAX_INTERNED
