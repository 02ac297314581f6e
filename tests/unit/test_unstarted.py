"""Elements of arrays that were cancelled before they started, in the history."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from gsched.model.arrays import format_spans, read_spans
from gsched.model.ids import INDICES, element_number, short_job_id
from gsched.model.states import OutcomeKind
from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from gschedd.store.purge import DAY_S, Keep
from gschedd.store.reader import HistoryFilter, HistoryTotals, Reader
from gschedd.store.unstarted import Unstarted
from tests.support.books import Books
from tests.support.world import ALICE, BEGIN_S


class Desk:
    """A head with one node, its history, and an array."""

    def __init__(self, directory: Path) -> None:
        self.books = Books(directory)
        self.books.register(cpus=4)
        self.reader = Reader(self.books.store.path)

    def array(self, spans: str, **changes: object) -> int:
        """Submit an array; those of its elements that may be jobs are."""
        array = self.books.submit(**{"array": spans, **changes})  # type: ignore[arg-type] # as named
        self.books.schedule()
        return array

    def delete(self, job: int, spans: str = "", message: str = "") -> None:
        """Cancel an array, a job, or some elements of an array, a second later."""
        self.books.now_s += 1
        command = c.ActOnJob(
            caller=ALICE,
            job=job,
            action=a.DeleteJob(message=message),
            elements=read_spans(spans) if spans else (),
        )
        self.books.take(self.books.head.command(command, self.books.now_s))

    def history(self, **wanted: object) -> tuple[list[str], HistoryTotals]:
        """Return the identifiers of what is listed, and the totals."""
        filtered = structs.replace(HistoryFilter(), **wanted)
        found, totals = self.reader.history(filtered)
        return [
            f"{array}[{format_spans(each.elements)}]"
            if isinstance(each, Unstarted)
            else f"{short_job_id(each.id)}{'[]' if each.spec.array else ''}"
            for each in found
            for array in [each.job.id // INDICES % INDICES if isinstance(each, Unstarted) else 0]
        ], totals


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.reader.close()
    desk.books.store.close()


def test_what_never_started_is_one_entry_whether_it_was_a_job_or_not(desk: Desk) -> None:
    """Four elements run, 256 wait as jobs, the others are none: one range, and the rest."""
    array = desk.array("0-1999")
    desk.books.exit(element_number(array, 0), code=3)
    desk.books.exit(element_number(array, 1))
    desk.delete(array)
    for index in (2, 3):
        desk.books.exit(element_number(array, index), code=1)

    listed, totals = desk.history()

    assert sorted(listed) == sorted(["1[]", "1[0]", "1[1]", "1[2]", "1[3]", "1[4-1999]"])
    assert (totals.jobs, totals.failed, totals.cancelled, totals.more) == (2000, 3, 1996, False)


def test_elements_are_counted_when_they_are_cancelled(desk: Desk) -> None:
    """Also while others of the array still run; each command has its range, and once only."""
    array = desk.array("0-999")
    desk.delete(array, "500-999")
    desk.delete(array, "100-299")
    desk.delete(array, "7")
    desk.delete(array, "400")

    listed, totals = desk.history()
    assert listed == ["1[400]", "1[7]", "1[100-299]", "1[500-999]"]
    assert (totals.jobs, totals.cancelled) == (702, 702)

    listed, totals = desk.history(since_s=BEGIN_S + 2, until_s=BEGIN_S + 3)
    assert (listed, totals.jobs) == (["1[100-299]"], 200)

    desk.delete(array)
    listed, totals = desk.history()
    assert listed == [
        "1[4-6,8-99,300-399,401-499]",
        "1[400]",
        "1[7]",
        "1[100-299]",
        "1[500-999]",
    ]
    assert totals.jobs == 1000 - 4, "four elements still run"


def test_the_first_and_the_message_of_a_range_are_told(desk: Desk) -> None:
    array = desk.array("0-999%4", name="many")
    desk.delete(array, "500-999", message="wrong data")

    [entry] = desk.reader.history(HistoryFilter())[0]

    assert isinstance(entry, Unstarted)
    assert (entry.job.id, entry.job.spec.name) == (element_number(array, 500), "many")
    assert entry.job.started_s is None
    assert entry.job.outcome is not None
    assert entry.job.outcome.kind is OutcomeKind.CANCELLED
    assert entry.job.outcome.message == "cancelled by alice before it started: wrong data"


def test_filters_hold_for_ranges(desk: Desk) -> None:
    """By user, name, queue, outcome, and by elements."""
    array = desk.array("0-999%4", name="many")
    desk.delete(array, "100-999")
    other = desk.array("0-9%4", name="few")
    desk.delete(other, "5-9")

    def jobs(**wanted: object) -> int:
        return desk.history(**wanted)[1].jobs

    assert jobs() == jobs(user="alice") == jobs(outcome="cancelled") == 905
    assert jobs(name="few") == 5
    assert jobs(queue="batch", name="m*") == 900
    assert jobs(user="bob") == jobs(outcome="exited") == jobs(failed=True) == 0
    assert jobs(ids=(array,)) == 0, "a plain number is the array alone"
    every = (element_number(array, 0), element_number(array, INDICES - 1))
    assert jobs(ids=(array,), elements=(every,)) == 900
    some = (element_number(array, 150), element_number(array, 159))
    assert desk.history(ids=(array,), elements=(some,))[0] == ["1[150-159]"]
    assert desk.history(ids=(element_number(array, 150),))[0] == ["1[150]"]


def test_the_limit_cuts_entries_and_says_so(desk: Desk) -> None:
    """A range is one entry, and the totals are over all."""
    array = desk.array("0-99%4")
    for spans in ("90-99", "80-89", "70-79"):
        desk.delete(array, spans)

    listed, totals = desk.history(limit=2)
    assert (listed, totals.jobs, totals.more) == (["1[70-79]", "1[80-89]"], 30, True)
    assert not desk.history(limit=3)[1].more


def test_ranges_have_few_spans(desk: Desk) -> None:
    """Every second index is one span with a step; holes stay holes."""
    array = desk.array("0-1998:2")
    desk.delete(array)
    assert desk.history()[0] == ["1[8-1998:2]"]


def test_an_element_that_was_altered_is_not_among_the_others(desk: Desk) -> None:
    """It has a name of its own, also in reports by name."""
    array = desk.array("0-999%8", name="many")
    changed = a.AlterJob(alteration=a.Alteration(name="odd"))
    command = c.ActOnJob(caller=ALICE, job=element_number(array, 5), action=changed)
    desk.books.take(desk.books.head.command(command, desk.books.now_s))
    desk.delete(array)

    assert sorted(desk.history()[0]) == ["1[4,6-999]", "1[5]"]
    assert desk.history(name="odd")[0] == ["1[5]"]
    assert desk.history(name="many")[0] == ["1[4,6-999]"]
    assert desk.history()[1].jobs == 996


def test_an_array_whose_dependency_fails_is_cancelled_as_its_elements(desk: Desk) -> None:
    first = desk.books.submit()
    desk.books.schedule()
    array = desk.array("0-499", depends=(f"afterok:{first}",))
    desk.books.exit(first, code=1)

    listed, totals = desk.history()

    assert sorted(listed) == ["1", "2[0-499]", "2[]"]
    assert (totals.jobs, totals.failed, totals.cancelled) == (501, 1, 500)
    [job] = desk.reader.jobs([array])
    assert job.outcome is not None
    assert "500 cancelled: its dependency afterok:1 can never be satisfied" in job.outcome.message


def test_the_entries_of_purged_arrays_are_gone(desk: Desk) -> None:
    """With the rows of the array their events are removed."""
    array = desk.array("0-99%4")
    desk.delete(array, "50-99")
    assert desk.history()[1].jobs == 50
    desk.delete(array)
    for index in range(4):
        desk.books.exit(element_number(array, index))
    desk.books.store.purge(Keep(jobs_days=1.0), desk.books.now_s + 2 * DAY_S)

    listed, totals = desk.history()

    assert (listed, totals.jobs, totals.cancelled) == ([], 0, 0)
