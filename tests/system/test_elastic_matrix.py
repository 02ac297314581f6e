"""Networks and optimisers of all kinds, moved and resized: compared tensor by tensor, on each rank.

On the same number of ranks every tensor of every rank, and every generator, is the same bit for
bit. On other numbers weights and optimiser state are equal but for the order of additions, for
kinds that compute the same on any number of ranks; for the others the outcome is always the same.
"""

import json
import pathlib
from collections import Counter

import pytest

from tests.support.elastic_runs import run_ranks
from tests.support.forks import ForkServer
from tests.support.torchrun import ROOT, run_torchrun

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("elastic")]

MATRIX = ROOT / "tests" / "support" / "elastic_matrix.py"
FEW = ("batchnorm", "gan", "late", "accumulating", "accumulating-norms", "odd-buffers", "objects")
#: All of elastic_zoo.KINDS, which needs torch to be read.
ALL = (
    *(
        "simple",
        "batchnorm",
        "own-averages",
        "by-hand",
        "evaluating",
        "gan",
        "careless-gan",
        "late",
    ),
    *("averaged", "averaged-buffers", "scaled", "accumulating", "accumulating-norms"),
    *("accumulating-views", "accumulating-epoch", "accumulating-epoch-views", "zeros"),
    *("zeros-views", "lbfgs", "observed", "weight-norms", "odd-buffers", "tied", "half"),
    *("optimisers", "objects", "afterwards", "fsdp", "fsdp2"),
)
#: 3 epochs of 48 samples.
EVERY_SAMPLE_ONCE = {(epoch, sample): 1 for epoch in range(3) for sample in range(48)}


def run(
    forks: ForkServer,
    directory: pathlib.Path,
    kinds: tuple[str, ...],
    plans: tuple[str, ...],
    ranks: int,
) -> None:
    """Run the kinds with attempts on these numbers of ranks, and check what each rank says."""
    script = (str(MATRIX), str(directory), ",".join(kinds), ",".join(plans))
    code, output = run_ranks(forks, directory, *script, ranks=ranks)

    told = [(directory / f"told-{rank}").read_text() for rank in range(ranks)]
    assert code == 0, "\n".join([*told, output])
    expected = [f"{kind} {plan}: ok" for kind in kinds for plan in plans]
    for lines in told:
        assert lines.splitlines() == expected
    for kind in kinds:
        for plan in plans:
            used: Counter[tuple[int, int]] = Counter()
            for path in (directory / kind).glob(f"used-{plan}-*"):
                used.update((epoch, sample) for epoch, sample in json.loads(path.read_text()))
            assert used == EVERY_SAMPLE_ONCE, (kind, plan)


def test_kinds_of_networks_end_with_the_same_bits_on_every_rank(
    tmp_path: pathlib.Path, forks: ForkServer
) -> None:
    """Moved within an epoch and at its end, in the middle of an accumulation, and resized."""
    run(forks, tmp_path, FEW, ("2-2-2", "2-3-2"), ranks=3)


@pytest.mark.sweep
@pytest.mark.parametrize("plan", ["2-2-2-2-2", "3-3-3-3-3", "2-3-2", "2-1-2", "3-1-2-3", "1-1-1"])
def test_every_kind_on_every_number_of_ranks(
    tmp_path: pathlib.Path, forks: ForkServer, plan: str
) -> None:
    run(forks, tmp_path, ALL, (plan,), ranks=3)


@pytest.mark.sweep
def test_all_kinds_are_swept(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "kinds.py"
    script.write_text("from tests.support.elastic_zoo import KINDS\nprint(','.join(KINDS))\n")
    assert run_torchrun(script, ranks=1).stdout.strip().split(",") == list(ALL)
