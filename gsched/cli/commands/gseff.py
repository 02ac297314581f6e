"""``gseff``: what jobs requested beside what they used, and what to request next time."""

from collections.abc import Sequence
from itertools import islice

from gsched.cli.common import connected, gsched_command, print_json, printable, report_errors
from gsched.cli.operands import jobs_argument
from gsched.cli.running import runner
from gsched.cli.show.efficiency import Efficiency, efficiency_of, lines_of
from gsched.client import HeadClient
from gsched.errors import GschedError
from gsched.head_calls import body_of
from gsched.model.arrays import indices, read_spans
from gsched.protocol.api import ErrorBody
from gsched.protocol.job_rows import JobRow, JobStory

PAST_MOST = 20  # past jobs of the same name that are looked at; each is a request
ELEMENTS_MOST = 1000  # elements of an array that are looked at

EPILOG = """\b
Examples:
  gseff 17                            requested, used, and what to request next time
  gseff 17 --json | jq .jobs[0].next
"""


@gsched_command("gseff", epilog=EPILOG)
@jobs_argument
@connected
def gseff(head: HeadClient, *, jobs: tuple[str, ...], as_json: bool) -> int:
    """Show how much of its request each JOB has used.

    The advice for the next time rests on the job and on the newest successful jobs of the same user
    and name.
    """
    found: list[Efficiency] = []
    errors: dict[str, ErrorBody] = {}
    for job in jobs:
        try:
            story = head.job(job)
            found.append(efficiency_of(story, _past(head, story), _elements(head, story)))
        except GschedError as error:
            errors[job] = body_of(error)
            continue
        if not as_json:
            print("\n".join(printable(line) for line in lines_of(found[-1])))
    if as_json:
        print_json({"jobs": found, "errors": errors})
    return report_errors(errors.items(), as_json=as_json)


def _past(head: HeadClient, story: JobStory) -> list[JobStory]:
    """Return past jobs of the same user and name, newest first."""
    row = story.row
    if row.outcome is None:
        return []
    rows = head.history(user=row.user, name=row.name, limit=PAST_MOST).jobs
    return [head.job(each.id) for each in rows if each.id != row.id and each.name == row.name]


def _elements(head: HeadClient, story: JobStory) -> Sequence[JobRow]:
    """Return the elements of an array, the first `ELEMENTS_MOST` of them; of other jobs none."""
    array = story.row.array
    if array is None:
        return ()
    numbers = islice(indices(read_spans(array.indices)), ELEMENTS_MOST)
    return head.jobs([f"{story.row.id}[{index}]" for index in numbers]).jobs


main = runner(gseff)

if __name__ == "__main__":
    main()
