"""What a node keeps of heads and of ended attempts, as a witness against old copies."""

from pathlib import Path

import pytest

from gnode.core import effects as do
from gnode.core.agent import MARK_SAVE_S
from gnode.core.inputs import (
    AlarmRang,
    HeadOffered,
    HeadOrder,
    Recalled,
    SpoolFound,
    SurveyReceived,
    Welcomed,
)
from gnode.core.mark import HeadMark
from gnode.core.task import AttemptKey
from gnode.daemon.ended import EndedLog
from gnode.daemon.removals import RecordRemoval
from gsched.model.origin import Origin
from gsched.model.states import OutcomeKind, PartState, StopReason
from gsched.protocol.node import (
    ExitAck,
    Exited,
    HighWater,
    KnownAttempt,
    Launch,
    StopAttempt,
    SurveyAttempts,
)
from tests.support.agent_driver import Driver, exits, only, order, record
from tests.support.disks import fill, free, small_disk

KEY = AttemptKey(1, 1)
SURVEY = SurveyAttempts(first_unknown=5, unfinished=(2,))


def test_how_far_the_head_has_come_is_kept_soon_and_in_one_write() -> None:
    """Each write costs a flush, so not each message is one."""
    driver = Driver()
    driver.launch(order(41))
    driver.step(HeadOrder(message=HighWater(seq=70, next_job=44)))
    driver.step(HeadOrder(message=HighWater(seq=71, next_job=45)))
    assert only(driver.done, do.SaveMark) == []

    driver.now_s += MARK_SAVE_S
    saved = driver.step(AlarmRang())

    mark = HeadMark(cluster="c", epoch=1, seq=71, next_job=45, highest_job=41)
    assert saved == [do.SaveMark(mark=mark)]
    assert driver.step(AlarmRang()) == []


def test_an_equal_epoch_of_another_start_is_refused() -> None:
    """Two heads on copies of one database count the same numbers; their ids differ."""
    mark = HeadMark(cluster="c", epoch=5, epoch_id="aa", seq=9, next_job=3)
    driver = Driver(mark=mark, welcome=False)

    warned, told = driver.step(HeadOffered(cluster="c", epoch=5, epoch_id="bb"))
    assert isinstance(warned, do.Warn)
    assert isinstance(told, do.SendRegister)
    assert told.mark == mark
    (refused,) = driver.step(Welcomed(cluster="c", epoch=5, epoch_id="bb"))
    assert isinstance(refused, do.RefuseHead)
    assert "one of the two heads runs on a copy" in refused.message
    assert driver.step(Welcomed(cluster="c", epoch=5, epoch_id="aa", seq=9, next_job=3)) == []
    assert driver.agent.welcomed


# --- attempts of another history ---


def origin(token: str = "aa") -> Origin:
    return order(token=token).origin


def of(token: str, job: int = 1, attempt: int = 1) -> Launch:
    return order(job, attempt, token=token)


def run(driver: Driver, launch: Launch) -> None:
    driver.launch(launch)
    driver.forked(launch.job, launch.attempt)
    driver.seen(launch.job, launch.attempt)
    driver.done.clear()


def told(effects: list[do.Effect]) -> list[Exited]:
    messages = [effect.message for effect in only(effects, do.SendToHead)]
    return [message for message in messages if isinstance(message, Exited)]


def test_a_launch_with_the_number_of_another_history_starts_nothing_and_says_so() -> None:
    """The head hears why, and the attempt that is there runs on."""
    driver = Driver()
    run(driver, of("aa"))

    effects = driver.launch(of("bb"))

    assert only(effects, do.AcceptTask) == []
    (answer,) = told(effects)
    assert (answer.token, answer.record.kind) == ("bb", OutcomeKind.LAUNCH_FAILED)
    assert "a history that the head does not know" in answer.record.message
    assert driver.agent.attempts[KEY].live


def test_orders_for_the_same_number_in_another_history_do_nothing() -> None:
    """Neither a stop nor an acknowledgement."""
    driver = Driver()
    run(driver, of("aa"))
    stop = StopAttempt(job=1, attempt=1, reason=StopReason.FENCED, grace_s=0.0, token="bb")
    assert only(driver.step(HeadOrder(message=stop)), do.CommandSupervisor) == []
    (ended,) = told(driver.ended())
    assert ended.token == "aa"

    driver.step(HeadOrder(message=ExitAck(job=1, attempt=1, token="bb")))
    driver.now_s += 61
    assert only(driver.step(AlarmRang()), do.RemoveSpool) == []
    driver.step(HeadOrder(message=ExitAck(job=1, attempt=1, token="aa")))
    driver.now_s += 61

    assert only(driver.step(AlarmRang()), do.RemoveSpool)


