"""What a training and gnode say to each other, and the thread that carries it."""

import json
from typing import Any

import pytest

from gsched.elastic.agreement import checkpoint_interval_s
from gsched.elastic.conversation import CheckpointRequest, Conversation, ProtocolError, Tuning
from gsched.elastic.environment import Environment
from gsched.elastic.errors import BadEnvironmentError
from gsched.elastic.link import NodeLink
from tests.support.cluster import wait_until
from tests.support.elastic_listener import Listener

Line = dict[str, Any]


def refuse_three(world_size: int) -> str | None:
    return "it cannot run on 3 ranks" if world_size == 3 else None


class Talk:
    """A conversation whose other side is the test."""

    def __init__(self) -> None:
        self.wakes = 0
        self.training = Conversation({"job": 7}, wake=self._wake, refuse=refuse_three)

    def _wake(self) -> None:
        self.wakes += 1

    def ask(self, request: int, *, wait: bool = True, **more: int) -> None:
        self.hear(checkpoint={"request": request, "wait": wait, **more})

    def hear(self, **message: Line) -> None:
        self.training.hear(json.dumps(message).encode())

    def sent(self) -> list[Line]:
        """Return what is sent now, and take it as sent."""
        lines = self.training.to_send()
        for key, line in lines:
            self.training.sent(key, line)
        return [json.loads(line) for _, line in lines]


def body(request: int, step: int = 5) -> Line:
    return {"request": request, "step": step, "waits": True}


def test_the_newest_batch_size_is_taken_once() -> None:
    talk = Talk()
    assert talk.training.take_tuning() is None
    talk.hear(tune={"per_gpu": 64})
    talk.hear(tune={"per_gpu": 32, "accumulation": 3})

    assert talk.training.take_tuning() == Tuning(per_gpu=32, accumulation=3)
    assert talk.training.take_tuning() is None
    for wrong in ({}, {"per_gpu": 0}, {"per_gpu": 8, "accumulation": -1}, {"per_gpu": "many"}):
        with pytest.raises(ProtocolError):
            talk.hear(tune=wrong)


def test_request_is_taken_up_once_and_answered_again_the_same() -> None:
    talk = Talk()
    talk.ask(1)
    assert talk.training.take_up() == CheckpointRequest(request=1, wait=True)
    talk.ask(1)  # while it is being saved
    assert talk.training.pending() is None
    talk.training.saved(body(1))
    first = talk.sent()
    talk.ask(1)

    assert first == [{"checkpointed": body(1)}]
    assert talk.sent() == first
    assert talk.training.pending() is None


def test_a_newer_request_is_taken_up_after_an_older_one() -> None:
    talk = Talk()
    talk.ask(1)
    talk.training.take_up()
    talk.training.failed(1, "the disk is full")
    assert talk.sent() == [{"checkpoint_failed": {"request": 1, "message": "the disk is full"}}]
    talk.ask(2, wait=False)

    assert talk.training.take_up() == CheckpointRequest(request=2, wait=False)


def test_a_move_given_up_before_the_save_makes_nobody_wait() -> None:
    talk = Talk()
    talk.ask(1)
    talk.hear(go_on={"request": 1})
    assert talk.training.pending() is None
    talk.ask(1)  # late, by another way
    assert talk.training.pending() is None
    talk.ask(2)
    talk.training.take_up()
    talk.hear(go_on={"request": 2})

    assert talk.training.may_go_on(2)
    assert talk.training.wait_to_go_on(2, 0.0)
    assert not talk.training.wait_to_go_on(3, 0.0)


def test_ranks_that_do_not_do_are_refused_before_anything_is_saved() -> None:
    talk = Talk()
    talk.ask(1, world_size=3)
    assert talk.training.pending() is None
    words = {"request": 1, "message": "it cannot run on 3 ranks"}
    assert talk.sent() == [{"checkpoint_failed": words}]
    talk.ask(2, world_size=2)

    assert talk.training.take_up() == CheckpointRequest(request=2, wait=True, world_size=2)


def test_after_the_last_step_every_request_is_refused() -> None:
    talk = Talk()
    talk.ask(1)
    talk.training.over("done")
    assert talk.sent() == [{"checkpoint_failed": {"request": 1, "message": "done"}}]
    talk.ask(2)

    assert talk.sent() == [{"checkpoint_failed": {"request": 2, "message": "done"}}]


