"""Slots of hosts: a host that does not answer delays no other one."""

import asyncio

from gsched import host_slots
from gsched.host_slots import HostSlots


async def take(slots: HostSlots, host: str, begun: list[str], until: asyncio.Event) -> None:
    async with slots.slot(host):
        begun.append(host)
        await until.wait()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_host_has_a_bounded_part_of_the_slots() -> None:
    async def run() -> list[str]:
        slots, until, begun = HostSlots(4, 2), asyncio.Event(), list[str]()
        tasks = [
            asyncio.create_task(take(slots, host, begun, until)) for host in ("a",) * 5 + ("b",)
        ]
        await settled()
        before = list(begun)
        until.set()
        await asyncio.gather(*tasks)
        assert len(begun) == 6
        return before

    assert asyncio.run(run()) == ["a", "a", "b"]


def test_hosts_get_slots_in_turn() -> None:
    """Two hosts with much to do do not keep both slots from a third and a fourth one."""

    async def run() -> list[str]:
        slots, until, begun = HostSlots(2, 1), asyncio.Event(), list[str]()
        hosts = "a" * 9 + "b" * 9 + "cd"
        tasks = [asyncio.create_task(take(slots, host, begun, until)) for host in hosts]
        await settled()
        until.set()
        await asyncio.gather(*tasks)
        return begun

    begun = asyncio.run(run())

    assert {"c", "d"} <= set(begun[:6]), begun
    assert len(begun) == 20


def test_a_host_that_does_not_answer_takes_no_slot_of_others() -> None:
    """Three hosts hang, each with all the slots that it may have: a fourth one gets one at once."""

    async def run() -> tuple[list[str], bool]:
        slots, until, begun = HostSlots(4, 2), asyncio.Event(), list[str]()
        hung = [asyncio.create_task(take(slots, host, begun, until)) for host in "aabbcc"]
        await asyncio.sleep(2 * host_slots.SLOW_S)
        more = asyncio.create_task(take(slots, "d", begun, until))
        await settled()
        before = list(begun)
        slow = slots.is_slow("a")
        until.set()
        await asyncio.gather(*hung, more)
        return before, slow

    begun, slow = asyncio.run(run())

    assert begun[-1] == "d"
    assert slow


def test_a_slow_host_has_one_slot_while_all_are_taken() -> None:
    """Else nobody would notice that it answers again."""

    async def run() -> list[str]:
        slots, slow, busy, begun = HostSlots(2, 1), asyncio.Event(), asyncio.Event(), list[str]()
        hung, waits = (asyncio.create_task(take(slots, "a", begun, slow)) for _ in range(2))
        await asyncio.sleep(2 * host_slots.SLOW_S)
        waits.cancel()
        slow.set()
        await asyncio.wait({hung, waits})
        others = [asyncio.create_task(take(slots, host, begun, busy)) for host in "bc"]
        await settled()
        again = [asyncio.create_task(take(slots, "a", begun, busy)) for _ in range(2)]
        await settled()
        before = list(begun)
        busy.set()
        await asyncio.gather(*others, *again)
        return before

    assert asyncio.run(run()) == ["a", "b", "c", "a"]


def test_who_has_given_up_waiting_gets_no_slot() -> None:
    async def run() -> list[str]:
        slots, until, begun = HostSlots(1, 1), asyncio.Event(), list[str]()
        first, second, third = (
            asyncio.create_task(take(slots, host, begun, until)) for host in "abc"
        )
        await settled()
        second.cancel()
        await settled()
        until.set()
        await asyncio.gather(first, third)
        return begun

    assert asyncio.run(run()) == ["a", "c"]
