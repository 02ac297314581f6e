"""Rankings that follow from each node's own space: kept in order, a node moved when it changes.

Nodes lie in blocks, and each block knows the most that any of its nodes has free. So a search for
room passes over whole blocks of full nodes, and a change moves one node.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final

from gsched.model.resources import Chunk
from gschedd.plan.ranked import OrderedRank
from gschedd.plan.room import RankKey, shortage
from gschedd.plan.space import FreeNode, NodeIndex, index_of

#: Tells where a node stands, best first, whatever is requested; the last item is its name.
SpaceKey = Callable[[FreeNode], RankKey]


#: Nodes in a block when it is made; one of twice as many is cut in two. Of 16 to 128 it made no
#: difference beyond noise for 1,000 nodes.
BLOCK_NODES: Final = 32


class _Block:
    """Some neighbours in the order.

    Attributes:
        keys: of its nodes, sorted; the last item of each is the node's name.
        most: no node of it has more free CPUs, memory and GPUs; None: not known.
    """

    __slots__ = ("keys", "most")

    def __init__(self, keys: list[RankKey]) -> None:
        self.keys = keys
        self.most: tuple[int, int, int] | None = None


class RankedNodes:
    """Nodes sorted by a key whose last item is the node's name."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._firsts: list[RankKey] = []  # the lowest key of each block
        self._keys: dict[str, RankKey] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def at(self, place: int) -> RankKey:
        """Return the key at a place in the order, 0 to the number of nodes less one."""
        for block in self._blocks:
            if place < len(block.keys):
                return block.keys[place]
            place -= len(block.keys)
        raise IndexError(f"there are {len(self)} nodes, {place} too few")

    def fill(self, keys: Mapping[str, RankKey]) -> None:
        """Replace all nodes."""
        self._keys = dict(keys)
        ordered = sorted(keys.values())
        self._blocks = [
            _Block(ordered[begin : begin + BLOCK_NODES])
            for begin in range(0, len(ordered), BLOCK_NODES)
        ]
        self._firsts = [block.keys[0] for block in self._blocks]

    def put(self, name: str, key: RankKey) -> None:
        """Give a node its place, and note that its room has changed."""
        before = self._keys.get(name)
        if before == key:
            self._blocks[self._find(key)].most = None
            return
        if before is not None:
            self._remove(before)
        self._keys[name] = key
        self._insert(key)

    def _find(self, key: RankKey) -> int:
        """Return the index of the block in which a key is, or belongs."""
        return max(bisect_right(self._firsts, key) - 1, 0)

    def _remove(self, key: RankKey) -> None:
        index = self._find(key)
        block = self._blocks[index]
        del block.keys[bisect_left(block.keys, key)]
        block.most = None
        if block.keys:
            self._firsts[index] = block.keys[0]
        else:
            del self._blocks[index], self._firsts[index]

    def _insert(self, key: RankKey) -> None:
        if not self._blocks:
            self._blocks, self._firsts = [_Block([key])], [key]
            return
        index = self._find(key)
        block = self._blocks[index]
        block.keys.insert(bisect_left(block.keys, key), key)
        block.most = None
        self._firsts[index] = block.keys[0]
        if len(block.keys) >= 2 * BLOCK_NODES:
            upper = _Block(block.keys[BLOCK_NODES:])
            del block.keys[BLOCK_NODES:]
            self._blocks.insert(index + 1, upper)
            self._firsts.insert(index + 1, upper.keys[0])

    def walk(
        self,
        chunk: Chunk,
        nodes: Mapping[str, FreeNode],
        *,
        exclusive: bool,
        passed: Container[str],
        begin: RankKey = (),
    ) -> Iterator[FreeNode]:
        """Yield the nodes that have room for a chunk in order.

        Args:
            nodes: as they are now; all are here, with the room that they had when last put.
            passed: names of nodes to leave out.
            begin: the first key; those before it come last, in order, as in a ring.
        """
        blocks = self._blocks
        start = self._find(begin) if begin and blocks else 0
        for number in range(start, len(blocks)):
            if self._may_have(blocks[number], chunk, nodes):
                keys = blocks[number].keys
                first = bisect_left(keys, begin) if number == start else 0
                yield from _with_room(
                    keys[first:], chunk, nodes, exclusive=exclusive, passed=passed
                )
        for number in range(start + 1 if begin and blocks else 0):
            if self._may_have(blocks[number], chunk, nodes):
                keys = blocks[number].keys
                end = bisect_left(keys, begin) if number == start else len(keys)
                yield from _with_room(keys[:end], chunk, nodes, exclusive=exclusive, passed=passed)

    @staticmethod
    def _may_have(block: _Block, chunk: Chunk, nodes: Mapping[str, FreeNode]) -> bool:
        """Return whether some node of a block may have room."""
        most = block.most
        if most is None:
            most = block.most = _most(block.keys, nodes)
        return most[0] >= chunk.cpus and most[1] >= chunk.memory_bytes and most[2] >= chunk.gpus


