"""Who may do what: one table of verbs and roles. What it does not allow is refused."""

from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Final

from gsched.errors import NotPermittedError
from gsched.model.ids import short_job_id
from gsched.model.job import Owner
from gsched.protocol.tokens import SCOPES, Scope
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller


class Role(StrEnum):
    """What somebody is, for a job or for the cluster."""

    USER = auto()
    OWNER = auto()
    COORDINATOR = auto()
    OPERATOR = auto()
    ADMINISTRATOR = auto()
    ROOT = auto()


class Verb(Enum):
    """What somebody wants to do. The value completes ``only an operator can ...``."""

    SUBMIT_JOB = "submit a job"
    READ_JOB = "see the name and the details of a job"
    READ_DETAILS = "see the arguments and the environment of a job"
    READ_OUTPUT = "read the output of a job"
    WRITE_MESSAGE = "write into the output of a job"
    CHANGE_JOB = "change a job"
    STOP_JOB = "hold, release or delete a job"
    RESUBMIT_JOB = "submit a job again"
    COUNT_DEPENDENCY = "satisfy a dependency of a job"
    ENTER_JOB = "have a terminal in a job"
    DISCARD_JOB = "give up a job with a damaged record"
    FORCE_REQUEUE = "requeue a job that is not rerunnable"
    HOLD_FOR_SITE = "set and release operator and system holds"
    RAISE_PRIORITY = "give a priority above the users' limit"
    EXTEND_FREELY = "extend a walltime beyond the queue's limits"
    USE_ANY_QUEUE = "use a queue that is for others"
    CHANGE_NODES = "change nodes"
    RUN_TASK = "start a task of the head"
    READ_CONFIG = "see the configuration of the running head"
    READ_SNAPSHOT = "save what the policies see"
    READ_RECOVERY = "see what would be recovered"
    ADMIT_HOST = "let hosts join the cluster"
    READ_HOSTS = "see the certificates of hosts"
    REVOKE_HOST = "revoke the certificates of hosts"
    CHANGE_RESERVATIONS = "create, alter and delete reservations"
    CHANGE_QUEUES = "change queues"
    RELOAD = "reload the configuration"
    RECOVER = "end safe mode"
    REPLACE_AUTHORITY = "replace the authority of the cluster"
    READ_TOKENS = "see the tokens of others"
    CHANGE_TOKENS = "create and revoke tokens of others, and tokens of the scope operate"


_OWNERS: Final = frozenset({Role.OWNER, Role.OPERATOR})
_COORDINATORS: Final = _OWNERS | {Role.COORDINATOR}
_OPERATORS: Final = frozenset({Role.OPERATOR})
_ADMINISTRATORS: Final = frozenset({Role.ADMINISTRATOR})

#: Operators are let into jobs where the configuration says so: see
#: `gschedd.core.requests.interactive`.
RULES: Final[Mapping[Verb, frozenset[Role]]] = MappingProxyType(
    {
        Verb.SUBMIT_JOB: frozenset({Role.USER}),
        Verb.READ_JOB: _COORDINATORS,
        Verb.READ_DETAILS: _OWNERS,
        Verb.READ_OUTPUT: _OWNERS,
        Verb.WRITE_MESSAGE: _OWNERS,
        Verb.CHANGE_JOB: _OWNERS,
        Verb.STOP_JOB: _COORDINATORS,
        Verb.RESUBMIT_JOB: _OWNERS,
        Verb.COUNT_DEPENDENCY: _OWNERS,
        Verb.ENTER_JOB: frozenset({Role.OWNER, Role.ROOT}),
        Verb.DISCARD_JOB: _OPERATORS,
        Verb.FORCE_REQUEUE: _OPERATORS,
        Verb.HOLD_FOR_SITE: _OPERATORS,
        Verb.RAISE_PRIORITY: _OPERATORS,
        Verb.EXTEND_FREELY: _OPERATORS,
        Verb.USE_ANY_QUEUE: _OPERATORS,
        Verb.CHANGE_NODES: _OPERATORS,
        Verb.RUN_TASK: _OPERATORS,
        Verb.READ_CONFIG: _OPERATORS,
        Verb.READ_SNAPSHOT: _OPERATORS,
        Verb.READ_RECOVERY: _OPERATORS,
        Verb.ADMIT_HOST: _OPERATORS,
        Verb.READ_HOSTS: _OPERATORS,
        Verb.REVOKE_HOST: _OPERATORS,
        Verb.CHANGE_RESERVATIONS: _OPERATORS | _ADMINISTRATORS,
        Verb.CHANGE_QUEUES: _ADMINISTRATORS,
        Verb.RELOAD: _ADMINISTRATORS,
        Verb.RECOVER: _ADMINISTRATORS,
        Verb.REPLACE_AUTHORITY: _ADMINISTRATORS,
        Verb.READ_TOKENS: _OPERATORS,
        Verb.CHANGE_TOKENS: _ADMINISTRATORS,
    }
)
#: The least scope of a token that a verb takes; of all others ``operate``.
_SCOPES: Final[Mapping[Verb, Scope]] = MappingProxyType(
    {
        Verb.READ_JOB: "read",
        Verb.READ_DETAILS: "read",
        Verb.READ_OUTPUT: "read",
        Verb.SUBMIT_JOB: "submit",
        Verb.WRITE_MESSAGE: "submit",
        Verb.CHANGE_JOB: "submit",
        Verb.STOP_JOB: "submit",
        Verb.RESUBMIT_JOB: "submit",
        Verb.COUNT_DEPENDENCY: "submit",
    }
)


