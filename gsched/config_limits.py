"""The table ``[limits]`` of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Struct


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[limits]``: bytes of all files of a code snapshot together, and their number."""

    snapshot_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**33)] = 268_435_456
    snapshot_files: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 20_000