# --- ended attempts ---


def bury(driver: Driver, launch: Launch) -> KnownAttempt:
    """Let an attempt run, end, be acknowledged and be removed."""
    run(driver, launch)
    driver.ended(launch.job, launch.attempt, code=3)
    driver.ack(launch.job, launch.attempt)
    driver.now_s += 61
    effects = driver.step(AlarmRang())
    kinds = [type(effect) for effect in effects if isinstance(effect, do.Bury | do.RemoveSpool)]
    assert kinds == [do.Bury, do.RemoveSpool]
    (buried,) = only(effects, do.Bury)
    driver.done.clear()
    return buried.known


def test_what_is_removed_is_buried_first() -> None:
    """With all that a head needs to adopt it."""
    known = bury(Driver(), of("aa"))

    assert (known.job, known.attempt, known.state) == (1, 1, PartState.ENDED)
    assert known.exit == record(code=3)
    assert known.origin == origin("aa")


def test_a_launch_of_a_buried_attempt_is_answered_with_its_end() -> None:
    """It is not dropped without a word, and not run again."""
    driver = Driver()
    known = bury(driver, of("aa"))
    launch = of("aa")

    (recall,) = only(driver.launch(launch), do.RecallEnded)
    effects = driver.step(Recalled(launch=recall.launch, found=known))

    assert [(exited.record, exited.token) for exited in told(effects)] == [(record(code=3), "aa")]
    driver.ack()
    driver.now_s += 61
    effects = driver.step(AlarmRang())
    assert only(effects, do.Bury) == [], "it is in the log already"
    assert only(effects, do.RemoveSpool) == []


def test_a_launch_of_which_nobody_knows_the_end_any_more_is_answered() -> None:
    """Also of an attempt that a later one has replaced."""
    driver = Driver()
    bury(driver, of("aa", attempt=2))

    (recall,) = only(driver.launch(of("aa", attempt=1)), do.RecallEnded)
    (answer,) = told(driver.step(Recalled(launch=recall.launch, found=None)))

    assert (answer.record.kind, answer.token) == (OutcomeKind.NODE_LOST, "aa")
    assert "does not know any more how it ended" in answer.record.message


def test_the_end_of_another_history_answers_no_launch() -> None:
    """The job with this number is another one."""
    driver = Driver()
    known = bury(driver, of("aa"))

    (recall,) = only(driver.launch(of("bb")), do.RecallEnded)
    (answer,) = told(driver.step(Recalled(launch=recall.launch, found=known)))

    assert (answer.record.kind, answer.token) == (OutcomeKind.LAUNCH_FAILED, "bb")
    assert only(driver.done, do.AcceptTask) == []


def test_a_restarted_node_knows_what_is_buried() -> None:
    """Else it would run it again."""
    driver = Driver()
    driver.step(SpoolFound(found=(), ended=(KEY,)))

    effects = driver.launch(of("aa"))

    assert [type(effect) for effect in effects] == [do.RecallEnded]


def test_a_surveyed_node_tells_all_and_obeys_nothing() -> None:
    """The head asks in place of a welcome: the node keeps its mark, its jobs run on."""
    mark = HeadMark(cluster="c", epoch=9, epoch_id="xx", seq=50, next_job=7)
    driver = Driver(mark=mark)
    run(driver, of("aa"))
    driver.step(HeadOffered(cluster="c", epoch=4, epoch_id="yy"))
    driver.agent.step(Welcomed(cluster="c", epoch=4, epoch_id="yy"), driver.now_s, 0.0)
    fresh = Driver(mark=mark, welcome=False)

    (tell,) = only(driver.step(SurveyReceived(survey=SURVEY)), do.TellKnown)

    assert [(known.job, known.token) for known in tell.attempts] == [(1, "aa")]
    assert only(fresh.step(SurveyReceived(survey=SURVEY)), do.TellKnown)
    assert only(fresh.launch(of("bb", job=6)), do.AcceptTask) == []
    assert only(fresh.done, do.SaveMark) == []


# --- the log of ended attempts ---


@pytest.fixture
def log(tmp_path: Path) -> EndedLog:
    return EndedLog(str(tmp_path), lines_max=3)


def known_of(job: int, token: str = "aa") -> KnownAttempt:
    return KnownAttempt(
        job=job, attempt=1, state=PartState.ENDED, exit=record(job), origin=origin(token)
    )


