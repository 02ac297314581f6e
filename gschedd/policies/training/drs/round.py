"""One round of DRS: who starts now, on which plan, as long as something can start."""

from collections.abc import Callable, Container, Iterable, Iterator

from msgspec import Struct

from gsched.model.resources import Allocation, Request
from gschedd.allocation.configurations import (
    FreeNodes,
    Option,
    Paces,
    PacesOf,
    Preference,
    Waiting,
    place_whole,
)
from gschedd.allocation.performance import ROUNDING_S, Curve, Paced, best_of
from gschedd.plan.space import Spaces
from gschedd.plan.training import Fabric


class Decided(Struct, frozen=True, kw_only=True):
    """A waiting training and the plan that was chosen for it.

    Attributes:
        meets: it will meet its deadline on that plan, if it starts now.
        end_s: when it will be done, seconds since the epoch.
    """

    waiting: Waiting
    allocation: Allocation
    option: Option
    meets: bool
    end_s: float


#: How those that have a plan are ordered: those that will be late come last; of the others those
#: with the least time to spare come first, of the late ones those that end first; then the job id.
_Ranked = tuple[bool, float, int, Waiting, Option, float]


def choose(
    inside: Curve, across: Curve, fewest: int, *, work: float, slack_s: float
) -> tuple[Paced, bool] | None:
    """Return the plan for a training, and whether it meets the deadline; None: there is none.

    A plan across nodes is taken if some node has free GPUs, but fewer than the plan takes: then it
    uses up a fragment and keeps whole nodes whole.

    Args:
        inside, across: its plans on one node and across nodes.
        fewest: free GPUs of the node that has the fewest, but some.
        work: what is left, in the unit of the plans' paces.
        slack_s: seconds from the first step to the deadline; minus infinity: there is none.
    """
    return _chosen(
        (inside.best(work, slack_s), inside.fastest),
        (across.best(work, slack_s), across.fastest),
        fewest,
    )


#: The best plan that meets a deadline, and the fastest one.
_Pair = tuple[Paced | None, Paced | None]


def _chosen(inside: _Pair, across: _Pair, fewest: int) -> tuple[Paced, bool] | None:
    expected = _either(inside[0], across[0], fewest)
    if expected is not None:
        return expected, True
    late = _either(inside[1], across[1], fewest)
    return None if late is None else (late, False)


def _either(inside: Paced | None, across: Paced | None, fewest: int) -> Paced | None:
    if across is None or inside is None:
        return inside or across
    return across if 0 < fewest < across[0].gpus else inside


class _Plans(Struct, frozen=True, kw_only=True):
    """Plans on what is free, by GPUs, the fewest first."""

    inside: tuple[Option, ...]
    across: tuple[Option, ...]
    fewest: int

    @classmethod
    def of(
        cls,
        options: Iterable[Option],
        gpus: Iterable[int],
        fewest: int,
        known: dict[tuple[Option, ...], tuple[Option, ...]],
    ) -> "_Plans":
        """Return those of some numbers of GPUs.

        Args:
            options: on what is free.
            gpus: those numbers.
            fewest: free GPUs of the node that has the fewest, but some.
            known: plans on one node that were made before: equal ones are one object.
        """
        allowed = frozenset(gpus)
        sorted_ = sorted((o for o in options if o.gpus in allowed), key=lambda each: each.gpus)
        inside = tuple(option for option in sorted_ if not option.across)
        return cls(
            inside=known.setdefault(inside, inside),
            across=tuple(option for option in sorted_ if option.across),
            fewest=fewest,
        )


