"""What a rank has otherwise than rank 0, and rank 0's state with it merged in again."""

from hypothesis import given
from hypothesis import strategies as st

from gsched.elastic.differences import Entries, differences, digests_of, merged
from tests.support.late_torch import IN_ONE_WORKER, torch

pytestmark = IN_ONE_WORKER

KEYS = st.sampled_from(["a", "b", 1, 2])
LEAVES: st.SearchStrategy[object] = st.one_of(
    st.integers(0, 3), st.none(), st.tuples(st.integers(0, 2)), st.just([])
)
TREES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner))
)
ENTRIES = st.dictionaries(st.sampled_from(["x", "y", "z"]), TREES)


@given(ENTRIES, ENTRIES)
def test_rank_0_s_state_with_the_differences_is_the_rank_s_own(one: Entries, two: Entries) -> None:
    """Whatever only rank 0 has stays."""
    found = differences(two, digests_of(two), digests_of(one))

    assert merged(one, found) == {**one, **two}


@given(ENTRIES)
def test_equal_states_have_no_differences(entries: Entries) -> None:
    assert differences(entries, digests_of(entries), digests_of(entries)) == {}


def test_only_the_tensor_that_differs_is_a_difference() -> None:
    """A view of the same values is none, another type or shape or a sign of zero is one."""
    weights = torch.arange(6.0).reshape(2, 3)
    one: Entries = {"m": {"w": weights, "mean": torch.zeros(2), "n": 3}}
    two: Entries = {"m": {"w": weights.t().contiguous().t(), "mean": torch.ones(2), "n": 3}}

    found = differences(two, digests_of(two), digests_of(one))

    assert list(found) == ["m"]
    assert list(found["m"]) == [("mean",)]
    for other in (torch.zeros(2).double(), torch.zeros(1, 2), -torch.zeros(2)):
        three: Entries = {"m": {**one["m"], "mean": other}}  # type: ignore[dict-item]  # a tree
        found = differences(three, digests_of(three), digests_of(one))
        assert list(found["m"]) == [("mean",)]
