"""The one task that owns the head: inputs in, commit, then replies and effects.

Inputs that arrive while a commit is under way wait in the inbox and share the next one: that is
the group commit. Nobody hears "yes", and no node hears "start", before the commit.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from gsched.clock import Clock, thread_cpu_s
from gsched.errors import GschedError, InvalidTransitionError, StorageError, TryAgainError
from gsched.failpoint import failpoint
from gsched.model.limits import MAX_INBOX
from gsched.model.units import format_duration
from gschedd.core.cycle.epoch import recompute
from gschedd.core.cycle.rounds import Answer, Failed, Question
from gschedd.core.cycle.run import MAX_STARTS
from gschedd.core.cycle.warm_up import warmed_up
from gschedd.core.head import Head
from gschedd.core.requests.queues import reconfigure
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Settings
from gschedd.core.state.step import NOTHING, Run, Step
from gschedd.engine.committed import pass_failpoints
from gschedd.engine.inbox import Action, FullError, Inbox, Input
from gschedd.engine.measures import COMMIT, CYCLE, PLANNING, SLOW_S, Measures
from gschedd.engine.slices import Slices
from gschedd.engine.space import DiskSpace
from gschedd.engine.watches import Watch, Watches
from gschedd.plan.books import BooksOf
from gschedd.store.rows import Batch
from gschedd.store.sqlite import DiskFullError, Store

log = logging.getLogger("gschedd.engine")

#: A step of the clock that is told, seconds; smaller ones correct a drift.
JUMP_S: Final = 5.0

#: A batch takes no further input from so many facts on: each takes 0.2 ms to write, and a request
#: waits for two batches.
MAX_FACTS = 100
MAX_INPUTS = 512  # the same, of inputs that make no facts
BATCH_S = 0.01  # the same, CPU time
RETRY_S = 1.0  # between tries of a commit that found the disk full or the database held
LOG_AGAIN_S = 60.0  # until the next line of the log about such a commit
# Reports that come less than this after those before them wait for others, unless a user's request
# is there: a commit and a cycle for seven ends cost little more than for one.
GATHER_S = 0.005
WARM_S = 0.005  # CPU time of what is worked out before a cycle, as requests wait meanwhile
CYCLE_S = 0.01  # CPU time of a cycle that starts many jobs, as all requests wait meanwhile
LARGE = 1000  # nodes and running jobs; with as many a cycle may take long, so it is done in slices
STARTS_LEAST = 16  # of a cycle that takes longer: each has a commit
ENOUGH = 32  # inputs for which it is worth to go on at once
IDLE_S = 3600.0  # the longest sleep without an alarm
TOO_LONG_S = 1.0  # a planner whose last answer took longer is not waited for by who requests a plan


class EffectSink(Protocol):
    """Where effects go after the commit."""

    def deliver(self, effects: Sequence[e.AnyEffect]) -> None:
        """Send what can be sent now; what cannot is said again at the node's registration."""

    def reached(self, reached: tuple[int, int]) -> None:
        """Take in the newest event and the next job id that are durable."""


def starts_max(most: int, starts: int, took_s: float) -> int:
    """Return how many jobs the next cycle starts at most, after one that took so long.

    What a start takes depends on nodes, policy, limits and the machine, so it is measured, in CPU
    time: on a busy machine smaller cycles would only add commits.
    """
    if starts and took_s > CYCLE_S:
        return max(STARTS_LEAST, min(most, int(starts * CYCLE_S / took_s)))
    return min(MAX_STARTS, most * 2) if starts >= most else most


class Planner(Protocol):
    """Who answers what the head asks about training jobs."""

    async def ask(self, question: Question) -> Answer:
        """Return the answer, or that there is none; that may take a while."""


