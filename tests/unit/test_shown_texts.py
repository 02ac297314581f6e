"""Texts that others see have no characters that change what a terminal or a page shows beside."""

import pytest
from msgspec import Struct, convert, structs

from gsched.errors import InvalidRequestError
from gsched.model import limits
from gsched.protocol import actions as a
from gsched.protocol.reservations import ReservationTerms
from gsched.protocol.submissions import SubmitJob
from gsched.protocol.tokens import CreateUserToken
from gschedd.core.requests.content import check_content, check_name
from tests.support.world import ALICE, World, submission

#: Texts that only who submits a job and who runs it read: paths, secrets, lists with own checks.
OF_ITS_OWNER = {
    *("array", "checkpoint_dir", "join", "key", "launch", "lines", "mail_points", "mail_to"),
    *("notify_url", "python", "requeue_on", "script", "shell", "stderr_path", "stdout_path"),
    *("submit_dir", "urgency", "workdir"),
}
KINDS: tuple[type[Struct], ...] = (
    *(SubmitJob, a.Alteration, ReservationTerms, CreateUserToken),
    *(*a.JOB_ACTIONS, *a.NODE_ACTIONS.values()),
)
REVERSED = "ok\u202efdp"


def texts_of(kind: type[Struct]) -> set[str]:
    return {each.name for each in structs.fields(kind) if each.type in {str, str | None}}


@pytest.mark.parametrize("kind", [SubmitJob, a.Alteration], ids=lambda kind: kind.__name__)
def test_each_text_of_a_job_is_for_its_owner_or_one_line(kind: type[Struct]) -> None:
    """A new field is put into one of both."""
    assert texts_of(kind) - limits.ONE_LINE <= OF_ITS_OWNER
    assert not limits.ONE_LINE & OF_ITS_OWNER


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_text_that_others_see_is_one_printable_line(kind: type[Struct]) -> None:
    plain: dict[str, object] = {"scope": "read"} if kind is CreateUserToken else {}
    if kind is SubmitJob:
        plain = {"key": "", "name": "job", "workdir": "/"}
    fields = limits.texts_of(kind)
    for name in texts_of(kind) & limits.ONE_LINE:
        for text in (REVERSED, "two\nlines", "bell\a", "\x1b[2J"):
            with pytest.raises(InvalidRequestError, match="cannot be shown") as refused:
                limits.check_texts(convert(plain | {name: text}, kind), fields)
            assert text not in refused.value.message
        limits.check_texts(convert(plain | {name: "é 日本 ok"}, kind), fields)


@pytest.mark.parametrize(
    "change",
    [{"name": REVERSED}, {"name": "a b"}, {"name": ""}, {"name": "x" * 237}, {"comment": REVERSED},
     {"account": "a\tb"}],
)  # fmt: skip
def test_the_head_checks_it_whoever_submits(change: dict[str, object]) -> None:
    world = World()
    with pytest.raises(InvalidRequestError):
        check_content(submission(**change), ALICE, world.head.state)
    check_content(submission(name="x" * limits.MAX_NAME), ALICE, world.head.state)


def test_an_altered_name_has_the_same_limit() -> None:
    for name in ("x" * (limits.MAX_NAME + 1), REVERSED, "a\u2003b", " a"):
        with pytest.raises(InvalidRequestError, match="cannot be used"):
            check_name(name)
    check_name("x" * limits.MAX_NAME)