class _Family:
    """Waiting training jobs of one form, speed and numbers of GPUs: the same plans suit them."""

    def __init__(self, gpus: tuple[int, ...], paces: PacesOf, now_s: float) -> None:
        self.gpus = gpus
        self._paces = paces
        self._now_s = now_s
        #: Work, seconds for it until the deadline, and those until its first step, of each.
        self._waiting: list[tuple[float, float, float, Waiting]] = []
        self._curves: dict[tuple[object, ...], Curve] = {}
        self._known: dict[tuple[int, Curve, Curve], list[_Ranked]] = {}
        self._seen_inside: tuple[Option, ...] | None = None
        self._inside: _Pair = (None, None)

    def add(self, waiting: Waiting) -> None:
        profile = waiting.profile
        slack_s = float("-inf") if profile.deadline_s is None else profile.deadline_s - self._now_s
        begin_s = profile.startup_s
        self._waiting.append((max(profile.work, 0.0), slack_s - begin_s, begin_s, waiting))
        self._known.clear()
        self._seen_inside = None

    def ranked(self, plans: _Plans, gone: Container[int]) -> Iterable[_Ranked]:
        """Return all of them that have a plan. Plans as fast as before are not redone.

        Args:
            plans: what there is to choose from.
            gone: jobs that need not be among them any more.
        """
        if len(self._waiting) == 1 and self._waiting[0][0] > 0:
            return () if self._waiting[0][3].profile.job in gone else self._rank_only(plans)
        key = (plans.fewest, self._curve(plans.inside), self._curve(plans.across))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = sorted(self._rank(key[1], key[2], plans.fewest))
        return found

    def _rank_only(self, plans: _Plans) -> Iterable[_Ranked]:
        """Return the only one there is, which needs no curves."""
        work, slack_s, begin_s, waiting = self._waiting[0]
        if self._seen_inside is not plans.inside:  # that changes less often
            self._inside = best_of(plans.inside, self._paces, work=work, slack_s=slack_s)
            self._seen_inside = plans.inside
        across = best_of(plans.across, self._paces, work=work, slack_s=slack_s)
        chosen = _chosen(self._inside, across, plans.fewest)
        return () if chosen is None else (_ranked(chosen, work, slack_s, begin_s, waiting),)

    def _curve(self, options: Iterable[Option]) -> Curve:
        """Return the curve of plans; the same one for plans that are as fast."""
        paced = [(option, self._paces[option.layout]) for option in options]
        key = tuple((option.gpus, option.across, option.pool, pace) for option, pace in paced)
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = Curve(paced)
        return curve

    def _rank(self, inside: Curve, across: Curve, fewest: int) -> Iterator[_Ranked]:
        for work, slack_s, begin_s, waiting in self._waiting:
            chosen = choose(inside, across, fewest, work=work, slack_s=slack_s)
            if chosen is not None:
                yield _ranked(chosen, work, slack_s, begin_s, waiting)


def _ranked(
    chosen: tuple[Paced, bool], work: float, slack_s: float, begin_s: float, waiting: Waiting
) -> _Ranked:
    (option, pace), meets = chosen
    work_s = work * pace
    run_s = begin_s + work_s
    spare_s = slack_s - work_s if meets else run_s
    return (not meets, spare_s, waiting.profile.job, waiting, option, run_s)


class _Batch:
    """Waiting training jobs of one form: they see the same free GPUs."""

    def __init__(self, nodes: FreeNodes, paces: Paces, now_s: float) -> None:
        self.nodes = nodes
        self._paces = paces
        self._now_s = now_s
        self._families: dict[int, _Family] = {}
        self._counts: tuple[int, ...] = ()
        #: By what the plans are made of: those that have a plan, in order, and how many are gone.
        self._rankings: dict[tuple[object, ...], tuple[list[_Ranked], list[int]]] = {}
        self._insides: dict[tuple[Option, ...], tuple[Option, ...]] = {}

    def add(self, waiting: Waiting) -> None:
        profile = waiting.profile
        family = self._families.get(waiting.kind)
        if family is None:
            paces = self._paces.of_speed(profile.speed, profile.gpus[0])
            family = self._families[waiting.kind] = _Family(profile.gpus, paces, self._now_s)
            self._counts = tuple(sorted({*self._counts, *profile.gpus}))
        family.add(waiting)
        self._rankings.clear()

    def head(self, gone: set[int]) -> _Ranked | None:
        options = self.nodes.options(self._counts)
        if not options:
            return None
        fewest = self.nodes.fewest
        key = (fewest, options)
        known = self._rankings.get(key)
        if known is None:
            plans = {
                gpus: _Plans.of(options, gpus, fewest, self._insides)
                for gpus in {family.gpus for family in self._families.values()}
            }
            ranked = sorted(
                each
                for family in self._families.values()
                for each in family.ranked(plans[family.gpus], gone)
            )
            known = self._rankings[key] = (ranked, [0])
        ranked, position = known
        while position[0] < len(ranked) and ranked[position[0]][2] in gone:
            position[0] += 1
        return ranked[position[0]] if position[0] < len(ranked) else None

    def allocate(self, ranked: _Ranked) -> Allocation:
        return self.nodes.allocate(ranked[4])


