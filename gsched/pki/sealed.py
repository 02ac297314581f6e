"""Texts that only holders of an authority's key can read: how heads hand a new authority on."""

import base64
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gsched.pki.issuing import Authority
from gsched.pki.names import CertificateError

_NONCE_BYTES: Final = 12
_USE: Final = b"gsched: the next authority"


def sealed(authority: Authority, content: bytes) -> str:
    """Return content that an authority's key opens."""
    nonce = os.urandom(_NONCE_BYTES)
    return base64.b64encode(nonce + _cipher(authority).encrypt(nonce, content, _USE)).decode()


def opened(authority: Authority, text: str) -> bytes:
    """Return what was sealed.

    Raises:
        CertificateError: it was not with this key, or was changed.
    """
    try:
        data = base64.b64decode(text, validate=True)
        return _cipher(authority).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _USE)
    except (ValueError, InvalidTag) as error:
        raise CertificateError("what the other head has left of the authority is broken") from error


def _cipher(authority: Authority) -> AESGCM:
    secret = authority.key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return AESGCM(HKDF(hashes.SHA256(), 32, salt=None, info=_USE).derive(secret))
