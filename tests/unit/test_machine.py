"""When two sets of marks can be of one machine."""

import pytest

from gnode.hw.machine import read_machine
from gsched.model.machine import Machine, is_same_machine


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Machine(product="p"), Machine(product="p"), True),
        (Machine(product="p"), Machine(product="q"), False),
        (Machine(product="p", macs=("a",)), Machine(product="q", macs=("a",)), False),
        # firmware that gives all boards one UUID
        (Machine(product="p", macs=("a",)), Machine(product="p", macs=("b",)), False),
        # a card was added
        (Machine(product="p", macs=("a",)), Machine(product="p", macs=("a", "b")), True),
        (Machine(macs=("a", "b")), Machine(macs=("b", "c")), True),
        # another system on the same machine; a copied one on another
        (Machine(product="p", system="s"), Machine(product="p", system="t"), True),
        (Machine(product="p", system="s"), Machine(product="q", system="s"), False),
        (Machine(system="s"), Machine(system="s"), True),
        (Machine(system="s"), Machine(system="t"), False),
        # gnode of a user cannot read what that of root has read
        (Machine(product="p", system="s"), Machine(system="s"), True),
        (Machine(product="p", system="s"), Machine(system="t"), False),
        (Machine(product="p"), Machine(macs=("a",)), True),
        (Machine(), Machine(product="p", macs=("a",), system="s"), True),
    ],
)
def test_what_is_known_of_both_decides(one: Machine, other: Machine, *, same: bool) -> None:
    assert is_same_machine(one, other) is same
    assert is_same_machine(other, one) is same


def test_this_machine_is_itself_and_tells_only_digests() -> None:
    machine = read_machine()

    assert read_machine() == machine
    marks = [machine.product, machine.system, *machine.macs]
    assert all(set(mark) <= set("0123456789abcdef") and len(mark) in {0, 32} for mark in marks)


def test_a_pretended_machine_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCHED_TEST_MACHINE", "one")
    one = read_machine()
    monkeypatch.setenv("GSCHED_TEST_MACHINE", "two")

    assert not is_same_machine(one, read_machine())