def _with_room(
    keys: Sequence[RankKey],
    chunk: Chunk,
    nodes: Mapping[str, FreeNode],
    *,
    exclusive: bool,
    passed: Container[str],
) -> Iterator[FreeNode]:
    """Yield those of some nodes that have room, and are not to be left out."""
    for key in keys:
        name = str(key[-1])
        if name not in passed and not shortage(chunk, nodes[name], exclusive=exclusive):
            yield nodes[name]


def _most(keys: Sequence[RankKey], nodes: Mapping[str, FreeNode]) -> tuple[int, int, int]:
    """Return the most CPUs, memory and GPUs that any of some nodes has free; -1 of none."""
    cpus = memory_bytes = gpus = -1
    for key in keys:
        space = nodes[str(key[-1])]
        if space.open and not space.exclusive:
            cpus = max(cpus, space.cpus)
            memory_bytes = max(memory_bytes, space.memory_bytes)
            gpus = max(gpus, len(space.gpus))
    return cpus, memory_bytes, gpus


class SpaceOrder(NodeIndex):
    """All nodes in the order of a key."""

    def __init__(self, key: SpaceKey) -> None:
        super().__init__()
        self.ranked = RankedNodes()
        self._key = key

    def refresh(self, nodes: Mapping[str, FreeNode]) -> None:
        """Take in what has changed since."""
        if not len(self.ranked):
            self.ranked.fill({name: self._key(nodes[name]) for name in self.stale})
        else:
            for name in self.stale:
                self.ranked.put(name, self._key(nodes[name]))
        self.stale.clear()


class BySpace(OrderedRank):
    """Ranks nodes by a key of theirs.

    Args:
        nodes: of the snapshot.
        key: a function that is there as long as the nodes are: it names the order that is kept.
        turn: how many nodes come last that stand first, as in a ring; any number of rounds.
    """

    def __init__(self, nodes: Mapping[str, FreeNode], key: SpaceKey, *, turn: int = 0) -> None:
        self._nodes = nodes
        self._key = key
        self._order = index_of(nodes, key, lambda: SpaceOrder(key))
        self._order.refresh(nodes)
        ranked = self._order.ranked
        self._begin = ranked.at(turn % len(ranked)) if turn and len(ranked) else ()

    def __call__(self, chunk: Chunk, space: FreeNode) -> RankKey:  # noqa: ARG002 -- whatever is asked
        """Return by what a node is ranked, whatever the chunk requests."""
        key = self._key(space)
        return (key < self._begin, *key)

    def unchanged(
        self, chunk: Chunk, *, exclusive: bool, passed: Container[str]
    ) -> Iterator[FreeNode]:
        """Yield the nodes that the plan has not changed and that have room, best first."""
        return self._order.ranked.walk(
            chunk, self._nodes, exclusive=exclusive, passed=passed, begin=self._begin
        )