def test_only_the_newest_progress_waits_and_answers_are_not_lost_to_it() -> None:
    talk = Talk()
    talk.ask(1)
    talk.training.take_up()
    talk.training.saved(body(1))
    for step in range(1000):
        talk.training.progress({"step": step})
    talk.training.saved(body(0, step=9))

    assert talk.wakes >= 1000
    assert sorted(map(json.dumps, talk.sent())) == sorted(
        map(
            json.dumps,
            ({"checkpointed": body(1)}, {"checkpointed": body(0, 9)}, {"progress": {"step": 999}}),
        )
    )


def test_what_was_replaced_while_it_was_sent_is_sent_again() -> None:
    talk = Talk()
    talk.training.progress({"step": 1})
    ((key, line),) = talk.training.to_send()
    talk.training.progress({"step": 2})
    talk.training.sent(key, line)

    assert talk.sent() == [{"progress": {"step": 2}}]


def test_greeting_tells_what_was_saved_and_whether_the_training_waits() -> None:
    talk = Talk()
    fresh = json.loads(talk.training.greeting())
    talk.ask(1)
    talk.training.take_up()
    talk.training.begin_to_wait(1)
    talk.training.saved(body(1))
    waiting = json.loads(talk.training.greeting())
    talk.training.end_to_wait()

    assert fresh == {"hello": {"job": 7, "saved": None, "waiting": None}}
    assert waiting == {"hello": {"job": 7, "saved": body(1), "waiting": 1}}
    assert json.loads(talk.training.greeting())["hello"]["waiting"] is None


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[1]", b'"x"', b'{"checkpoint": 3}', b'{"checkpoint": {}}', b"\xff\xfe"]
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        Talk().training.hear(line)


def test_unknown_words_are_ignored() -> None:
    talk = Talk()
    talk.training.hear(b'{"dance": {"with": "me"}, "go_on": {"request": 1, "more": [2]}}')

    assert talk.training.may_go_on(1)


def test_link_carries_lines_and_comes_back() -> None:
    """A real socket; the listener drops the connection in between."""
    listener = Listener()
    link = NodeLink(listener.name)
    conversation = Conversation({"job": 7}, wake=link.wake, refuse=refuse_three)
    link.start(conversation)
    listener.wait_for("hello")
    listener.say(checkpoint={"request": 1})
    wait_until(conversation.pending)
    conversation.take_up()
    conversation.saved(body(1))
    listener.wait_for("checkpointed")
    listener.drop()
    hello = listener.wait_for("hello", count=2)
    conversation.progress({"step": 6})
    link.close(30.0)
    wait_until(lambda: listener.all("progress"))
    listener.close()

    assert hello["saved"] == body(1)
    assert listener.all("progress") == [{"step": 6}]


def test_link_without_a_listener_says_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    link = NodeLink("@gsched-nobody-is-here")
    link.start(Conversation({}, wake=link.wake, refuse=refuse_three))
    wait_until(lambda: link._has_complained)
    link.close(30.0)

    assert capsys.readouterr().err.count("no connection to the node daemon") == 1


def test_environment_is_read_and_nonsense_refused() -> None:
    assert Environment.read({}) == Environment()
    said = Environment.read(
        {
            "GSCHED_JOB_NUMBER": "7",
            "GSCHED_ATTEMPT": "2",
            "GSCHED_CHECKPOINT_DIR": "/c",
            "GSCHED_ELASTIC_SOCKET": "@x",
            "GSCHED_CHECKPOINT_INTERVAL_S": "0",
        }
    )
    assert said == Environment(job=7, attempt=2, directory="/c", socket="@x", interval_s=0.0)
    for text in ("often", "-1", "inf", "nan"):
        with pytest.raises(BadEnvironmentError, match="should be a number from 0"):
            Environment.read({"GSCHED_CHECKPOINT_INTERVAL_S": text})


def test_checkpoints_are_rarer_the_more_they_cost_and_more_frequent_on_more_gpus() -> None:
    """Young's formula by hand: sqrt(2 * 8 s * 50,678 h * 3600 / 4096 GPUs) is 844 s."""
    assert checkpoint_interval_s(8.0, 4096) == pytest.approx(844.2, abs=0.1)
    assert checkpoint_interval_s(8.0, 4096) < checkpoint_interval_s(9.0, 4096)
    assert checkpoint_interval_s(8.0, 4096) > checkpoint_interval_s(8.0, 4097)
    assert checkpoint_interval_s(8.0, 1) == 3600.0
    assert checkpoint_interval_s(0.0, 4096) == 30.0
    assert checkpoint_interval_s(None, 1) == 300.0