class _Whole:
    """A training that can only be placed as it is: several chunks, or no GPUs in its places."""

    def __init__(self, waiting: Waiting, round_: "Round") -> None:
        self._waiting = waiting
        self._round = round_
        self._seen = -1
        self._found: tuple[Allocation, _Ranked] | None = None

    def head(self, gone: set[int]) -> _Ranked | None:
        if self._waiting.profile.job in gone:
            return None
        if self._seen != self._round.taken:
            self._seen = self._round.taken
            self._found = self._place()
        return None if self._found is None else self._found[1]

    def _place(self) -> tuple[Allocation, _Ranked] | None:
        profile, spaces = self._waiting.profile, self._round.spaces
        found = place_whole(self._waiting.job_class.request, spaces, self._round.fabric)
        if found is None:
            return None
        allocation, layout = found
        run_s = profile.run_time_s(layout)
        slack_s = (
            float("-inf") if profile.deadline_s is None else profile.deadline_s - self._round.now_s
        )
        late = run_s > slack_s + ROUNDING_S
        spare_s = run_s if late else slack_s - run_s
        option = Option(gpus=layout.gpus, layout=layout, across=len(allocation) > 1)
        return allocation, (late, spare_s, profile.job, self._waiting, option, run_s)

    def allocate(self, ranked: _Ranked) -> Allocation:
        assert self._found is not None, ranked
        return self._found[0]


class Round:
    """The waiting training jobs on what is free, until nothing more can start.

    Args:
        now_s: seconds since the epoch.
        spaces: what is free; what starts is taken of it.
        fabric: how nodes are connected.
        paces: of this plan.
        preference: orders nodes with as many free GPUs.
        by_kind: there are also plans within one kind of nodes.
    """

    def __init__(
        self,
        now_s: float,
        spaces: Spaces,
        fabric: Fabric,
        paces: Paces,
        *,
        preference: Preference | None = None,
        by_kind: bool = False,
    ) -> None:
        self.now_s = now_s
        self.spaces = spaces
        self.fabric = fabric
        self.taken = 0
        self._paces = paces
        self._preference = preference
        self._by_kind = by_kind
        self._batches: dict[Request, _Batch] = {}
        self._wholes: list[_Whole] = []
        self._gone: set[int] = set()

    def run(
        self,
        waiting: Iterable[Waiting],
        postponed: Callable[[Waiting], bool] = lambda _: False,
        *,
        first: Iterable[Waiting] = (),
    ) -> list[Decided]:
        """Return who starts, in order.

        Args:
            waiting: those that want to.
            postponed: whether one that would be late had better wait.
            first: those that go before all of them, in order: where one of these finds no place,
                nothing more starts.
        """
        started: list[Decided] = []
        for each in first:
            self._add(each)
            begun = self._start(postponed)
            if not begun:
                return started
            started += begun
        for each in waiting:
            self._add(each)
        return started + self._start(postponed)

    def _start(self, postponed: Callable[[Waiting], bool]) -> list[Decided]:
        """Start those that were added, as long as one has a plan."""
        started: list[Decided] = []
        sources: list[_Batch | _Whole] = [*self._batches.values(), *self._wholes]
        while True:
            heads = [
                (head, source)
                for source in sources
                if (head := source.head(self._gone)) is not None
            ]
            if not heads:
                return started
            head, source = min(heads, key=lambda each: each[0][:3])
            late, _, job, one, option, run_s = head
            self._gone.add(job)
            if late and postponed(one):
                continue
            allocation = source.allocate(head)
            self._take(allocation)
            started.append(
                Decided(
                    waiting=one,
                    allocation=allocation,
                    option=option,
                    meets=not late,
                    end_s=self.now_s + run_s,
                )
            )

    def _add(self, waiting: Waiting) -> None:
        form = waiting.form
        if form is None:
            self._wholes.append(_Whole(waiting, self))
            return
        batch = self._batches.get(form)
        if batch is None:
            nodes = FreeNodes(
                form,
                self.spaces,
                self.fabric,
                preference=self._preference,
                by_kind=self._by_kind,
            )
            batch = self._batches[form] = _Batch(nodes, self._paces, self.now_s)
        batch.add(waiting)

    def _take(self, allocation: Allocation) -> None:
        self.spaces.take(allocation)
        self.taken += 1
        for batch in self._batches.values():
            batch.nodes.refresh(share.node for share in allocation)
