"""What queries ask for: the fields of a query string, and which past jobs a caller gets."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import structs

from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.arrays import read_spans
from gsched.model.ids import INDICES, JobId, element_number, own_job
from gsched.model.limits import MAX_HISTORY_ROWS, MAX_PATTERN_WILDCARDS, MAX_WORD, shown
from gsched.model.states import JobState
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.state.settings import Caller
from gschedd.store.reader import HistoryFilter

COMMA: Final = re.compile(r",(?![^\[]*\])")  # between ids, not between indices of elements


def history_filter(query: Mapping[str, str], *, server: str) -> HistoryFilter:
    """Return which past jobs a query asks for, of the head named ``server``.

    Raises:
        InvalidRequestError: a number that is none.
        UnknownJobError: an id that is none, or of another head.
    """
    outcome = query.get("outcome", "")
    check_pattern(query.get("name", ""))
    jobs = [own_job(text, server=server) for text in COMMA.split(query.get("ids", "")) if text]
    return HistoryFilter(
        ids=tuple(_past_number(job) for job in jobs),
        elements=tuple(span for job in jobs for span in _past_elements(job)),
        user=query.get("user", ""),
        queue=query.get("queue", ""),
        name=query.get("name", ""),
        outcome="" if outcome == "failed" else outcome,
        failed=outcome == "failed",
        since_s=read_number(query["since"], "since") if query.get("since") else None,
        until_s=read_number(query["until"], "until") if query.get("until") else None,
        limit=max(1, min(int(read_number(query.get("limit", "1000"), "limit")), MAX_HISTORY_ROWS)),
    )


def own_history(wanted: HistoryFilter, caller: Caller) -> HistoryFilter:
    """Return which past jobs a caller gets of those that are wanted: in private mode the own ones.

    Raises:
        NotPermittedError: those of another user are wanted.
    """
    if not caller.is_private or may(caller, Verb.READ_JOB):
        return wanted
    if wanted.user not in {"", caller.user}:
        raise NotPermittedError(
            f"this cluster shows users their own past jobs only, not those of {wanted.user}",
            hint="leave the user out",
        )
    return structs.replace(wanted, user=caller.user)


def _past_number(job: JobId) -> int:
    return job.number if job.element is None else element_number(job.number, job.element)


def _past_elements(job: JobId) -> Iterator[tuple[int, int]]:
    """Yield the first and last numbers of elements that are meant beside the job itself."""
    if job.elements == "[]":
        yield element_number(job.number, 0), element_number(job.number, INDICES - 1)
    elif job.elements and job.element is None:
        for span in read_spans(job.elements[1:-1]):
            yield element_number(job.number, span.first), element_number(job.number, span.last)


def check_pattern(pattern: str) -> None:
    """Check a pattern of job names; each wildcard may be tried at each place of each name.

    Raises:
        InvalidRequestError: it is too long, or has too many wildcards.
    """
    wildcards = sum(pattern.count(each) for each in "*[")
    if len(pattern) > MAX_WORD or wildcards > MAX_PATTERN_WILDCARDS:
        raise InvalidRequestError(
            f"a pattern of {len(pattern)} characters with {wildcards} wildcards: "
            f"{MAX_WORD} and {MAX_PATTERN_WILDCARDS} are the limits",
            hint="give a simpler pattern",
        )


def states_of(text: str) -> set[JobState]:
    """Return the states that a query names, by their letters or words."""
    states: set[JobState] = set()
    letters = {state.letter: state for state in JobState}
    for word in filter(None, text.split(",")):
        state = letters.get(word.upper()) or next((s for s in JobState if s == word.lower()), None)
        if state is None:
            known = ", ".join(JobState)
            raise InvalidRequestError(f"state {shown(word)} is not known", hint=f"one of {known}")
        states.add(state)
    return states


def read_number(text: str, name: str) -> float:
    """Return the number in a query; ``name`` is its field, for the refusal."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidRequestError(f"{name}={shown(text)} is not a number")
    return value
