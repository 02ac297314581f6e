"""Proof that both ends of the node channel know the cluster's key, without sending it."""

import hashlib
import hmac

NONCE_BYTES = 16


def proof(*, key: bytes, role: str, node: str, nonces: tuple[str, str]) -> str:
    """Return the hex HMAC-SHA256 with which ``role`` ("head" or "node") answers.

    Args:
        key: the cluster's key.
        role: who proves; an answer of one role is worthless in the other.
        node: name of the node on this connection.
        nonces: the node's and the head's, hex, in this order.
    """
    text = "\0".join(("gsched-node-channel-1", role, node, *nonces))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def proof_matches(given: str, expected: str) -> bool:
    """Return whether two proofs are equal, in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())
