"""Lists of nodes in Slurm's short form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.errors import UsageError
from gsched.model.host_lists import compact, expanded, in_order

#: As Slurm 22.05.8 expands, shortens and sorts them.
LISTS = [
    ("n[3,1-2]", "n3 n1 n2", "n[3,1-2]", "n[1-3]"),
    ("n10,n9,n8,n11", "n10 n9 n8 n11", "n[10,9,8,11]", "n[8-11]"),
    ("b1,a1,a2", "b1 a1 a2", "b1,a[1-2]", "a[1-2],b1"),
    ("n1-1,n1-2", "n1-1 n1-2", "n1-[1-2]", "n1-[1-2]"),
    ("a,b,c", "a b c", "a,b,c", "a,b,c"),
    ("r1n1,r1n2,r2n1", "r1n1 r1n2 r2n1", "r1n[1-2],r2n1", "r1n[1-2],r2n1"),
    ("n[1-2]x[1-2]", "n1x1 n1x2 n2x1 n2x2", "n1x[1-2],n2x[1-2]", "n1x[1-2],n2x[1-2]"),
    ("x5", "x5", "x5", "x5"),
    ("n[001-003,007]", "n001 n002 n003 n007", "n[001-003,007]", "n[001-003,007]"),
    ("n9,n10", "n9 n10", "n[9-10]", "n[9-10]"),
    ("n09,n10,n11", "n09 n10 n11", "n[09-11]", "n[09-11]"),
    ("n098,n099,n100", "n098 n099 n100", "n[098-100]", "n[098-100]"),
    ("n01,n1,n2", "n01 n1 n2", "n[01,1-2]", None),
    ("n1a,n2a", "n1a n2a", "n1a,n2a", "n1a,n2a"),
    ("n[1-2]-ib", "n1-ib n2-ib", "n1-ib,n2-ib", "n1-ib,n2-ib"),
]


@pytest.mark.parametrize(("text", "names", "short", "ordered"), LISTS)
def test_lists_are_those_of_slurm(text: str, names: str, short: str, ordered: str | None) -> None:
    found = expanded(text, option="-w")

    assert " ".join(found) == names
    assert compact(found) == short
    assert ordered is None or compact(in_order(found)) == ordered


@given(st.lists(st.from_regex(r"[a-z]{0,2}-?[0-9]{0,3}[a-z]?", fullmatch=True).filter(bool)))
def test_a_short_list_names_the_same_nodes_in_the_same_order(names: list[str]) -> None:
    """So programs get the nodes in the order of their ranks."""
    assert list(expanded(compact(names), option="-w")) == names


@pytest.mark.parametrize(
    "text",
    ["n[1-", "n[1-2]]", "n[3-1]", "n[]", "n[1,,2]", "n[a]", "n[0-99999]", "n[1-999]x[1-999]"],
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="-w: "):
        expanded(text, option="-w")
