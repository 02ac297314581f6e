"""Tokens of users, with which programs use the head over HTTPS: requests and replies."""

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Struct

#: What a token allows, each one also what the ones before allow.
Scope = Literal["read", "submit", "operate"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
MAX_LABEL: Final = 64
MAX_USER: Final = 64
MAX_TTL_S: Final = 366 * 86_400.0


class CreateUserToken(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """``POST /v1/user-tokens``: let programs act as a user.

    Attributes:
        user: whose token it becomes; empty: the caller's.
        label: what it is for, in the user's words.
        ttl_s: for how long it counts.
    """

    scope: Scope
    user: Annotated[str, msgspec.Meta(max_length=MAX_USER)] = ""
    label: Annotated[str, msgspec.Meta(max_length=MAX_LABEL)] = ""
    ttl_s: Annotated[float, msgspec.Meta(ge=1, le=MAX_TTL_S)] = 30 * 86_400.0


class UserTokenRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token of a user; only its receiver knows its secret.

    Attributes:
        by: who has created it.
        used_s: when it was used last, since the head's start; 0: not since.
    """

    id: str
    user: str
    uid: int
    gid: int
    scope: Scope
    label: str = ""
    by: str = ""
    created_s: float = 0.0
    expires_s: float = 0.0
    used_s: float = 0.0


class UserTokenList(Struct, frozen=True, kw_only=True):
    """``GET /v1/user-tokens``: those of the caller, for operators all."""

    now_s: float
    tokens: tuple[UserTokenRow, ...]


class CreatedUserToken(Struct, frozen=True, kw_only=True):
    """The answer to `CreateUserToken`.

    Attributes:
        token: with its secret; it is shown once.
        address: of the head for programs, ``https://HOST:PORT``; empty: HTTPS is off.
    """

    row: UserTokenRow
    token: str
    address: str