class Engine:
    """Runs a `Head` for real: real clock, real database.

    Args:
        planner: answers the questions of a head that plans training jobs elsewhere.
        books_of: what the policy keeps of each node.

    Attributes:
        watches: of jobs of which somebody reads, or for whose end somebody waits.
        begun: this start of the head is durable: nodes may hear of it.
        measures: how long its steps take.
        stalled: why the database cannot be written, so that changes are refused; else empty.
        log_away: why the replicated log does not take a commit, so that changes wait; else empty.
    """

    def __init__(
        self,
        *,
        head: Head,
        store: Store,
        clock: Clock,
        space: DiskSpace,
        planner: Planner | None = None,
        books_of: BooksOf | None = None,
    ) -> None:
        self.head = head
        head.starts_max = STARTS_LEAST  # more when cycles have shown that they are fast
        self._store = store
        self._clock = clock
        self._space = space
        self._inbox = Inbox(MAX_INBOX)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store")
        self.begun = asyncio.Event()
        self._settled = asyncio.Event()
        self._showable = asyncio.Event()
        for event in (self._settled, self._showable):
            event.set()
        self._blobs: dict[str, tuple[int, bytes]] = {}
        self._changed = asyncio.Condition()
        self._planner = planner
        self._asking: asyncio.Task[None] | None = None
        self._await_plan: list[tuple[int, asyncio.Future[None]]] = []
        self._unanswered: list[asyncio.Future[Sequence[Step]]] = []
        self.watches = Watches()
        self.measures = Measures(clock)
        self._passed_s = clock.monotonic_s()
        self._ahead_s = clock.wall_s() - self._passed_s
        self._sink: EffectSink | None = None
        self.last_cycle_s = 0.0
        self._books_of = books_of
        self._warming: Iterator[None] | None = None
        self._slices = Slices()
        self._is_long = False  # the last cycle was: the next one does not come before a commit
        self._gathered_s = 0.0
        self.stalled = self.log_away = ""

    def keep_blob(self, digest: str, data: bytes, uid: int) -> None:
        """Make a script or environment of a user durable with the next commit."""
        self._blobs[digest] = (uid, data)

    async def ask(self, action: Action, *, is_request: bool = False) -> Sequence[Step]:
        """Have ``action`` run by the owner of the state; return when its facts are durable.

        Args:
            action: it is run with the time, in seconds since the epoch.
            is_request: a user's: it need not wait for all that nodes have reported before it.

        Raises:
            TryAgainError: too much waits already, or the database cannot be written now.
        """
        if self.stalled:
            raise self._stall()
        future: asyncio.Future[Sequence[Step]] = asyncio.get_running_loop().create_future()
        try:
            self._inbox.put((action, future), is_request=is_request)
        except FullError:
            raise TryAgainError("the head is overloaded", hint="try again in a moment") from None
        return await future

    async def configure(self, settings: Settings, take: Callable[[], None] | None = None) -> None:
        """Give the head other settings between two inputs.

        Args:
            take: is called at once after that.

        Raises:
            GschedError: the head refuses them: nothing has changed.
        """

        def configure(now_s: float) -> Sequence[Step]:
            reconfigure(self.head.state, settings, self.head.settings)
            self.head.settings = settings
            recompute(self.head.state, settings, now_s)
            if take is not None:
                take()
            return (NOTHING,)

        (step,) = await self.ask(configure, is_request=True)
        if step.error is not None:
            raise step.error

    def _note_jump(self, now_s: float) -> None:
        """Tell of a clock that was set: times and usage of jobs follow it."""
        ahead_s = now_s - self._passed_s
        jump_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        if abs(jump_s) >= JUMP_S:
            way = "forward" if jump_s > 0 else "back"
            log.warning(
                "the clock of this machine was set %s by %s: run times, usage and its decay follow "
                "it from now on; what is recorded stays as it is",
                way,
                format_duration(abs(jump_s)),
            )

    async def tell(self, action: Action) -> None:
        """Have ``action`` run by the owner of the state; wait only for room in the inbox."""
        await self._inbox.put_later((action, None))

    async def settled(self) -> None:
        """Wait until everything in the state is durable, so that it may be shown.

        Raises:
            TryAgainError: the database cannot be written now, so that may take a while.
        """
        await self._settled.wait()
        if self.stalled:
            raise self._stall()

    async def shown(self) -> str:
        """Wait as `settled` does, but not for a database that cannot be written.

        Returns:
            Why what is in the state may not be durable yet, for whoever is shown it; else empty.
        """
        await self._showable.wait()
        return self.warning

    @property
    def waiting(self) -> str:
        """Return why changes wait for the replicated log; else empty."""
        away = self.log_away
        return f"PostgreSQL does not answer: changes wait ({away})" if away else ""

    @property
    def warning(self) -> str:
        """Return why what is in the state may not be durable yet; else empty."""
        why = self.stalled or self.waiting
        return f"{why}; what is shown may not be durable yet" if why else ""

    async def changed(self, timeout_s: float) -> None:
        """Wait until something was committed, or the time is over."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait(), timeout_s)
            except TimeoutError:
                return

    async def ended(self, watch: Watch, timeout_s: float) -> None:
        """Wait until the end of a job was committed that is watched, or the time is over."""
        try:
            await asyncio.wait_for(watch.ended.wait(), timeout_s)
        except TimeoutError:
            return

    async def planned(self, timeout_s: float) -> None:
        """Wait until a cycle has looked at all that is in the state by now, or the time is over.

        A planner that takes long is not waited for.
        """
        rounds = self.head.rounds
        planning = rounds is not None and rounds.pending is not None
        if not (self._may_plan() or planning):
            return
        if rounds is not None and rounds.took_s > TOO_LONG_S:
            return
        wanted = 0 if rounds is None else rounds.covers(all_seen=not self._may_plan())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._await_plan.append((wanted, done))
        try:
            await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            return

    async def run(self, sink: EffectSink | None = None) -> None:
        """Run until cancelled, or until the store fails (`StorageError`: fail stop).

        Args:
            sink: takes the effects of what is committed.
        """
        self._sink = sink
        await self._begin()
        while True:
            await self._wait()
            self._passed_s = self._clock.monotonic_s()
            now_s = self._clock.wall_s()
            self._note_jump(now_s)
            steps: list[Step] = [
                self.head.tick(now_s),
                self.head.expire_leases(now_s, self._clock.monotonic_s()),
            ]
            answers: list[tuple[asyncio.Future[Sequence[Step]], Sequence[Step]]] = []
            for action, future in self._inputs(steps):
                try:
                    results = action(now_s)
                except InvalidTransitionError:
                    raise  # our own fault, and the state may be half changed: stop
                except GschedError as error:
                    results = (Step(error=error),)
                steps.extend(results)
                if future is not None:
                    answers.append((future, results))
            # Who waits for an answer does not wait for a plan. When nobody does, new starts share
            # the commit of the ends that made room for them: half the flushes, and no idle slot
            # in the time of one.
            planned = not (answers or self._is_long) and await self._plan(steps)
            self._unanswered = [future for future, _ in answers]
            await self._commit(steps)
            for future, results in answers:
                if not future.done():  # its asker has gone, or was told of a stall
                    future.set_result(results)
            if planned:
                failpoint("head.assign.after_commit")
            self._deliver(steps)
            await self._cycle()

    async def _begin(self) -> None:
        """Take in that the head has started; with 10,000 nodes others get their turn meanwhile."""
        steps: list[Step] = []
        begin_cpu_s = thread_cpu_s()
        for step in self.head.begin(self._clock.wall_s()):
            steps.append(step)
            if thread_cpu_s() - begin_cpu_s > BATCH_S:
                await asyncio.sleep(0)
                begin_cpu_s = thread_cpu_s()
        await self._commit(steps)

    async def _cycle(self) -> None:
        """Run a cycle with a commit of its own, unless there is nothing to decide."""
        if self._may_plan():
            await self._commit_cycle()
        else:
            self._warming = None
        self._ask_planner()
        if self.head.unfinished or self._warming is not None:
            return  # the next one comes after the inputs that have come meanwhile
        rounds = self.head.rounds
        done = None if rounds is None or rounds.pending is None else rounds.over
        waiting, self._await_plan = self._await_plan, []
        for wanted, each in waiting:
            if done is not None and wanted > done:
                self._await_plan.append((wanted, each))
            elif not each.done():
                each.set_result(None)

    def _ask_planner(self) -> None:
        """Send what the head has to ask, and have the answer come as an input."""
        question = self.head.take_question()
        if question is not None and self._planner is not None:
            self._asking = asyncio.create_task(self._hear_planner(question, self._planner))

    async def _hear_planner(self, question: Question, planner: Planner) -> None:
        try:
            with self.measures.timed(PLANNING):
                answer = await planner.ask(question)
        except Exception:  # a fault of ours costs this round, not every later plan
            log.exception("the planner cannot be asked")
            answer = Failed(number=question.number, why="cannot be asked: see the head's log")
        if isinstance(answer, Failed) and answer.raised:
            log.error(
                "the policy for training jobs failed; this round starts none:\n%s", answer.why
            )
        await self.tell(lambda now_s: [self.head.answered(answer, now_s)])

    async def _commit_cycle(self) -> None:
        await asyncio.sleep(0)  # replies leave before the cycle, not after it
        steps: list[Step] = []
        planned = await self._plan(steps)
        await self._commit(steps)
        if planned:
            failpoint("head.assign.after_commit")
        self._deliver(steps)

    def _may_plan(self) -> bool:
        return self.head.state.dirty.any and not self.head.safe_mode

    async def _plan(self, steps: list[Step]) -> bool:
        """Add one cycle's step to ``steps``; return whether it starts anything."""
        if not self._may_plan() or not self._is_warm():
            return False
        failpoint("head.cycle.before")
        begin_s, begin_cpu_s = self._clock.monotonic_s(), _cpu_s()
        with self.measures.timed(CYCLE):
            step = await self._planned_step()
        self.last_cycle_s = self._clock.monotonic_s() - begin_s
        starts = sum(isinstance(fact, f.AttemptAssigned) for fact in step.facts)
        took_s = _cpu_s() - begin_cpu_s
        self.head.starts_max = starts_max(self.head.starts_max, starts, took_s)
        if self.head.policy_failure is not None:
            log.error(
                "the policy failed; this cycle starts nothing", exc_info=self.head.policy_failure
            )
        steps.append(step)
        return bool(step.facts)

    async def _planned_step(self) -> Step:
        """Run a cycle; where it may take long, others get their turn meanwhile, but no input."""
        head, now_s = self.head, self._clock.wall_s()
        self._is_long = False
        if len(head.state.spaces) + len(head.state.running) < LARGE:
            return head.cycle(now_s)
        return await self._slices.between_turns(partial(head.cycle, now_s), self._note_long)

    def _note_long(self) -> None:
        self._is_long = True
        if not self.head.state.unstored.is_empty:
            self._hide()

    def _hide(self) -> None:
        """Let those wait who show what is in the state, as it is not durable."""
        self.watches.note(self.head.state.unstored.jobs)
        self._settled.clear()
        self._showable.clear()

    def _is_warm(self) -> bool:
        """Go on with what a cycle needs to know of many nodes; return whether that is all done."""
        until_s = thread_cpu_s() + WARM_S
        if self._warming is None:
            head, now_s = self.head, self._clock.wall_s()
            self._warming = warmed_up(head.state, head.settings, head.model, self._books_of, now_s)
        try:
            for _ in self._warming:
                if thread_cpu_s() >= until_s:
                    return False
        except Exception:  # the cycle works it out itself, and tells of a fault that it meets
            log.exception("what a cycle needs to know of nodes and jobs cannot be worked out")
        self._warming = None
        return True

    def _deliver(self, steps: Sequence[Step]) -> None:
        effects = [effect for step in steps for effect in step.effects]
        if effects and self._sink is not None:
            self._sink.deliver(effects)

    async def _wait(self) -> None:
        """Wait for an input, an alarm, or a lease that expires, unless a cycle has to go on."""
        await asyncio.sleep(0)  # others get their turn, also where nothing had to be written
        if self.head.unfinished or self._warming is not None:
            return
        alarm_s = self.head.next_alarm_s()
        wait_s = IDLE_S if alarm_s is None else alarm_s - self._clock.wall_s()
        expiry_s = self.head.next_expiry_s()
        if expiry_s is not None:
            wait_s = min(wait_s, expiry_s - self._clock.monotonic_s())
        await self._inbox.wait(min(max(wait_s, 0.0), IDLE_S))
        if 0 < len(self._inbox) < ENOUGH:
            pause_s = self._gathered_s + GATHER_S - self._clock.monotonic_s()
            await self._inbox.wait_for_request(min(pause_s, GATHER_S))
        self._gathered_s = self._clock.monotonic_s()

    def _inputs(self, steps: Sequence[Step]) -> Iterator[Input]:
        """Yield the inputs of one batch, while ``steps``, which they add to, are not too many."""
        counted = facts = 0
        until_s = thread_cpu_s() + BATCH_S
        for _ in range(MAX_INPUTS):
            facts += sum(len(step.facts) for step in steps[counted:])
            counted = len(steps)
            if facts >= MAX_FACTS or thread_cpu_s() >= until_s:
                return
            each = self._inbox.take()
            if each is None:
                return
            yield each

    async def _commit(self, steps: Sequence[Step]) -> None:
        facts = [fact for step in steps for fact in step.facts]
        if not facts and self._store.is_begun:
            for event in (self._settled, self._showable, self.begun):
                event.set()
            return
        self._hide()
        batch = self._batch(facts, [run for step in steps for run in step.runs])
        pass_failpoints(facts, "before_commit")
        with self.measures.timed(COMMIT):
            await self._write(batch)
        self.measures.events.inc(len(facts))
        self._settled.set()
        self._showable.set()
        self.begun.set()
        if self._sink is not None:
            self._sink.reached(self._store.reached)
        pass_failpoints(facts, "after_commit")
        self.watches.note_ended(self.head.state.unstored.finished)
        self.head.state.unstored.finished.clear()
        async with self._changed:
            self._changed.notify_all()

    def _batch(self, facts: list[f.AnyFact], runs: list[Run]) -> Batch:
        state = self.head.state
        batch = Batch(
            facts=facts,
            jobs=list(state.unstored.jobs.values()),
            attempts=[(job, attempt) for (job, _), attempt in state.unstored.attempts.items()],
            nodes=list(state.unstored.nodes.values()),
            blobs=self._blobs,
            next_job=state.next_job,
            runs=runs,
            removed_nodes=frozenset(state.unstored.removed_nodes),
            usage=list(state.unstored.usage.values()),
            reservations=state.unstored.reservations,
        )
        self._blobs = {}
        state.unstored.forget_records()
        return batch

    async def _write(self, batch: Batch) -> None:
        loop = asyncio.get_running_loop()
        logged_s = -math.inf
        while True:
            try:
                await self._written(loop.run_in_executor(self._writer, self._store.commit, batch))
            except StorageError:
                raise
            except TryAgainError as error:
                self.stalled = f"{error.message}; submissions are refused"
                if isinstance(error, DiskFullError) and self._space.drop_ballast():
                    log.error("%s: the ballast file is given up to finish what is under way", error)
                    continue
                if self._clock.monotonic_s() - logged_s >= LOG_AGAIN_S:
                    logged_s = self._clock.monotonic_s()
                    log.error("%s: trying again", error)
            else:
                self.stalled = ""
                return
            self._settled.set()  # whoever waits is told of the stall instead
            self._showable.set()
            self._refuse_waiting()
            await asyncio.sleep(RETRY_S)

    async def _written(self, writing: "asyncio.Future[None]") -> None:
        """Wait for a commit; readers do not while the replicated log is away."""
        while not (await asyncio.wait({writing}, timeout=RETRY_S))[0]:
            self.log_away = self._store.log_away
            if self.log_away:
                self._showable.set()
        self.log_away = ""
        await writing

    def _refuse_waiting(self) -> None:
        """Answer all who wait for a commit that may take long; reports of nodes stay.

        What is part of the commit is done once that succeeds, what is still in the inbox is not.
        """
        for future in self._unanswered:
            if not future.done():
                future.set_exception(
                    TryAgainError(
                        f"{self.stalled}. What you asked for may still be done afterwards",
                        hint="look with gstat before you ask again",
                    )
                )
        self._inbox.refuse(self._stall)

    def _stall(self) -> TryAgainError:
        return TryAgainError(self.stalled, hint="try again later; gsched doctor shows the cause")

    @property
    def inputs_waiting(self) -> int:
        """Return how many inputs nobody has taken yet."""
        return len(self._inbox)

    def trouble(self) -> str:
        """Return why nothing is decided or recorded now, in words; empty: all is well."""
        slow = self.warning or self.measures.slow_step()
        idle_s = self._clock.monotonic_s() - self._passed_s
        if slow or not self._may_plan() or idle_s < SLOW_S:
            return slow
        return f"no scheduling cycle for {idle_s:.0f} s, and one is due"

    async def in_writer(self, work: Callable[[], None]) -> None:
        """Run something on the writer's thread, between commits."""
        await asyncio.get_running_loop().run_in_executor(self._writer, work)

    def close(self) -> None:
        """Wait for the writer's thread."""
        if self._asking is not None:
            self._asking.cancel()
        self._writer.shutdown(wait=True)
        self._slices.close()


def _cpu_s() -> float:
    """Return the CPU time of the loop's thread, with that of cycles in slices."""
    return thread_cpu_s() + Slices.cpu_s
