"""Which stages of PAM the program for logins has a part in."""

import pytest

from gnode.pam import LoginRefusedError, answer


@pytest.mark.parametrize("stage", ["auth", "password"])
def test_nobody_is_authenticated(stage: str) -> None:
    """With ``auth sufficient``, by mistake, a success would let everybody in."""
    with pytest.raises(LoginRefusedError, match="does not authenticate"):
        answer({"PAM_TYPE": stage, "PAM_USER": "root"}, "/nonexistent", 1)


def test_the_end_of_a_session_is_not_refused() -> None:
    """Nothing is to be done then."""
    assert answer({"PAM_TYPE": "close_session", "PAM_USER": "alice"}, "/nonexistent", 1) == ""
