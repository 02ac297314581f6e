"""First fit, round robin and fewest jobs: where each of them puts the same jobs."""

from baselines import fewest, roundrobin, torque
from gsched.model.resources import Chunk, Request
from gschedd.plan.snapshot import Group, JobClass, Policy, Snapshot
from gschedd.plan.space import FreeNode
from tests.support.spaces import space


def where(policy: Policy, nodes: list[FreeNode], sizes: list[int], first: int = 0) -> list[str]:
    """Return the nodes of single-node jobs of these sizes; their numbers begin at ``first``."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for number, cpus in enumerate(sizes, start=first):
        groups.setdefault(cpus, []).append((0, number))
    job_classes = {
        cpus: JobClass(queue="batch", request=Request(chunks=(Chunk(cpus=cpus),)), walltime_s=None)
        for cpus in groups
    }
    snapshot = Snapshot(
        now_s=0,
        nodes={each.name: each for each in nodes},
        groups=[Group(job_class=job_classes[cpus], order=order) for cpus, order in groups.items()],
        running=[],
    )
    return [start.allocation[0].node for start in policy(snapshot).starts]


def test_first_fit_fills_node_after_node_in_the_order_of_their_numbers() -> None:
    """n2 before n10; a job too large for what is left goes to the next, a small one comes back."""
    nodes = [space("n10", cpus=4), space("n2", cpus=4), space("n1", cpus=4)]

    assert where(torque.plan, nodes, [3, 2, 1, 2, 4]) == ["n1", "n2", "n1", "n2", "n10"]


def test_round_robin_gives_each_node_its_turn() -> None:
    """It goes on where the numbers do, and a full node is passed over."""
    nodes = [space("n1", cpus=2), space("n2", cpus=1), space("n3", cpus=2)]

    assert where(roundrobin.plan, nodes, [1] * 5) == ["n1", "n2", "n3", "n1", "n3"]
    assert where(roundrobin.plan, nodes, [1], first=4) == ["n2"]


def test_fewest_counts_jobs_and_not_their_size() -> None:
    """One large job is fewer than two small ones."""
    nodes = [space("n1", cpus=8, owners=2), space("n2", cpus=8, owners=1), space("n3", cpus=8)]

    assert where(fewest.plan, nodes, [6, 1, 1]) == ["n3", "n2", "n3"]
