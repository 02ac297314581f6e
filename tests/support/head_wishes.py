"""What people ask of the head's state machine, at random."""

from hypothesis import strategies as st

from tests.support.sharing_jobs import SHARES
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB

callers = st.sampled_from([ALICE, ALICE, ALICE, BOB, ADMIN])
resource_texts = st.sampled_from(
    [
        (),
        ("nodes=1:ppn=2",),
        ("nodes=1:gpus=1",),
        ("nodes=1:gpus=1:gpu_type=b",),
        *SHARES,
        ("nodes=2",),
        ("nodes=2:ppn=2",),
        ("nodes=red+1",),
        ("nodes=3",),
        ("select=3:ncpus=1",),
        ("select=2:ncpus=2,place=pack",),
        ("nodes=1,licence=1",),
        ("nodes=1,place=excl",),
        ("nodes=1,mem=9gb",),
        ("nodes=9",),
        ("nodes=",),
        ("apples=1",),
    ]
)
walltimes = st.sampled_from([(), ("walltime=5",), ("walltime=20",), ("walltime=100",)])
numbers = st.integers(0, 12)  # which of the jobs that are not done; 12: one that is not there
moments = st.sampled_from([0.0, BEGIN_S + 5, BEGIN_S + 40])
holds = st.sampled_from([(), (), (), (), ("user",), ("operator",), ("user", "operator")])