def test_what_was_added_is_read_again(log: EndedLog, tmp_path: Path) -> None:
    log.add([known_of(1), known_of(2)])

    again = EndedLog(str(tmp_path))
    assert list(again.read()) == [known_of(1), known_of(2)]
    assert again.find(AttemptKey(2, 1)) == known_of(2)
    assert again.find(AttemptKey(3, 1)) is None
    assert again.keys() == (AttemptKey(1, 1), AttemptKey(2, 1))


def test_the_log_is_bounded_and_keeps_the_newest(log: EndedLog, tmp_path: Path) -> None:
    for job in range(1, 21):
        log.add([known_of(job)])

    kept = [known.job for known in log.read()]
    assert kept == list(range(21 - len(kept), 21))
    assert 3 <= len(kept) <= 6
    assert len(list(tmp_path.iterdir())) == 2


def test_a_torn_line_costs_only_itself(log: EndedLog) -> None:
    """The machine lost power while it was written."""
    log.add([known_of(1)])
    with open(log.paths[0], "ab") as file:
        file.write(b'{"job":2,"att')

    log.add([known_of(3)])

    assert [known.job for known in log.read()] == [1, 3]


def test_what_a_full_disk_does_not_take_is_kept_and_written_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        log = EndedLog(str(disk))
        log.add([known_of(1)])
        fill(disk)
        jobs = range(2, 100)  # more than the last page of the file has room for
        with pytest.raises(OSError, match="No space left"):
            log.add([known_of(job) for job in jobs])
        assert [known.job for known in log.read()] == list(range(1, 100))
        assert log.find(AttemptKey(99, 1)) == known_of(99)
        assert [known.job for known in EndedLog(str(disk)).read()] == [1], "a part was written"

        free(disk)
        log.add([known_of(100)])

        assert [known.job for known in EndedLog(str(disk)).read()] == list(range(1, 101))
        assert list(log.read()) == list(EndedLog(str(disk)).read())


@pytest.fixture
def removed() -> list[int]:
    """The jobs whose records are removed, in order."""
    return []


def removal_on(disk: Path, removed: list[int]) -> RecordRemoval:
    """Return a removal whose records take one page of the disk each."""

    def remove(key: AttemptKey) -> str | None:
        removed.append(key.job)
        (disk / key.name).unlink()
        return None

    return RecordRemoval(
        EndedLog(str(disk)),
        remove=remove,
        clear=pytest.fail,
        gone=lambda _: None,
        start=lambda work: work.close(),
    )


def ends_of(disk: Path, *jobs: int) -> list[do.Bury | do.RemoveSpool]:
    """Return the effects of attempts that have ended, whose records are on the disk."""
    effects: list[do.Bury | do.RemoveSpool] = []
    for job in jobs:
        key = AttemptKey(job, 1)
        (disk / key.name).write_bytes(b"record")
        effects += [do.Bury(known=known_of(job)), do.RemoveSpool(key=key)]
    return effects


def test_records_stay_until_their_log_is_written(tmp_path: Path, removed: list[int]) -> None:
    """A gnode that is killed while its disk is full must find them when it starts again."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        removal = removal_on(disk, removed)
        batch = ends_of(disk, *range(1, 31))  # more than a page of lines
        fill(disk)

        left, rest = removal.work(batch)
        left_again, rest_again = removal.work(rest)

        assert removed == []
        assert left == left_again == []
        keys = [AttemptKey(job, 1) for job in range(1, 31)]
        assert rest == rest_again == [do.RemoveSpool(key=key) for key in keys]

        free(disk)

        assert removal.work([*rest, *ends_of(disk, 31)]) == ([], [])
        assert removed == list(range(1, 32))
        assert [known.job for known in EndedLog(str(disk)).read()] == list(range(1, 32))


def test_a_survey_gets_what_it_asks_for_and_the_newest_of_it(log: EndedLog) -> None:
    """What is still in the spool stands over what the log holds; histories stay apart."""
    log.add([known_of(1), known_of(2), known_of(6)])
    log.add([known_of(7), known_of(7, token="bb")])
    running = KnownAttempt(job=7, attempt=1, state=PartState.RUNNING, origin=origin("bb"))
    asked = do.TellKnown(attempts=(known_of(3), running), survey=SURVEY)

    answer = log.answer(asked)

    assert set(answer) == {known_of(2), known_of(6), known_of(7), running}


def test_a_later_attempt_still_fences_an_older_one() -> None:
    driver = Driver()
    bury(driver, of("aa"))

    assert exits(driver.launch(of("aa", attempt=2))) == []
    assert only(driver.done, do.AcceptTask)
