"""One round of DRS: who starts now, on which plan, as long as something can start."""

from collections.abc import Container, Iterable, Iterator

from msgspec import Struct

from gsched.model.resources import Allocation, Request
from gschedd.plan.space import Spaces
from gschedd.plan.training import Fabric, Speed
from gschedd.policies.training.drs.choice import (
    BestAndFastest,
    Curve,
    Paced,
    best_of,
    choose,
)
from gschedd.policies.training.drs.options import (
    FreeNodes,
    LayoutPaces,
    Paces,
    PlacementOption,
    Preference,
    WaitingJob,
)


class ChosenStart(Struct, frozen=True, kw_only=True):
    """A waiting training job and the plan that was chosen for it.

    Attributes:
        meets: it will meet its deadline on that plan, if it starts now.
        end_s: when it will be done, seconds since the epoch.
    """

    waiting: WaitingJob
    allocation: Allocation
    option: PlacementOption
    meets: bool
    end_s: float


#: How those that have a plan are ordered: those that will be late come last; of the others those
#: with the least time to spare come first, of the late ones those that end first; then the job id.
_Ranked = tuple[bool, float, int, WaitingJob, PlacementOption, float]


class _Plans(Struct, frozen=True, kw_only=True):
    """Plans on what is free, by GPUs, the fewest first."""

    inside: tuple[PlacementOption, ...]
    across: tuple[PlacementOption, ...]
    fewest: int

    @classmethod
    def of(
        cls,
        options: Iterable[PlacementOption],
        gpus: Iterable[int],
        fewest: int,
        known: dict[tuple[PlacementOption, ...], tuple[PlacementOption, ...]],
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

    def __init__(self, gpus: tuple[int, ...], paces: LayoutPaces, now_s: float) -> None:
        self.gpus = gpus
        self._paces = paces
        self._now_s = now_s
        #: Work, seconds for it until the deadline, and those until its first step, of each.
        self._waiting: list[tuple[float, float, float, WaitingJob]] = []
        self._curves: dict[tuple[object, ...], Curve] = {}
        self._known: dict[tuple[int, Curve, Curve], list[_Ranked]] = {}
        self._seen_inside: tuple[PlacementOption, ...] | None = None
        self._inside: BestAndFastest = (None, None)

    def add(self, waiting: WaitingJob) -> None:
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
        chosen = choose(self._inside, across, plans.fewest)
        return () if chosen is None else (_ranked(chosen, work, slack_s, begin_s, waiting),)

    def _curve(self, options: Iterable[PlacementOption]) -> Curve:
        """Return the curve of plans; the same one for plans that are as fast."""
        paced = [(option, self._paces[option.layout]) for option in options]
        key = tuple((option.gpus, option.across, option.pool, pace) for option, pace in paced)
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = Curve(paced)
        return curve

    def _rank(self, inside: Curve, across: Curve, fewest: int) -> Iterator[_Ranked]:
        for work, slack_s, begin_s, waiting in self._waiting:
            chosen = choose(inside.choices(work, slack_s), across.choices(work, slack_s), fewest)
            if chosen is not None:
                yield _ranked(chosen, work, slack_s, begin_s, waiting)


def _ranked(
    chosen: tuple[Paced, bool], work: float, slack_s: float, begin_s: float, waiting: WaitingJob
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
        self._families: dict[tuple[Speed, tuple[int, ...]], _Family] = {}
        self._counts: tuple[int, ...] = ()
        #: By what the plans are made of: those that have a plan, in order, and how many are gone.
        self._rankings: dict[tuple[object, ...], tuple[list[_Ranked], list[int]]] = {}
        self._insides: dict[tuple[PlacementOption, ...], tuple[PlacementOption, ...]] = {}

    def add(self, waiting: WaitingJob) -> None:
        profile = waiting.profile
        key = (profile.speed, profile.gpus)
        family = self._families.get(key)
        if family is None:
            paces = self._paces[profile.speed, profile.gpus[0]]
            family = self._families[key] = _Family(profile.gpus, paces, self._now_s)
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


class StartRound:
    """The waiting training jobs on what is free, until nothing more can start.

    Args:
        now_s: seconds since the epoch.
        spaces: what is free; what starts is taken of it.
        fabric: how nodes are connected.
        paces: of this plan.
        preference: orders nodes with as many free GPUs.
    """

    def __init__(
        self, now_s: float, spaces: Spaces, fabric: Fabric, paces: Paces, preference: Preference
    ) -> None:
        self._now_s = now_s
        self._spaces = spaces
        self._fabric = fabric
        self._paces = paces
        self._preference = preference
        self._batches: dict[Request, _Batch] = {}
        self._gone: set[int] = set()

    def run(
        self,
        waiting: Iterable[WaitingJob],
        postponed: Container[int] = (),
        *,
        first: Iterable[WaitingJob] = (),
    ) -> list[ChosenStart]:
        """Return who starts, in order.

        Args:
            waiting: those that want to.
            postponed: jobs that do not start late now, as they would be in time later.
            first: those that go before all of them, in order: where one of these finds no place,
                nothing more starts.
        """
        started: list[ChosenStart] = []
        for each in first:
            self._add(each)
            begun = self._start(postponed)
            if not begun:
                return started
            started += begun
        for each in waiting:
            self._add(each)
        return started + self._start(postponed)

    def _add(self, waiting: WaitingJob) -> None:
        batch = self._batches.get(waiting.form)
        if batch is None:
            nodes = FreeNodes(waiting.form, self._spaces, self._fabric, self._preference)
            batch = self._batches[waiting.form] = _Batch(nodes, self._paces, self._now_s)
        batch.add(waiting)

    def _start(self, postponed: Container[int]) -> list[ChosenStart]:
        """Start those that were added, as long as one has a plan."""
        started: list[ChosenStart] = []
        while True:
            heads = [
                (head, batch)
                for batch in self._batches.values()
                if (head := batch.head(self._gone)) is not None
            ]
            if not heads:
                return started
            head, batch = min(heads, key=lambda each: each[0][:3])
            late, _, job, one, option, run_s = head
            self._gone.add(job)
            if late and job in postponed:
                continue
            allocation = batch.nodes.allocate(option)
            self._spaces.take(allocation)
            for each in self._batches.values():
                each.nodes.refresh(share.node for share in allocation)
            started.append(
                ChosenStart(
                    waiting=one,
                    allocation=allocation,
                    option=option,
                    meets=not late,
                    end_s=self._now_s + run_s,
                )
            )
