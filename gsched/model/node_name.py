"""What a node may be called, and what its identity looks like."""

import re
from typing import Final

NODE_NAME_RULE: Final = (
    "a node name has 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or digit"
)

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IDENTITY = re.compile(r"[0-9a-f]{32}")


def is_node_name(text: str) -> bool:
    """Return whether a node may have this name: see `NODE_NAME_RULE`."""
    return _NODE_NAME.fullmatch(text) is not None


def is_identity(text: str) -> bool:
    """Return whether this can be a node's identity: 32 hex digits."""
    return _IDENTITY.fullmatch(text) is not None
