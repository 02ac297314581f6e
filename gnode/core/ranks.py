"""How many ranks and threads a job's request means on each of its nodes. Pure."""

from collections.abc import Sequence

from gsched.model.resources import Chunk, Share
from gsched.protocol.node import Launch


def ranks_on_hosts(launch: Launch) -> tuple[int, ...]:
    """Return the lines that each host has in the node file.

    That is a line for each CPU, as in Torque, or for each of the ``mpiprocs`` of the chunks that
    lie there.
    """
    chunks, shares = launch.spec.request.chunks, launch.origin.allocation
    if not any(chunk.ranks for chunk in chunks):
        return tuple(share.cpus for share in shares)
    return tuple(_ranks(share, chunks) for share in shares)


def threads_of(launch: Launch) -> int:
    """Return the threads of each rank that the request states; 0: it states none."""
    chunks = launch.spec.request.chunks
    if not chunks or not (chunks[0].ranks or chunks[0].threads):
        return 0
    return chunks[0].threads or chunks[0].cpus


def _ranks(share: Share, chunks: Sequence[Chunk]) -> int:
    """Return the ranks on one node: of the chunk that it is, else in proportion to its CPUs."""
    cpus = share.cpus
    alike = [chunk for chunk in chunks if share.slots == 1 and chunk.cpus == cpus]
    if alike:
        return alike[0].ranks or alike[0].cpus
    places = sum(chunk.count for chunk in chunks)
    ranks = sum(chunk.count * (chunk.ranks or chunk.cpus) for chunk in chunks)
    total = sum(chunk.count * chunk.cpus for chunk in chunks)
    return max(1, round(cpus * ranks / total)) if total else max(1, ranks * share.slots // places)
