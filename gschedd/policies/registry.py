"""Policies by the name a queue uses, each made ready for a head with the site's own settings."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from gsched.config.errors import policy_problem
from gsched.config.policies import BalanceConfig, TrainingConfig
from gsched.config.tables import Config
from gsched.config.words import ADAPTIVE_POLICIES
from gsched.errors import ConfigError
from gschedd.models.predict import Model
from gschedd.models.robust import RobustModel
from gschedd.plan.books import BooksOf
from gschedd.plan.compose import Composed
from gschedd.plan.reserved import WithReservations
from gschedd.plan.snapshot import Policy
from gschedd.policies.queue import balance, fifo
from gschedd.policies.training import deadline, drs, elasticflow, goodput, sia


class Chosen(Struct, frozen=True, kw_only=True):
    """A policy with all that a head needs to run it.

    Attributes:
        name: as it was chosen.
        plan: the policy.
        books_of: what the policy keeps of each node from one plan to the next; None: nothing.
        make_model: makes the predictor that it plans with, without any history.
        reads_loads: it looks at how busy nodes are, so that they must report.
        predicts_run_times: its predictor gives run times that are seldom exceeded.
        plans_training: it plans training jobs one by one.
        plans_adaptive: it chooses batch sizes of adaptive training jobs, too.
    """

    plan: Policy
    name: str = ""
    books_of: BooksOf | None = None
    make_model: Callable[[], Model] = RobustModel
    reads_loads: bool = False
    predicts_run_times: bool = True
    plans_training: bool = False
    plans_adaptive: bool = False


class Registry(Struct, frozen=True, kw_only=True):
    """Policies that can be chosen by name.

    Attributes:
        queue: what makes each policy for the jobs of a queue.
        training: what makes each policy for training jobs.
        adaptive: those of ``training`` that choose batch sizes of adaptive training jobs, and plan
            only these; they need NumPy and highspy.
    """

    queue: Mapping[str, Callable[[BalanceConfig], Chosen]]
    training: Mapping[str, Callable[[TrainingConfig], Policy]]
    adaptive: frozenset[str] = frozenset(ADAPTIVE_POLICIES)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names, in order."""
        return tuple(sorted({*self.queue, *self.training}))

    def choose(self, name: str, config: Config | None = None) -> Chosen:
        """Return a policy by its name, for all jobs.

        Args:
            name: of a policy for queues, beside which the configuration's policy plans training
                jobs; or of one for training jobs, beside which all others are balanced.
            config: the site's; None for the defaults.

        Raises:
            ConfigError: there is no such policy, or packages that it needs are not installed.
        """
        config = config or Config()
        queue, training = ("balance", name) if name in self.training else (name, "")
        training = training or config.training.policy
        if queue not in self.queue:
            raise unknown_policy(name, self.names)
        if training not in self.training:
            raise unknown_policy(training, tuple(self.training))
        adaptive = training in self.adaptive
        if adaptive:
            _check_installed(training)
        made = self.queue[queue](config.balance)
        plan = Composed(
            self.training[training](config.training),
            WithReservations(made.plan),
            share=config.training.share_for_others,
            adaptive_only=adaptive,
        )
        return structs.replace(
            made, name=name, plan=plan, plans_training=True, plans_adaptive=adaptive
        )


def _check_installed(name: str) -> None:
    missing = [each for each in ("highspy", "numpy") if importlib.util.find_spec(each) is None]
    if missing:
        raise ConfigError(
            f"policy {name!r} needs {' and '.join(missing)}, not installed here",
            hint="install gsched with its extra: pip install 'gsched[sia]'",
        )


def unknown_policy(name: str, known: Sequence[str]) -> ConfigError:
    """Return the error for a policy that does not exist."""
    problem, hint = policy_problem(name, known)
    return ConfigError(problem, hint=hint)


def _balance(settings: BalanceConfig) -> Chosen:
    return Chosen(
        plan=balance.balance(settings), books_of=balance.books_of(settings), reads_loads=True
    )


#: What a configuration may name.
INSTALLED: Final = Registry(
    queue=MappingProxyType({"balance": _balance, "fifo": lambda _: Chosen(plan=fifo.plan)}),
    training=MappingProxyType(
        {
            "deadline": lambda training: deadline.deadline(training.deadline),
            "drs": lambda training: drs.drs(training.drs),
            "elasticflow": lambda training: elasticflow.elasticflow(training.elasticflow),
            "goodput": lambda training: goodput.goodput(training.goodput),
            "sia": lambda training: sia.sia(training.sia),
        }
    ),
)


def chosen_policy(config: Config) -> Chosen:
    """Return the policy that plans for all queues, with the site's own settings.

    Raises:
        ConfigError: packages that it needs are not installed.
    """
    return INSTALLED.choose(config.queue[0].policy, config)
