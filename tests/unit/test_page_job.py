"""The page of a job: which buttons it has."""

import pytest

from gsched.protocol.job_rows import JobStory
from gschedd.monitor.page.job import possible_actions
from tests.support.slurm_commands import OK, row


def story_of(state: str, **changes: object) -> JobStory:
    return JobStory(
        server="test", now_s=0.0, row=row(1, state=state, **changes), attempts=(), events=(),
        workdir="/", resources="nodes=1", stdout_path="", stderr_path="", join="n",
        launch="script", rerunnable=True, grace_s=30.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "changes", "buttons"),
    [
        ("queued", {}, {"hold", "cancel", "resubmit"}),
        ("running", {}, {"requeue", "cancel", "resubmit"}),
        ("exiting", {}, {"resubmit"}),
        ("done", {"outcome": OK}, {"resubmit"}),
    ],
)
def test_a_job_has_the_buttons_of_its_state(
    state: str, changes: dict[str, object], buttons: set[str]
) -> None:
    possible = possible_actions(story_of(state, **changes))
    assert {name for name, is_possible in possible.items() if is_possible} == buttons
