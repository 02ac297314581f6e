"""The usage ledger: what users of projects have used, older usage counting for less.

A second of what an attempt holds is billed at a rate, by the weights of CPUs, memory and GPUs.
Usage decays by half in each half-life. It is never decayed by a timer: each row has the time up to
which it is decayed, and `decay` does the rest when it is read or changed. An attempt that runs
accrues: with rate r and decay constant k its usage after t seconds is r / k * (1 - exp(-k * t)),
and the sum over the running attempts of a user is kept as one number and one rate. So a start, an
end and a look at a user cost the same however many jobs there are, and decay is exact.
"""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from gsched.config.shares import SharesConfig
from gsched.model.resources import WHOLE_PERCENT
from gschedd.plan.budgets import DAY_S, by_day
from gschedd.shares.tree import Association

GIB: Final = 1 << 30
#: So many days are kept beside today: the longest period has 31.
KEPT_DAYS: Final = 31


class Held(Struct, frozen=True, kw_only=True):
    """What an attempt holds; ``gpus`` by type, parts of a GPU as fractions."""

    cpus: int = 0
    memory_bytes: int = 0
    gpus: Mapping[str, float] = {}

    @property
    def gpu_percent(self) -> int:
        """Return all GPUs in percent of one."""
        return round(sum(self.gpus.values()) * WHOLE_PERCENT)


def place_of(queue: str, qos: str) -> str:
    """Return a queue with a QOS as rows name them."""
    return f"{queue}/{qos}"


def rate_of(config: SharesConfig, held: Held) -> float:
    """Return what a second of what is held is billed."""
    rates = (
        config.cpu * held.cpus,
        config.memory_gb * (held.memory_bytes / GIB),
        sum(config.gpus.get(name, config.gpu) * count for name, count in held.gpus.items()),
    )
    return max(rates) if config.combine == "max" else sum(rates)


class LedgerRow(Struct, kw_only=True, omit_defaults=True):
    """What attempts that have ended have used, of a user in a project; the database holds it.

    Attributes:
        at_s: up to when ``usage`` is decayed, seconds since the epoch.
        usage: billed, with decay.
        billed: without decay.
        cpu_s, memory_gb_s: what was held, by how long.
        gpu_s: likewise, by type of GPU.
        attempts: how many.
        gpu_ms: GPU time in percent of a GPU times milliseconds, by day since the epoch (UTC) and
            queue with QOS; days that no budget needs are left out.
    """

    project: str
    user: str
    at_s: float = 0.0
    usage: float = 0.0
    billed: float = 0.0
    cpu_s: float = 0.0
    memory_gb_s: float = 0.0
    gpu_s: dict[str, float] = {}
    attempts: int = 0
    gpu_ms: dict[int, dict[str, int]] = {}


class _Accrual:
    """What running attempts of a user have come to.

    Attributes:
        usage: billed up to ``at_s``, with decay.
        rate: of all together.
        attempts: how many.
    """

    __slots__ = ("at_s", "attempts", "rate", "usage")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.usage = 0.0
        self.rate = 0.0
        self.attempts = 0


class _Holding(Struct, frozen=True, kw_only=True):
    """A running attempt, and since when it holds what it does; ``place``: queue with QOS."""

    whose: Association
    held: Held
    since_s: float
    rate: float
    place: str


