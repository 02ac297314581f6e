"""Rankings that follow from each node's own space: kept in order, a node moved when it changes."""

from collections.abc import Callable, Container, Iterator, Mapping

from gsched.model.resources import Chunk
from gschedd.plan.ranked import OrderedRank, RankedNodes
from gschedd.plan.room import RankKey
from gschedd.plan.space import FreeNode, NodeIndex, index_of

#: Tells where a node stands, best first, whatever is asked for; the last item is its name.
SpaceKey = Callable[[FreeNode], RankKey]


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
        """Return by what a node is ranked, whatever the chunk asks for."""
        key = self._key(space)
        return (key < self._begin, *key)

    def unchanged(
        self, chunk: Chunk, *, exclusive: bool, passed: Container[str]
    ) -> Iterator[FreeNode]:
        """Yield the nodes that the plan has not changed and that have room, best first."""
        return self._order.ranked.walk(
            chunk, self._nodes, exclusive=exclusive, passed=passed, begin=self._begin
        )
