"""Safe mode: the database may be an old copy, so nothing is started, changed or given an id.

Nodes are asked what they know. An operator sees it, and accepts; then it is taken back, and the
head goes on beyond all that anybody knows. A database that is a mere copy, of which every known
node confirms that nothing is missing, needs no operator.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from msgspec import structs

from gsched.errors import BadStateError, TryAgainError, UnknownNodeError
from gsched.model.wording import outcome_words
from gsched.protocol import node as n
from gsched.protocol import recover
from gschedd.core.apply.nodes import SAFE_ID_JUMP
from gschedd.core.head import Head
from gschedd.core.recovery.adopt import Case, Hold, Survey, cases_of, held_jobs
from gschedd.core.state.step import Step
from gschedd.engine.loop import Engine
from gschedd.http.links import Links
from gschedd.http.witnesses import Witnesses
from gschedd.store.lineage import Opened
from gschedd.store.sqlite import Store

log = logging.getLogger("gschedd")


class SafeMode:
    """Enters and ends safe mode, and lists what the nodes know.

    Args:
        engine, store, links, witnesses: of this head.
        opened: what the store held; its epoch is this head's.
        was_there: whether the database knows a job, done or not.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        links: Links,
        witnesses: Witnesses,
        opened: Opened,
        was_there: Callable[[int], Awaitable[bool]],
    ) -> None:
        self._engine = engine
        self._head: Head = engine.head
        self._store = store
        self._links = links
        self._witnesses = witnesses
        self._was_there = was_there
        self.opened = opened
        self._survey: Survey | None = None
        self._late: dict[str, Survey] = {}
        self._taken: set[str] = set()  # nodes of which all that they know is durable here
        self._unnoted = ""  # why it is safe mode, where the database does not say so yet
        self._accepting = asyncio.Lock()
        if opened.behind:
            self._enter(opened.behind, opened.forgotten_from)

    # --- begin ---

    def _enter(self, why: str, forgotten_from: int) -> None:
        log.critical("SAFE MODE: %s. Nothing is started until: gsched recover --accept", why)
        self._head.safe_mode = f"safe mode ({why}); an operator ends it with gsched recover"
        self._survey = Survey(forgotten_from)
        self._late, self._taken = {}, set()

    async def on_older_head(self, why: str) -> None:
        """Enter safe mode for what nodes know better; a restart does not end it."""
        entered = self._survey is None
        if entered:
            self._enter(why, self.opened.lineage[-1].first_job)
        elif self.opened.is_copy:  # no mere copy: something is missing
            self._head.safe_mode = f"safe mode ({why}); an operator ends it with gsched recover"
        elif not self._unnoted:
            return
        try:
            await self._note(why)
        except TryAgainError as error:
            log.error("safe mode is not noted in the database yet, a restart ends it: %s", error)
        finally:
            if entered:
                await self._links.close()  # all nodes come back, and are asked

    async def _note(self, why: str) -> None:
        """Make durable that it is safe mode; where that fails, the next call tries it again."""
        assert self._survey is not None, "safe mode"
        first = self._survey.first_unknown
        self._unnoted = why
        self.opened = structs.replace(self.opened, behind=why, is_copy=False, forgotten_from=first)
        await self._engine.in_writer(lambda: self._store.note_loss(why, forgotten_from=first))
        self._unnoted = ""

    # --- what nodes know ---

    def question(self, node: str, *, late: bool) -> n.SurveyAttempts | None:
        """Return what a node that registers is to be asked; None: it is let in at once."""
        survey = self._survey
        if survey is None and late:
            if node in self._taken:
                return None  # all of it has been taken back: now it may come in
            accepted = [epoch for epoch in self.opened.lineage if epoch.accepted]
            survey = self._late[node] = Survey(min(epoch.prev_job for epoch in accepted))
        if survey is None:
            return None
        survey.begin(node)
        return survey.question(self._head.state)

    async def take_known(self, node: str, known: n.KnownAttempts) -> bool:
        """Take in what a node knows; return whether it is to come again, to be let in."""
        survey = self._survey or self._late.get(node)
        if survey is None:
            return True
        survey.take(node, known)
        if not known.done:
            return False
        if survey is self._survey:
            return self._is_confirmed(survey) and not await self._accept_copy()
        try:
            await self._engine.settled()
            await self._look_up(survey)
            steps = await self._engine.ask(lambda now_s: (self._head.adopt(survey, now_s),))
        except TryAgainError as error:
            log.error("what %s knows is not taken back yet: %s; it is asked again", node, error)
            return True
        self._taken.add(node)
        count = sum(len(step.facts) for step in steps)
        log.warning("%s comes from a lost history: %d facts taken back from it", node, count)
        return True

    async def _accept_copy(self) -> bool:
        """End safe mode without an operator; return False if that must be tried again."""
        log.warning("all nodes confirm that the copied database is complete: going on")
        try:
            await self.accept()
        except TryAgainError as error:
            log.error("safe mode cannot end yet: %s", error)
            return False
        return True

    async def _look_up(self, survey: Survey) -> None:
        """Find out which of the jobs that nodes know are done here."""
        for job in survey.doubtful(self._head.state):
            if await self._was_there(job):
                survey.finished.add(job)

    def _is_confirmed(self, survey: Survey) -> bool:
        """Return whether every known node says that nothing is missing."""
        known = self._head.state.nodes.keys()
        return (
            self.opened.is_copy
            and bool(known)
            and known <= survey.done
            and not self._witnesses.claims
        )

    # --- what an operator sees and does ---

    async def listing(self) -> recover.RecoverReply:
        """Return why it is safe mode, and what accepting would do."""
        survey, head = self._survey, self._head
        witnesses = self._witnesses
        if survey is None:
            return recover.RecoverReply(quarantined=dict(witnesses.quarantined))
        await self._look_up(survey)
        missing = self._missing(survey)
        cases = cases_of(head.state, survey)
        held = held_jobs(head.state, cases, self._hold(missing))
        return recover.RecoverReply(
            safe_mode=head.safe_mode,
            nodes=tuple(sorted(survey.done)),
            missing=missing,
            first_unknown=survey.first_unknown,
            next_job=self._needed_job(),
            cases=tuple(self._row(case) for case in (*cases, *held)),
            dropped=survey.dropped,
            quarantined=dict(witnesses.quarantined),
        )

    def _row(self, case: Case) -> recover.RecoverCase:
        job = self._head.state.jobs.get(case.job)
        spec = job.spec if job is not None else case.origin.spec if case.origin else None
        ends = [known.exit for known in case.parts.values() if known.exit is not None]
        return recover.RecoverCase(
            job=case.job,
            kind=case.kind.value,
            attempt=case.attempt,
            nodes=tuple(sorted(case.parts)),
            user=spec.owner.user if spec is not None else "",
            name=spec.name if spec is not None else "",
            script=case.origin.spec.script_digest if case.origin is not None else "",
            text=case.why or "; ".join(outcome_words(end.outcome()) for end in ends),
        )

    def _missing(self, survey: Survey) -> tuple[str, ...]:
        """Return the known nodes that have not said what they know."""
        return tuple(sorted(self._head.state.nodes.keys() - survey.done))

    def _hold(self, missing: Iterable[str]) -> Hold:
        if self.opened.is_copy and not self._witnesses.claims:
            return Hold.ALL if list(missing) else Hold.NOTHING
        return Hold.ALL if list(missing) else Hold.ONCE_ONLY

    def _needed_job(self) -> int:
        """Return the id from which on none has been given out, as far as anybody knows."""
        claims = self._witnesses.claims.values()
        here = self._head.state.next_job
        needed = max((claim.needs_job for claim in claims), default=here)
        if needed > here or self.opened.is_copy:
            return max(needed, here) + SAFE_ID_JUMP
        return here  # it was raised when the loss was found

    def believe(self, node: str) -> None:
        """Take the word of a node that is refused: an operator knows that it is true.

        Raises:
            UnknownNodeError: no such node is refused.
        """
        if node not in self._witnesses.quarantined:
            raise UnknownNodeError(
                f"node {node} is not refused for what it claims", hint="see gsched recover"
            )
        self._witnesses.believed.add(node)

    async def accept(self, *, without: bool = True) -> None:
        """End safe mode; nodes come back, and all is compared anew.

        Args:
            without: go on although known nodes have not said what they know.

        Raises:
            BadStateError: such nodes are missing.
        """
        async with self._accepting:
            if self._survey is None:
                return
            await self._accept(self._survey, without=without)
        await self._engine.tell(lambda _now_s: ())  # it looks what there is to do again
        await self._links.close()

    async def _accept(self, survey: Survey, *, without: bool) -> None:
        head, witnesses = self._head, self._witnesses
        missing = self._missing(survey)
        if missing and not without:
            raise BadStateError(
                f"{', '.join(missing)} not connected: what runs or ran there since is not known",
                hint="start gnode there; or add --without-nodes: then all jobs that wait are held",
            )
        if self._unnoted:
            await self._note(self._unnoted)
        await self._engine.settled()  # what an earlier try took back must not be taken twice
        await self._look_up(survey)
        hold, needed = self._hold(missing), self._needed_job()
        claims = list(witnesses.claims.values())
        taken: set[str] = set()

        def begin() -> None:
            accepted = self._store.accept_loss(
                number=max((claim.epoch for claim in claims), default=0),
                seq=max((claim.seq for claim in claims), default=0),
                next_job=needed,
                forgotten_from=survey.first_unknown,
            )
            self.opened = structs.replace(self.opened, lineage=accepted.lineage, seq=accepted.seq)

        def take_back(now_s: float) -> list[Step]:
            head.state.next_job = max(head.state.next_job, needed)
            head.state.epoch_id = self.opened.epoch_id
            taken.update(survey.done)
            return [head.adopt(survey, now_s, hold=hold)]

        # The ids that may have been given out are gone for good before anything else is. Until
        # all is taken back and the jobs are held, a head that stops begins in safe mode again.
        await self._engine.in_writer(begin)
        await self._engine.ask(take_back)
        await self._engine.in_writer(self._store.end_loss)
        self.opened = structs.replace(self.opened, behind="", is_copy=False, forgotten_from=0)
        head.safe_mode = ""
        self._survey = None
        self._late, self._taken = {}, taken
        witnesses.begin(self.opened.lineage)
        self._links.reached(self._store.reached)