class UsageLedger:
    """Usage by project and user; only `gschedd.core.apply` changes it.

    An attempt is billed by the weights that are in force when it ends.

    Attributes:
        rows: by project and user, as in the database.
    """

    def __init__(self, config: SharesConfig | None = None) -> None:
        self.rows: dict[Association, LedgerRow] = {}
        self._accruals: dict[Association, _Accrual] = {}
        self._holdings: dict[int, _Holding] = {}
        self.configure(config or SharesConfig())

    def configure(self, config: SharesConfig) -> None:
        """Take other weights; running attempts are billed by them from their start on."""
        holdings = self._holdings
        self._config = config
        #: The k of exp(-k * t), 1/s; 0: usage does not decay.
        self._constant = math.log(2) / config.half_life_s if config.half_life_s else 0.0
        self._holdings, self._accruals = {}, {}
        for job, holding in holdings.items():
            self.hold(job, holding.whose, holding.held, holding.since_s, holding.place)

    def days_of(self, job: int, end_s: float) -> dict[int, int]:
        """Return the GPU time by day of an attempt that ends then; see `gschedd.plan.budgets`."""
        holding = self._holdings.get(job)
        if holding is None:
            return {}
        return by_day(holding.held.gpu_percent, holding.since_s, end_s)

    @property
    def running(self) -> Mapping[int, tuple[Association, float]]:
        """Return whose attempts accrue, and since when, by job."""
        return {job: (each.whose, each.since_s) for job, each in self._holdings.items()}

    def hold(
        self, job: int, whose: Association, held: Held, since_s: float, place: str = ""
    ) -> None:
        """Let the attempt of a job accrue from a time on, in place of one that it had."""
        self.release(job)
        rate = rate_of(self._config, held)
        self._holdings[job] = _Holding(
            whose=whose, held=held, since_s=since_s, rate=rate, place=place
        )
        accrual = self._accruals.setdefault(whose, _Accrual())
        self._advance(accrual, since_s)
        accrual.usage += self._accrued(rate, accrual.at_s - since_s)
        accrual.rate += rate
        accrual.attempts += 1

    def release(self, job: int) -> None:
        """Let the attempt of a job accrue no longer; nothing is billed."""
        holding = self._holdings.pop(job, None)
        if holding is None:
            return
        accrual = self._accruals[holding.whose]
        accrual.attempts -= 1
        if not accrual.attempts:  # rounding ends with the last one
            del self._accruals[holding.whose]
            return
        accrual.rate = max(0.0, accrual.rate - holding.rate)
        own = self._accrued(holding.rate, accrual.at_s - holding.since_s)
        accrual.usage = max(0.0, accrual.usage - own)

    def bill(self, job: int, end_s: float, now_s: float) -> LedgerRow | None:
        """Bill the attempt of a job that has ended; None: it held nothing.

        Args:
            job: whose attempt it is.
            end_s: until when it held what it did; not after ``now_s``.
            now_s: the time. A row that is ahead of it is from before the clock was set back.

        Returns:
            The changed row, to be stored.
        """
        holding = self._holdings.get(job)
        if holding is None:
            return None
        self.release(job)
        project, user = holding.whose
        row = self.rows.setdefault(holding.whose, LedgerRow(project=project, user=user))
        wall_s = max(0.0, end_s - holding.since_s)
        row.at_s = min(row.at_s, now_s)
        at_s = max(row.at_s, end_s)
        used = self._accrued(holding.rate, wall_s) * self._left(at_s - end_s)
        row.usage = row.usage * self._left(at_s - row.at_s) + used
        row.at_s = at_s
        row.billed += holding.rate * wall_s
        row.cpu_s += holding.held.cpus * wall_s
        row.memory_gb_s += holding.held.memory_bytes / GIB * wall_s
        row.attempts += 1
        row.gpu_s = dict(row.gpu_s)
        for name, count in holding.held.gpus.items():
            row.gpu_s[name] = row.gpu_s.get(name, 0.0) + count * wall_s
        spent = by_day(holding.held.gpu_percent, holding.since_s, end_s)
        oldest = int(now_s // DAY_S) - KEPT_DAYS
        days = {day: of for day, of in row.gpu_ms.items() if day >= oldest}
        for day, gpu_ms in spent.items():
            places = days[day] = dict(days.get(day, {}))  # a copy: the store may still write it
            places[holding.place] = places.get(holding.place, 0) + gpu_ms
        row.gpu_ms = days
        return row

    def usage(self, now_s: float) -> dict[Association, float]:
        """Return the usage of all, with what runs up to now."""
        constant, exp = -self._constant, math.exp
        found = {
            whose: row.usage * exp(constant * (now_s - row.at_s)) if now_s > row.at_s else row.usage
            for whose, row in self.rows.items()
        }
        for whose, accrual in self._accruals.items():
            running = self._running(accrual, now_s)
            found[whose] = found.get(whose, 0.0) + running
        return found

    def usage_of(self, whose: Association, now_s: float) -> float:
        """Return the usage of a user in a project, with what runs up to now."""
        row, accrual = self.rows.get(whose), self._accruals.get(whose)
        used = 0.0 if row is None else row.usage * self._left(now_s - row.at_s)
        return used if accrual is None else used + self._running(accrual, now_s)

    def _advance(self, accrual: _Accrual, now_s: float) -> None:
        """Accrue up to now; a clock that goes back changes nothing."""
        accrual.usage = self._running(accrual, now_s)
        accrual.at_s = max(accrual.at_s, now_s)

    def _running(self, accrual: _Accrual, now_s: float) -> float:
        """Return what running attempts have come to by now."""
        for_s = now_s - accrual.at_s
        if for_s <= 0:
            return accrual.usage
        if not self._constant:
            return accrual.usage + accrual.rate * for_s
        left = math.exp(-self._constant * for_s)
        return accrual.usage * left + self._accrued(accrual.rate, for_s)

    def _left(self, for_s: float) -> float:
        """Return which part of usage is left after a time."""
        return math.exp(-self._constant * for_s) if for_s > 0 else 1.0

    def _accrued(self, rate: float, for_s: float) -> float:
        """Return what is billed at a rate for a time, with decay up to its end."""
        if for_s <= 0:
            return 0.0
        if not self._constant:
            return rate * for_s
        return rate * -math.expm1(-self._constant * for_s) / self._constant