def roles(
    caller: Caller, owner: Owner | None = None, *, coordinates: bool = False
) -> frozenset[Role]:
    """Return what a caller is: for the cluster and, with an owner, for this owner's job.

    Args:
        coordinates: the caller is a coordinator of the job's project.
    """
    held = {
        Role.USER: True,
        Role.OWNER: owner is not None and caller.owns(owner),
        Role.COORDINATOR: coordinates,
        Role.OPERATOR: caller.operator,
        Role.ADMINISTRATOR: caller.administrator,
        Role.ROOT: caller.uid == 0,
    }
    return frozenset(role for role, is_held in held.items() if is_held)


def may(
    caller: Caller, verb: Verb, owner: Owner | None = None, *, coordinates: bool = False
) -> bool:
    """Return whether a caller is allowed to do that; see `roles`."""
    if not has_scope(caller, _scope_of(verb)):
        return False
    allowed = RULES.get(verb, frozenset())
    if Role.USER in allowed:
        return True  # which all are
    return not allowed.isdisjoint(roles(caller, owner, coordinates=coordinates))


def authorize(
    caller: Caller, verb: Verb, job: Job | None = None, *, coordinates: bool = False
) -> None:
    """Refuse a caller who is not allowed to do that.

    Args:
        job: that it is done to; None: it concerns the cluster.
        coordinates: the caller is a coordinator of the job's project.

    Raises:
        NotPermittedError: the caller is not allowed to.
    """
    owner = None if job is None else job.spec.owner
    if may(caller, verb, owner, coordinates=coordinates):
        return
    check_scope(caller, _scope_of(verb), verb.value)
    if job is not None:
        raise _of_another(caller, job)
    word = "operator" if Role.OPERATOR in RULES.get(verb, frozenset()) else "administrator"
    where = f", but on {caller.host} only if [head] operator_hosts has it" if caller.host else ""
    raise NotPermittedError(
        f"only an {word} can {verb.value}",
        hint=f"{word}s are root, the head's account and those of [head] {word}s{where}",
    )


def has_scope(caller: Caller, least: Scope) -> bool:
    """Return whether a caller's token, if it is one, has at least this scope."""
    return SCOPES.index(caller.scope) >= SCOPES.index(least)


def check_scope(caller: Caller, least: Scope, what: str) -> None:
    """Refuse a caller whose token has too small a scope.

    Args:
        what: completes ``takes ... to``.

    Raises:
        NotPermittedError: it has.
    """
    if has_scope(caller, least):
        return
    raise NotPermittedError(
        f"token {caller.token} has the scope {caller.scope}; it takes {least} to {what}",
        hint=f"gsched token create --role user --scope {least} on a host of the cluster"
        + (", by an administrator" if least == "operate" else ""),
    )


def _scope_of(verb: Verb) -> Scope:
    return _SCOPES.get(verb, "operate")


def hides(caller: Caller, owner: Owner, *, coordinates: bool = False) -> bool:
    """Return whether a caller sees a job of an owner without its name and details."""
    return caller.is_private and not may(caller, Verb.READ_JOB, owner, coordinates=coordinates)


def check_shown(caller: Caller, job: Job, *, coordinates: bool = False) -> None:
    """Refuse who may not see the details of a job.

    Raises:
        NotPermittedError: the job is another's, and the site shows users their own only.
    """
    if hides(caller, job.spec.owner, coordinates=coordinates):
        raise _of_another(caller, job)


def _of_another(caller: Caller, job: Job) -> NotPermittedError:
    owner = job.spec.owner
    if hides(caller, owner):
        return NotPermittedError(
            f"job {short_job_id(job.id)} belongs to another user",
            hint="this cluster shows users their own jobs only; its owner or an operator can do "
            "this",
        )
    if caller.uid != owner.uid:
        why = ""
    elif caller.is_nameless:
        why = f", and the head's machine knows no user with your uid {caller.uid} now"
    else:
        why = f", who had uid {caller.uid} before you ({caller.user})"
    return NotPermittedError(
        f"job {short_job_id(job.id)} belongs to {owner.user}{why}",
        hint="its owner or an operator can do this",
    )
