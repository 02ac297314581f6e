"""Actions on jobs and nodes: one type each, which is what stands on the wire."""

import msgspec
import pytest

from gsched.protocol import actions as a

#: What the commands of earlier versions sent, byte for byte.
EARLIER = (
    (b'{"action":"delete","ids":["17"]}', a.DeleteJob(ids=("17",))),
    (
        b'{"action":"delete","ids":["17","all"],"message":"wrong","grace_s":5.0,"dry_run":true}',
        a.DeleteJob(ids=("17", "all"), message="wrong", grace_s=5.0, dry_run=True),
    ),
    (
        b'{"action":"hold","ids":["17"],"holds":["operator"]}',
        a.HoldJob(ids=("17",), holds=("operator",)),
    ),
    (b'{"action":"hold","ids":["17"]}', a.HoldJob(ids=("17",))),
    (b'{"action":"release","ids":["17"]}', a.ReleaseJob(ids=("17",))),
    (b'{"action":"signal","ids":["17"],"signal":15}', a.SignalJob(ids=("17",), signal=15)),
    (
        b'{"action":"rerun","ids":["1"],"message":"m","grace_s":3.0,"force":true}',
        a.RerunJob(ids=("1",), message="m", grace_s=3.0, force=True),
    ),
    (
        b'{"action":"migrate","ids":["1"],"message":"m","nodes":["n2"],"gpus":4}',
        a.MigrateJob(ids=("1",), message="m", nodes=("n2",), gpus=4),
    ),
    (
        b'{"action":"alter","ids":["1"],"alteration":{"priority":5}}',
        a.AlterJob(ids=("1",), alteration=a.Alteration(priority=5)),
    ),
    (
        b'{"action":"drain","nodes":["n1"],"reason":"fans","migrate":true}',
        a.DrainNode(nodes=("n1",), reason="fans", migrate=True),
    ),
    (
        b'{"action":"resume","nodes":["n1"],"reason":"done"}',
        a.ResumeNode(nodes=("n1",), reason="done"),
    ),
    (b'{"action":"confirm-dead","nodes":["n1"]}', a.ConfirmDead(nodes=("n1",))),
    (b'{"action":"remove","nodes":["n1"]}', a.RemoveNode(nodes=("n1",))),
    (
        b'{"action":"replace","nodes":["n1"],"identity":"3f"}',
        a.ReplaceNode(nodes=("n1",), identity="3f"),
    ),
)


@pytest.mark.parametrize(("body", "action"), EARLIER)
def test_requests_of_earlier_versions_are_understood_and_sent(
    body: bytes, action: a.AnyJobAction | a.AnyNodeAction
) -> None:
    """Head and commands of different versions understand each other."""
    kind = a.JOB_ACTION if isinstance(action, a.JobAction) else a.NODE_ACTION

    assert msgspec.json.decode(body, type=kind) == action
    assert msgspec.json.decode(msgspec.json.encode(action)) == msgspec.json.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"ids":["17"]}',
        b'{"action":"explode","ids":["17"]}',
        b'{"action":"drain","nodes":["n1"]}',
        b'{"action":"hold","ids":["17"],"signal":9}',
        b'{"action":"alter","ids":["17"]}',
    ],
)
def test_an_action_that_is_none_is_refused(body: bytes) -> None:
    """Also one with a field of another action: it would do something else than was meant."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=a.JOB_ACTION)


def test_every_action_says_what_was_done() -> None:
    """In words, for each job or node."""
    for kind in a.JOB_ACTIONS:
        example = next(action for _, action in EARLIER if type(action) is kind)
        assert isinstance(example, a.JobAction)
        assert example.done_words()
    assert all(kind.done for kind in a.NODE_ACTIONS.values())
