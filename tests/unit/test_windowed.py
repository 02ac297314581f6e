"""What is kept of windows of maintenance and of identities is what the nodes themselves say."""

import random
from pathlib import Path

from gsched.model.window import NodeWindow
from gsched.protocol import actions as a
from gschedd.core.nodes.windows import MAX_DUE, due_windows
from gschedd.core.requests import commands as c
from gschedd.core.state.windowed import WindowedNodes, order_of
from tests.support.books import Books
from tests.support.world import ADMIN

NAMES = [f"n{number}" for number in range(8)]


def drawn(rng: random.Random) -> tuple[NodeWindow, ...]:
    """Return windows of few different times, so that many nodes have the same."""
    return tuple(
        NodeWindow(
            number=number,
            from_s=10.0 * number,
            to_s=10.0 * number + rng.choice([3, 5]),
            reason=rng.choice(["", "disk"]),
            by="root",
            begun=rng.random() < 0.3,
        )
        for number in sorted(rng.sample(range(1, 6), rng.randrange(4)))
    )


def test_it_knows_what_a_look_at_all_windows_finds() -> None:
    rng = random.Random(7)
    kept, plain = WindowedNodes(), dict[str, tuple[NodeWindow, ...]]()
    for _ in range(2000):
        name, windows = rng.choice(NAMES), drawn(rng)
        plain[name] = windows
        kept.put(name, windows, highest=max((each.number for each in windows), default=0))

        every = [(name, each) for name, of_node in plain.items() for each in of_node]
        times_s = {
            name: [each.to_s if each.begun else each.from_s for each in of_node]
            for name, of_node in plain.items()
        }
        assert set(kept) == {name for name in plain if plain[name]}
        assert kept.next_s == min((at_s for of in times_s.values() for at_s in of), default=None)
        now_s = rng.uniform(0, 60)
        due = sorted(name for name, of in times_s.items() if any(at_s <= now_s for at_s in of))
        assert kept.due(now_s, 1000) == due
        order = (10.0, 13.0, "disk", "root")
        numbers = {each.number for _, each in every if order_of(each) == order}
        assert kept.number_of(order) == min(numbers, default=None)


def test_many_windows_begin_in_several_steps_the_first_ones_first(tmp_path: Path) -> None:
    books = Books(tmp_path)
    names = [f"n{number:03}" for number in range(2 * MAX_DUE + 5)]
    for name in names:
        books.register(name)
    now_s, begin_s = books.now_s, books.now_s + 100
    for name in names:
        order = a.MaintainNode(nodes=(name,), from_s=begin_s, to_s=begin_s + 50)
        books.take(books.head.command(c.ActOnNode(caller=ADMIN, node=name, action=order), now_s))

    counts = []
    while (alarm_s := books.head.next_alarm_s()) is not None and alarm_s <= begin_s:
        counts.append(len(books.take(books.head.tick(begin_s)).facts))

    assert counts == [MAX_DUE, MAX_DUE, 5]
    assert all(node.windows[0].begun for node in books.head.state.nodes.values())
    assert {node.windows[0].number for node in books.head.state.nodes.values()} == {1}
    assert len(due_windows(books.head.state, begin_s + 50)) == MAX_DUE


def test_after_a_restart_it_knows_the_same_and_of_a_removed_node_nothing(tmp_path: Path) -> None:
    books = Books(tmp_path)
    for name in NAMES[:3]:
        books.register(name, identity=name * 16)
        order = a.MaintainNode(nodes=(name,), from_s=500.0, to_s=600.0)
        books.take(books.head.command(c.ActOnNode(caller=ADMIN, node=name, action=order), 0.0))
    known = dict(books.head.state.names_of)

    books.reopen()

    state = books.head.state
    assert state.names_of == known == {name * 16: name for name in NAMES[:3]}
    assert (set(state.windowed), state.windowed.next_s) == (set(NAMES[:3]), 500.0)
    books.take(books.head.disconnected("n0", "gone", 1.0))
    removal = c.ActOnNode(caller=ADMIN, node="n0", action=a.RemoveNode(nodes=("n0",)))
    books.take(books.head.command(removal, 1.0))
    assert set(state.windowed) == {"n1", "n2"}
    assert set(state.names_of.values()) == {"n1", "n2"}
    books.register("other", identity="n0" * 16)
    assert state.names_of["n0" * 16] == "other"
