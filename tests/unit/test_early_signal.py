"""The signal before the walltime ends: from --signal to the node's task."""

import pytest

from gnode.core.binding import bind
from gnode.task import TaskEarlySignal
from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.readers import early_signal
from gsched.errors import GschedError, InvalidRequestError, UsageError
from gsched.model.job import EarlySignal
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests.checkpointing import saving_of
from gschedd.core.state.settings import Settings
from tests.support.agent_driver import ALICE, order, site

HERE = SubmitContext(cwd="/", environment={}, now_s=0.0, umask=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("USR1", EarlySignal(signal=10)),
        ("12@120", EarlySignal(signal=12, before_s=120.0)),
        ("B:SIGUSR2@5m", EarlySignal(signal=12, before_s=300.0, script_only=True)),
        ("BR:TERM@1", EarlySignal(signal=15, before_s=1.0, script_only=True)),
        ("R:HUP", EarlySignal(signal=1)),
    ],
)
def test_a_signal_is_read_as_slurm_reads_it(text: str, expected: EarlySignal) -> None:
    assert early_signal(text, HERE) == expected


@pytest.mark.parametrize("text", ["", "USR7", "X:USR1", ":USR1", "USR1@soon", "0", "USR1@65536"])
def test_what_is_no_signal_or_no_time_is_refused(text: str) -> None:
    with pytest.raises(GschedError) as caught:
        early_signal(text, HERE)
    assert "--signal" in caught.value.message


def test_the_node_gets_the_signal_and_the_mode_of_output() -> None:
    early = EarlySignal(signal=10, before_s=5.0)
    launch = order(early_signal=early, append=True)

    task = bind(launch, ALICE, site())
    assert (task.early_signal, task.append) == (TaskEarlySignal(signal=10, before_s=5.0), True)
    assert (bind(order(), ALICE, site()).early_signal, bind(order(), ALICE, site()).append) == (
        None,
        False,
    )


def job(early: EarlySignal | None) -> SubmitJob:
    return SubmitJob(key="k", name="n", workdir="/", early_signal=early)


def early_notes(asked: SubmitJob, walltime_s: float | None) -> tuple[str, ...]:
    """Return what the user is told when this is submitted."""
    return saving_of(asked, walltime_s, Settings(server="", queues={})).warnings


def test_the_head_says_when_the_signal_has_no_effect() -> None:
    early = EarlySignal(signal=10)

    assert early_notes(job(None), None) == early_notes(job(early), 61.0) == ()
    assert "no walltime" in early_notes(job(early), None)[0]
    assert "when the job starts" in early_notes(job(early), 60.0)[0]


@pytest.mark.parametrize(
    "early",
    [
        EarlySignal(signal=0),
        EarlySignal(signal=65),
        EarlySignal(signal=9),
        EarlySignal(signal=10, before_s=1e6),
        EarlySignal(signal=10, before_s=-1.0),
    ],
)
def test_the_head_refuses_what_no_node_can_send(early: EarlySignal) -> None:
    with pytest.raises(InvalidRequestError):
        early_notes(job(early), 100.0)


def test_a_bad_value_names_the_option() -> None:
    with pytest.raises(UsageError, match="--signal"):
        early_signal("B:", HERE)
