"""Declared GPUs of unequal types: control groups that get unequal parts of a core."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scripts.reproduce.balance_groups import NodeGroups, parents, remove_leftovers

#: Of each period a group gets its part at once, the least that the kernel allows. Passes should
#: take several periods: shorter ones are timed without the waits between periods.
QUOTA_US: Final = 1_000
MEMORY_BYTES: Final = 4 << 30


@contextmanager
def declared_gpus(cores: Mapping[str, float], per_node: int, file: Path) -> Iterator[None]:
    """Make the GPUs of nodes for as long as a block lasts; a training enters that which it owns.

    Args:
        cores: CPU seconds that each GPU of a node gets in a second, by node.
        per_node: GPUs of each node.
        file: for ``adaptive_train.py --gpus``.

    Raises:
        GschedError: control groups cannot be made here; the message says why.
    """
    found = parents()
    remove_leftovers(found)
    made: dict[str, list[NodeGroups]] = {node: [] for node in cores}
    try:
        for node, part in cores.items():
            for index in range(per_node):
                made[node].append(
                    NodeGroups(
                        f"{node}-gpu{index}",
                        cores=part,
                        memory_bytes=MEMORY_BYTES,
                        found=found,
                        period_us=round(QUOTA_US / part),
                    )
                )
        entrances = {node: [gpu.entrances() for gpu in gpus] for node, gpus in made.items()}
        file.write_text(json.dumps(entrances))
        yield
    finally:
        for gpus in made.values():
            for gpu in gpus:
                gpu.remove()
