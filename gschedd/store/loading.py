"""What a head that starts reads from its database."""

import gc
import sqlite3
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, TypeVar

from gsched.model.states import PowerState
from gschedd.core.apply.jobs import add_job
from gschedd.core.state import facts as f
from gschedd.core.state.keys import MAX_ENDED_KEYS
from gschedd.core.state.ledger import refresh_space
from gschedd.core.state.limit_use import load_budgets
from gschedd.core.state.records import Attempt
from gschedd.core.state.state import State
from gschedd.core.training import move_costs as movecosts
from gschedd.core.training import startups
from gschedd.core.training import step_times as steptimes
from gschedd.store import rows
from gschedd.store.seals import Damaged, DamagedRowError, owned_by

#: A fact from which something is learned.
Measured = TypeVar("Measured", f.StartupMeasured, f.StepsMeasured, f.MigrationMeasured)

#: Of each kind of these facts so many of the newest are learned anew by a head that starts.
LEARNED_AGAIN: Final = 2_000


def load(db: sqlite3.Connection, state: State) -> list[Damaged]:
    """Fill an empty state with all that is not over; return what could not be read."""
    collects = gc.isenabled()
    gc.disable()  # none of it is garbage: with 100,000 jobs looking for some takes 0.5 s
    try:
        return _load(db, state)
    finally:
        if collects:
            gc.enable()


def _load(db: sqlite3.Connection, state: State) -> list[Damaged]:
    damaged: list[Damaged] = []
    for row in db.execute(rows.SELECT_NODES + "ORDER BY name"):
        try:
            node = rows.read_node(row)
        except DamagedRowError as error:
            damaged.append(error.damaged)  # it is known anew when it registers
            state.damaged_nodes.add(str(row[0]))
            continue
        state.nodes[node.name] = node
        marks = (
            (state.vacating, node.vacating),
            (state.on_probation, node.probation.due_s),
            (state.powered, node.power.state is not PowerState.ON),
        )
        for names, is_marked in marks:
            if is_marked:
                names.add(node.name)
        state.windowed.put(node.name, node.windows, node.window_number)
        if node.identity:
            state.names_of.setdefault(node.identity, node.name)
        refresh_space(state, node)
    reservations = db.execute(rows.SELECT_RESERVATIONS)
    kept = rows.whole(rows.read_reservation, reservations, damaged)
    state.reservations.update((each.name, each) for each in kept)
    usage = rows.whole(rows.read_usage, db.execute(rows.SELECT_USAGE), damaged)
    state.usage.rows.update(((each.project, each.user), each) for each in usage)
    load_budgets(state, state.limits)
    attempts: dict[int, Attempt] = {}
    for row in db.execute(rows.SELECT_LIVE_ATTEMPTS):
        try:
            attempts[row[0]] = rows.read_attempt(row)
        except DamagedRowError as error:
            damaged.append(error.damaged)
    state.damaged.update((each.job, {}) for each in damaged if each.job)
    _load_jobs(db, state, attempts, damaged)
    state.damaged = owned_by(db, state.damaged)
    for job, attempt in attempts.items():
        if job in state.damaged:
            state.damaged[job].update(dict.fromkeys(attempt.parts, attempt.number))
    _learn_again(db, state, damaged)
    _load_keys(db, state)
    return damaged


def _load_keys(db: sqlite3.Connection, state: State) -> None:
    """Load the client keys of the newest jobs that have ended, and of those that are damaged."""
    ended = (
        "SELECT uid, client_key, id FROM (SELECT uid, client_key, id FROM jobs "
        "WHERE client_key IS NOT NULL AND state = 'done' ORDER BY id DESC LIMIT ?) ORDER BY id"
    )
    one = "SELECT uid, client_key, id FROM jobs WHERE client_key IS NOT NULL AND id = ?"
    found = [db.execute(one, (job,)) for job in state.damaged]
    for uid, key, job_id in chain(db.execute(ended, (MAX_ENDED_KEYS,)), *found):
        state.keys.note_ended(uid, key, job_id)


def _load_jobs(
    db: sqlite3.Connection, state: State, attempts: Mapping[int, Attempt], damaged: list[Damaged]
) -> None:
    """Load the jobs that are not done; those with a damaged row or attempt are left out."""
    reader = rows.SpecReader()
    for row in _job_rows(db):
        try:
            job = rows.read_job(row, reader)
        except DamagedRowError as error:
            damaged.append(error.damaged)
            state.damaged[error.damaged.job] = {}
            continue
        if job.id in state.damaged:
            continue
        job.attempt = attempts.get(job.id)
        add_job(state, job)
        if job.spec.client_key:
            state.keys.note(job.spec.owner.uid, job.spec.client_key, job.id)


def _job_rows(db: sqlite3.Connection) -> Iterator[rows.Row]:
    """Yield the rows of jobs that are not done; only where a text is damaged Python decodes them.

    That takes a tenth of the time of a start with 100,000 jobs.
    """
    query = rows.SELECT_JOBS + "WHERE jobs.state <> 'done' AND jobs.id > ? ORDER BY jobs.id"
    last, tolerant = 0, db.text_factory
    db.text_factory = str
    try:
        for row in db.execute(query, (last,)):
            last = row[0]
            yield row
    except sqlite3.OperationalError:  # of the row behind the last one, and maybe of no text
        db.text_factory = tolerant
        yield from db.execute(query, (last,))
    finally:
        db.text_factory = tolerant


def _learn_again(db: sqlite3.Connection, state: State, damaged: list[Damaged]) -> None:
    """Restore the measured times of training jobs: of starts, steps and migrations."""
    for startup in _newest(db, f.StartupMeasured, damaged):
        startups.learn(state, startup)
    for steps in _newest(db, f.StepsMeasured, damaged):
        steptimes.learn(state, steps)
    for move in _newest(db, f.MigrationMeasured, damaged):
        movecosts.learn(state, move)


def _newest(
    db: sqlite3.Connection, kind: type[Measured], damaged: list[Damaged]
) -> Iterator[Measured]:
    """Yield the newest facts of a kind that has an index of its own, oldest first."""
    # The kind stands in the text, as SQLite uses a partial index only for a constant.
    query = f"{rows.SELECT_EVENTS} WHERE kind = '{kind.__name__}' ORDER BY seq DESC LIMIT ?"
    found = reversed(db.execute(query, (LEARNED_AGAIN,)).fetchall())
    for fact in rows.whole(rows.read_event, found, damaged):
        if isinstance(fact, kind):
            yield fact
