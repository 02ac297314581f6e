"""Equal submissions of several requests: each job is what it would be alone."""

from typing import Any

import pytest
from msgspec import structs

from gsched.config.limits import ResourceLimits
from gsched.config.tables import LimitsConfig
from gsched.errors import NotPermittedError, RequestTooLargeError, TryAgainError
from gsched.model.resources import Inventory, Load
from gsched.protocol import node as n
from gschedd.core.head import Head
from gschedd.core.requests import alike
from gschedd.core.requests import commands as c
from gschedd.core.requests.alike import name_of
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.policies.queue import fifo
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, settings, submission

KEPT: dict[str, dict[str, Any]] = {
    "plain": {},
    "with values": {
        "resources": ("nodes=1:ppn=2,walltime=60",),
        "environment": {"A": "1", "PBS_O_HOST": "login"},
        "arguments": ("x", "y"),
        "grace_s": 3.0,
    },
    "with a warning": {"mail_points": "e", "mail_to": "a@b.c"},
    "later": {"start_after_s": BEGIN_S + 60},
}
ANEW: dict[str, dict[str, Any]] = {
    "held": {"holds": ("user",)},
    "an array": {"array": "0-3"},
    "with a deadline": {"deadline_after_s": 7200.0, "resources": ("walltime=60",)},
    "with an urgency": {"urgency": "normal", "resources": ("walltime=60",)},
    "dependent": {"depends": ("after:1",)},
    "in a reservation": {"reservation": "r"},
}


def register(head: Head, cpus: int = 4) -> None:
    head.registered(
        "n1",
        n.Register(
            boot_id=f"b{cpus}",
            incarnation=f"i{cpus}",
            address="",
            gnode_version="",
            inventory=Inventory(cpus=cpus, memory_bytes=1 << 34),
            attempts=(),
            load=Load(),
        ),
        BEGIN_S,
    )


def with_limits() -> Settings:
    """Return settings with limits of users: what one may have says nothing of another."""
    config = settings()
    limits = LimitsConfig(each_user=ResourceLimits(max_queued=3))
    return structs.replace(config, config=structs.replace(config.config, limits=limits))


def new_head(config: Settings | None = None) -> Head:
    config = config or settings()
    head = Head(state=State(limits=config.limit_rules()), settings=config, policy=fifo.plan)
    register(head)
    return head


def command(key: str, caller: Caller = ALICE, **changes: object) -> c.Submit:
    submitted = submission(key=key, **changes)
    digests = (f"of {submitted.script}", f"of {sorted(submitted.environment.items())}")
    return c.Submit(caller=caller, submitted=submitted, digests=digests)


def alone(head: Head, asks: c.Submit, now_s: float) -> Step:
    head.state.caches.submissions.clear()
    return head.command(asks, now_s)


@pytest.mark.parametrize("kind", [*KEPT, *ANEW])
@pytest.mark.parametrize("config", [settings(), with_limits()], ids=["no limits", "limits"])
def test_each_job_is_as_if_it_came_alone(kind: str, config: Settings) -> None:
    together, apart = new_head(config), new_head(config)
    changes = (KEPT | ANEW)[kind]
    for number, caller in enumerate((ALICE, ALICE, BOB, ALICE, ADMIN, BOB)):
        asks, now_s = command(f"k{number}", caller, **changes), BEGIN_S + number
        found, expected = together.command(asks, now_s), alone(apart, asks, now_s)
        assert (found.facts, found.warnings, found.job) == (
            expected.facts,
            expected.warnings,
            expected.job,
        )
        assert str(found.error) == str(expected.error)
    assert bool(together.state.caches.submissions) is (kind in KEPT)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"script": "#!/bin/sh\ntrue\n"},
        {"environment": {"A": "2"}},
        {"priority": -1},
        {"workdir": "/elsewhere"},
        {"umask": 0o077},
    ],
)
def test_a_job_that_differs_in_more_than_its_key_is_read_by_itself(
    changes: dict[str, Any],
) -> None:
    head = new_head()
    first = head.command(command("a"), BEGIN_S)
    other = head.command(command("b", **changes), BEGIN_S)
    spec = head.state.jobs[other.job].spec
    assert spec != structs.replace(head.state.jobs[first.job].spec, client_key="b")
    assert alone(head, command("c", **changes), BEGIN_S).error is None
    assert structs.replace(spec, client_key="c") == head.state.jobs[3].spec


def test_other_settings_and_other_nodes_count_at_once() -> None:
    head = new_head()
    large: dict[str, Any] = {"resources": ("nodes=1:ppn=4",)}
    assert head.command(command("a", **large), BEGIN_S).error is None
    assert head.state.jobs[1].spec.walltime_s is None
    (queue,) = head.settings.queues.values()
    queue = structs.replace(queue, default_walltime_s=90.0)
    head.settings = structs.replace(head.settings, queues={queue.name: queue})
    assert head.command(command("b", **large), BEGIN_S).error is None
    assert head.state.jobs[2].spec.walltime_s == 90.0

    register(head, cpus=2)
    assert isinstance(head.command(command("c", **large), BEGIN_S).error, RequestTooLargeError)


def test_who_may_not_submit_may_not_submit_the_same_either() -> None:
    head = new_head(settings(max_queued_per_user=2))
    steps = [head.command(command(f"k{number}"), BEGIN_S) for number in range(3)]
    assert [type(each.error) for each in steps] == [type(None), type(None), TryAgainError]
    root = Caller(user="root", uid=0, gid=0)
    assert isinstance(head.command(command("r", root), BEGIN_S).error, NotPermittedError)


def test_a_raised_priority_is_read_for_each_user() -> None:
    head = new_head(settings(max_user_priority=0))
    jobs = [
        head.command(command(caller.user, caller, priority=500), BEGIN_S).job
        for caller in (ADMIN, ALICE)
    ]
    assert [head.state.jobs[job].spec.priority for job in jobs] == [500, 0]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "MAX_KEPT", 3)
    monkeypatch.setattr(alike, "MAX_TEXT", 1_000)
    head = new_head()
    for long in (
        {"arguments": ("x" * 2_000,)},
        {"arguments": ("",) * 200},
        {"environment": {"X" * 2_000: ""}},
        {"environment": {"X": "x" * 2_000}},
        {"script": "#!/bin/sh\n" + "true\n" * 400},
    ):
        assert head.command(command(str(long)[:100], **long), BEGIN_S).error is None
    assert not head.state.caches.submissions
    for number in range(4):
        head.command(command(f"k{number}", name=f"j{number}"), BEGIN_S)
    assert len(head.state.caches.submissions) == 1


def test_users_with_limits_of_their_own_share_nothing() -> None:
    for config, names in ((settings(), 1), (with_limits(), 2)):
        state = new_head(config).state
        assert len({name_of(command("a", each), state, config) for each in (ALICE, BOB)}) == names
