"""Authenticated frames of the node channel: who does not know the cluster's key can add nothing.

The first frame, the node's hello, is plain. The head's challenge is sealed with a key that is
derived from the cluster's key and the hello; every later frame with a key for its direction that
is derived from the cluster's key, the hello and the challenge. So each side's first sealed frame
proves that it knows the key, on this very connection, and that both have seen the same first two
frames. A sealed frame is

    MAC (32 bytes) | number (8 bytes, big-endian) | payload

where the MAC is HMAC-SHA256 over number and payload, and the numbers of a direction are 0, 1, 2...
See docs/adr/0011-sealed-frames.md.
"""

import hashlib
import hmac
from typing import Final

NONCE_BYTES: Final = 16
MAC_BYTES: Final = 32
NUMBER_BYTES: Final = 8
HEADER_BYTES: Final = MAC_BYTES + NUMBER_BYTES

_LABEL: Final = b"gsched node channel 2: "
_HASH: Final = "sha256"


class SealError(ValueError):
    """A frame was not made by the peer, or not for this place in the conversation."""


class Sealer:
    """Seals the frames of one direction of one connection, in order."""

    __slots__ = ("_mac", "_number")

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, digestmod=_HASH)
        self._number = 0

    def seal(self, payload: bytes) -> bytes:
        """Return the next frame."""
        number = self._number.to_bytes(NUMBER_BYTES, "big")
        self._number += 1
        mac = self._mac.copy()  # a third cheaper than to begin with the key each time
        mac.update(number)
        mac.update(payload)
        return b"".join((mac.digest(), number, payload))


class Opener:
    """Opens the frames of one direction of one connection, which must come in order."""

    __slots__ = ("_mac", "_number")

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, digestmod=_HASH)
        self._number = 0

    def open(self, frame: bytes) -> memoryview:
        """Return the payload of the next frame.

        Raises:
            SealError: it is too short, its MAC is wrong, or another frame belongs here. After
                that the connection is worth nothing any more.
        """
        if len(frame) < HEADER_BYTES:
            raise SealError(f"a frame of {len(frame)} bytes is too short to be authentic")
        view = memoryview(frame)
        mac = self._mac.copy()
        mac.update(view[MAC_BYTES:])
        if not hmac.compare_digest(view[:MAC_BYTES], mac.digest()):
            raise SealError("a frame is not authentic: its MAC is wrong")
        number = int.from_bytes(view[MAC_BYTES:HEADER_BYTES], "big")
        if number != self._number:
            raise SealError(f"frame {number} came in place of frame {self._number}")
        self._number += 1
        return view[HEADER_BYTES:]


def challenge_key(key: bytes, hello: bytes) -> bytes:
    """Return the key of the one frame that holds the head's challenge.

    Args:
        key: the cluster's key.
        hello: the node's first frame, as it was sent.
    """
    return _derive(key, hashlib.sha256(hello).digest(), b"challenge")


def session_keys(key: bytes, hello: bytes, challenge: bytes) -> tuple[bytes, bytes]:
    """Return the keys of all later frames: from the node to the head, and from head to node.

    Args:
        key: the cluster's key.
        hello: the node's first frame, as it was sent.
        challenge: the head's first frame, sealed, as it was sent.
    """
    salt = hashlib.sha256(hashlib.sha256(hello).digest() + hashlib.sha256(challenge).digest())
    return _derive(key, salt.digest(), b"from node"), _derive(key, salt.digest(), b"from head")


def _derive(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes by HKDF-SHA256 (RFC 5869): extract with the salt, expand for the purpose."""
    extracted = hmac.digest(salt, key, _HASH)
    return hmac.digest(extracted, _LABEL + purpose + b"\x01", _HASH)
