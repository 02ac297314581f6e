"""The schema of ``/v1/recover``: what operators see and do where a database may be an old copy."""

from msgspec import Struct


class RecoverRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/recover``: an operator ends safe mode after having looked.

    Attributes:
        without_nodes: also where known nodes have not said what they know.
        believe: the name of a refused node whose word is to be taken.
    """

    accept: bool
    without_nodes: bool = False
    believe: str = ""


class RecoverCase(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of which nodes know something that the database does not.

    Attributes:
        kind: ``finished``, ``started``, ``adopted``, ``lost``, ``conflict`` or ``held``.
        nodes: which know of it.
        script: the digest (SHA-256) of its script, where a node knows that.
        text: how it ended, or why it is such a case.
    """

    job: int
    kind: str
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    user: str = ""
    name: str = ""
    script: str = ""
    text: str = ""


class RecoverReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/recover``: why the head is in safe mode, and what accepting would do.

    Attributes:
        nodes: which have said what they know; ``missing``: known nodes that have not.
        first_unknown: jobs from this number on may be missing in the database.
        next_job: the number that the next job would get.
        dropped: attempts that nodes know, and that were too many to be kept.
        quarantined: nodes that are refused for what they claim, and why.
    """

    safe_mode: str = ""
    nodes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    first_unknown: int = 0
    next_job: int = 0
    cases: tuple[RecoverCase, ...] = ()
    dropped: int = 0
    quarantined: dict[str, str] = {}
