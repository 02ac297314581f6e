"""What the doctor compares between hosts."""

from msgspec import structs

from gsched.cli.local.findings import Level
from gsched.cli.local.host_checks import check_hosts
from gsched.protocol.hosts import HostRow

HEAD = HostRow(
    name="head", role="head", version="1", clock_s=0.0, zone="UTC+0000",
    users={"alice": 1000, "bob": 1001}, groups={"staff": 500}, mounts={"/home": "nfs4 fs:/home"},
)  # fmt: skip
NODE = structs.replace(HEAD, name="n1", role="node")


def texts(**changes: object) -> list[str]:
    """Return what the doctor says of a node that differs from the head's machine."""
    found = list(check_hosts([HEAD, structs.replace(NODE, **changes)]))
    assert all(each.level is Level.WARN and each.todo for each in found)
    return [f"{each.subject}: {each.text}" for each in found]


def test_hosts_that_agree_are_one_line() -> None:
    found = list(check_hosts([HEAD, NODE, structs.replace(NODE, name="n2")]))

    assert [(each.level, each.text) for each in found] == [
        (Level.OK, "versions, clocks, users, groups and paths of 2 other hosts agree")
    ]
    assert list(check_hosts([HEAD])) == []


def test_each_difference_is_named() -> None:
    assert texts(clock_s=3700.0) == ["clocks: the clock of n1 is 01:01:40 ahead of the head's"]
    assert texts(zone="CET+0100") == [
        "time zones: the time zone is CET+0100 on n1, UTC+0000 on the head's machine"
    ]
    assert texts(users={"alice": 1001, "bob": 1000}) == [
        (
            "users: n1: alice is 1001 there and 1000 on the head's machine; "
            "bob is 1000 there and 1001 on the head's machine"
        )
    ]
    assert texts(users={"alice": 1000, "carol": 1001}) == [
        "users: n1: 1001 is carol there and bob on the head's machine"
    ]
    assert texts(users={"alice": 1000, "bob": 1001, "carol": 1002}) == [
        "users: n1 has carol, and the head's machine has not"
    ]
    assert texts(groups={"other": 501}) == [
        "groups: n1 has other, and the head's machine has not",
        "groups: n1 lacks staff of the head's machine",
    ]
    assert texts(mounts={}) == ["paths: /home is not mounted on n1"]
    assert texts(mounts={"/home": "nfs4 other:/home"}) == [
        "paths: /home is not the same everywhere: nfs4 fs:/home on head; nfs4 other:/home on n1"
    ]
    assert texts(clock_s=None) == ["hosts: no report of clock and users from n1"]


def test_a_login_host_has_its_version_and_connection_looked_at() -> None:
    found = texts(role="login", name="l1", version="2", connected=False)

    assert found == [
        "hosts: not connected: login host l1",
        "versions: gsched 2 on l1, 1 on the head's machine",
    ]


def test_a_host_that_does_not_list_its_users_is_not_judged() -> None:
    assert texts(users={}, zone="CET+0100")[0].startswith("time zones")
    assert len(texts(users={}, zone="CET+0100")) == 1
