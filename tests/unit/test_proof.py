"""Proof of the cluster's key."""

from hypothesis import given
from hypothesis import strategies as st

from gsched.protocol.proof import proof, proof_matches

KEY = b"k" * 32
PLAIN = proof(key=KEY, role="head", node="n1", nonces=("aa", "bb"))


def test_a_proof_is_bound_to_all_that_it_is_about() -> None:
    """Key, role, node and both nonces in their order: change one and it is another proof."""
    others = [
        proof(key=b"x" * 32, role="head", node="n1", nonces=("aa", "bb")),
        proof(key=KEY, role="node", node="n1", nonces=("aa", "bb")),
        proof(key=KEY, role="head", node="n2", nonces=("aa", "bb")),
        proof(key=KEY, role="head", node="n1", nonces=("bb", "aa")),
        proof(key=KEY, role="head", node="n1", nonces=("aab", "b")),
    ]

    assert len({PLAIN, *others}) == 6
    assert not any(proof_matches(other, PLAIN) for other in others)
    assert proof_matches(proof(key=KEY, role="head", node="n1", nonces=("aa", "bb")), PLAIN)


@given(st.text())
def test_nothing_made_up_matches(text: str) -> None:
    """Not even text that is no ASCII, which a plain comparison would choke on."""
    assert not proof_matches(text, PLAIN)
