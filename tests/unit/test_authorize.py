"""Who may do what (T19, T22, T23): each verb by each subject, written out once more."""

import pytest
from msgspec import structs

from gsched.errors import NotPermittedError
from gsched.model.job import Owner
from gsched.protocol.tokens import SCOPES, Scope
from gschedd.core.requests.authorize import RULES, Role, Verb, authorize, may, roles
from gschedd.core.state.settings import Caller

OWNER = Owner(user="alice", uid=1001, gid=1001)
SUBJECTS = {
    "owner": Caller(user="alice", uid=1001, gid=1001),
    "other": Caller(user="bob", uid=1002, gid=1001),
    "next user of the uid": Caller(user="carol", uid=1001, gid=1001),
    "nameless": Caller(user="1001", uid=1001, gid=1001),
    "operator": Caller(user="olga", uid=1003, gid=1003, operator=True),
    "administrator": Caller(
        user="ada", uid=1004, gid=1004, operator=True, administrator=True
    ),
    "root": Caller(user="root", uid=0, gid=0, operator=True, administrator=True),
}  # fmt: skip
OWNERS = {"owner", "operator", "administrator", "root"}
OPERATORS = {"operator", "administrator", "root"}
ADMINISTRATORS = {"administrator", "root"}
ALLOWED = {
    Verb.SUBMIT_JOB: set(SUBJECTS),
    Verb.READ_JOB: OWNERS,
    Verb.READ_DETAILS: OWNERS,
    Verb.READ_OUTPUT: OWNERS,
    Verb.WRITE_MESSAGE: OWNERS,
    Verb.CHANGE_JOB: OWNERS,
    Verb.STOP_JOB: OWNERS,
    Verb.RESUBMIT_JOB: OWNERS,
    Verb.COUNT_DEPENDENCY: OWNERS,
    Verb.ENTER_JOB: {"owner", "root"},
    Verb.DISCARD_JOB: OPERATORS,
    Verb.FORCE_REQUEUE: OPERATORS,
    Verb.HOLD_FOR_SITE: OPERATORS,
    Verb.RAISE_PRIORITY: OPERATORS,
    Verb.EXTEND_FREELY: OPERATORS,
    Verb.USE_ANY_QUEUE: OPERATORS,
    Verb.CHANGE_NODES: OPERATORS,
    Verb.CHANGE_RESERVATIONS: OPERATORS,
    Verb.RUN_TASK: OPERATORS,
    Verb.READ_CONFIG: OPERATORS,
    Verb.READ_SNAPSHOT: OPERATORS,
    Verb.READ_RECOVERY: OPERATORS,
    Verb.ADMIT_HOST: OPERATORS,
    Verb.READ_HOSTS: OPERATORS,
    Verb.REVOKE_HOST: OPERATORS,
    Verb.CHANGE_QUEUES: ADMINISTRATORS,
    Verb.RELOAD: ADMINISTRATORS,
    Verb.RECOVER: ADMINISTRATORS,
    Verb.REPLACE_AUTHORITY: ADMINISTRATORS,
    Verb.READ_TOKENS: OPERATORS,
    Verb.CHANGE_TOKENS: ADMINISTRATORS,
}
#: What a token takes, by verb; all others take operate.
SCOPES_OF = {
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


@pytest.mark.parametrize("verb", Verb)
def test_t19_each_verb_is_allowed_to_its_subjects_and_to_nobody_else(verb: Verb) -> None:
    assert {name for name, caller in SUBJECTS.items() if may(caller, verb, OWNER)} == ALLOWED[verb]


@pytest.mark.parametrize("verb", Verb)
def test_t22_a_coordinator_may_stop_jobs_of_the_project_and_nothing_else(verb: Verb) -> None:
    bob = SUBJECTS["other"]

    assert may(bob, verb, OWNER, coordinates=True) is (
        verb in {Verb.READ_JOB, Verb.STOP_JOB, Verb.SUBMIT_JOB}
    )


@pytest.mark.parametrize("verb", Verb)
def test_t19_who_owns_nothing_of_it_needs_a_role_of_the_cluster(verb: Verb) -> None:
    allowed = {name for name, caller in SUBJECTS.items() if may(caller, verb)}

    assert allowed == ALLOWED[verb] - ({"owner"} if verb is not Verb.SUBMIT_JOB else set())


def test_t19_each_verb_has_a_rule() -> None:
    assert set(RULES) == set(Verb)


def test_t23_an_operator_is_no_administrator() -> None:
    assert roles(SUBJECTS["operator"], OWNER) == {Role.USER, Role.OPERATOR}
    with pytest.raises(NotPermittedError) as refused:
        authorize(SUBJECTS["operator"], Verb.CHANGE_QUEUES)

    assert refused.value.message == "only an administrator can change queues"
    assert "[head] administrators" in refused.value.hint


def test_t22_a_user_is_told_that_it_takes_an_operator() -> None:
    with pytest.raises(NotPermittedError) as refused:
        authorize(SUBJECTS["owner"], Verb.CHANGE_NODES)

    assert refused.value.message == "only an operator can change nodes"


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("verb", Verb)
def test_t19_a_token_allows_no_more_than_its_scope(verb: Verb, scope: Scope) -> None:
    least = SCOPES.index(SCOPES_OF.get(verb, "operate"))
    reaches = SCOPES.index(scope) >= least
    for name, caller in SUBJECTS.items():
        by_token = structs.replace(caller, token="1", scope=scope)

        assert may(by_token, verb, OWNER) is (reaches and name in ALLOWED[verb])


def test_a_token_of_too_small_a_scope_gets_an_error_with_the_scope_needed() -> None:
    by_token = structs.replace(SUBJECTS["owner"], token="4ba2", scope="read")

    with pytest.raises(NotPermittedError) as refused:
        authorize(by_token, Verb.SUBMIT_JOB)

    assert refused.value.message == "token 4ba2 has the scope read; it takes submit to submit a job"
