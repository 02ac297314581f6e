"""From a script's model, optimiser and data to a training that has restored its state."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, overload

from gsched.elastic.adaptive.adaptation import LEARNED_NAME, Adaptation
from gsched.elastic.adaptive.options import Adaptive
from gsched.elastic.adaptive.training import AdaptiveTraining
from gsched.elastic.buckets import settle_buckets
from gsched.elastic.environment import Environment
from gsched.elastic.errors import BadArgumentError, ElasticError, WorldSizeError
from gsched.elastic.gate import is_waiting, proof_ahead, ready
from gsched.elastic.keeper import COPY_MIN_BYTES, CheckpointKeeper
from gsched.elastic.plain import distributed_parts
from gsched.elastic.ranks import Ranks
from gsched.elastic.reporter import SECOND_PERIOD_S, Reporter
from gsched.elastic.samples import Samples
from gsched.elastic.shelf import Shelf
from gsched.elastic.state import TrainingState
from gsched.elastic.stateful import generators_of, statefuls
from gsched.elastic.training import Settings, Training

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@overload
def start(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    samples: Samples,
    *,
    also: Mapping[str, object] | None = None,
    per_rank: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    adaptive: None = None,
) -> Training: ...


@overload
def start(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    samples: Samples,
    *,
    also: Mapping[str, object] | None = None,
    per_rank: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    adaptive: Adaptive,
) -> AdaptiveTraining: ...


def start(  # noqa: PLR0913 - each is one thing that a script has or says
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    samples: Samples,
    *,
    also: Mapping[str, object] | None = None,
    per_rank: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    adaptive: Adaptive | None = None,
) -> Training:
    """Return a training that goes on where its newest good checkpoint is, or begins anew.

    Call it on all ranks, when the process group is there and everything that has state is made.

    Args:
        model: bare, or wrapped by DistributedDataParallel or FSDP.
        optimizer: of this model, or several.
        samples: the data, and how it is gone through.
        also: what else has a state, by name: schedulers, a gradient scaler, averaged weights, a
            random number generator. After a change of the number of ranks all have rank 0's.
        per_rank: the same of what belongs to one rank: it begins anew after such a change.
        settings: where checkpoints are and how often, if the environment is not to say it.
        adaptive: let the global batch follow the GPUs; ``samples`` has the tuned one.

    Raises:
        ElasticError: the training cannot start as it is; nobody needs to catch it (see there).
    """
    try:
        if is_waiting():  # at the latest: nothing of a checkpoint is read before
            ready()
        optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        adaptation = None if adaptive is None else Adaptation(adaptive, optimizers)
        others = statefuls("also", {**(also or {}), **_also(adaptation, also or {})})
        own = statefuls("per_rank", per_rank or {})
        if adaptation is not None:
            adaptation.generators = [*generators_of(others), *generators_of(own)]
        return _start(
            model,
            samples,
            TrainingState(model, optimizers, others, own),
            settings or Settings(),
            adaptation,
        )
    except ElasticError as error:
        tell_error(error)
        raise


def tell_error(error: ElasticError) -> None:
    """Write why a training cannot start, once for all ranks, and where torchrun looks for it."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"gsched.elastic: {error}\n")
        sys.stderr.flush()
    _tell_torchrun(str(error))


def _tell_torchrun(message: str) -> None:
    """Leave the words where torchrun looks for them, so that the job's outcome has them."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump({"message": message, "timestamp": int(time.time())}, file)


def _also(adaptation: Adaptation | None, given: Mapping[str, object]) -> dict[str, object]:
    """Return what is saved of an adaptive training beside what its script names."""
    if adaptation is None:
        return {}
    if LEARNED_NAME in given:
        raise BadArgumentError(
            f"also={{{LEARNED_NAME!r}: …}}: an adaptive training saves its own state under this "
            "name: choose another one"
        )
    return {LEARNED_NAME: adaptation.learned}


def _start(
    model: nn.Module,
    samples: Samples,
    state: TrainingState,
    settings: Settings,
    adaptation: Adaptation | None,
) -> Training:
    environment = Environment.read()
    ranks = Ranks()
    started = int(os.environ.get("WORLD_SIZE") or 1) if "RANK" in os.environ else 1
    if ranks.group is None and started > 1:
        # Each would train alone, with all samples, and all would save into one directory.
        raise WorldSizeError(
            f"this is one of {started} ranks, and they have no process group: call "
            "torch.distributed.init_process_group() before elastic.start()"
        )
    if adaptation is not None:
        samples = adaptation.follow(samples, environment, ranks)
    elif environment.batch_per_gpu and ranks.rank == 0:
        sys.stderr.write(
            "gsched.elastic: the batch stays as it is: GSCHED_BATCH_PER_GPU is set, and the script "
            "calls elastic.start() without adaptive=\n"
        )
    samples.check(ranks.world_size)
    settings = replace(
        settings,
        directory=settings.directory or environment.directory,
        interval_s=environment.interval_s if settings.interval_s is None else settings.interval_s,
    )
    speaking = environment if ranks.rank == 0 else replace(environment, socket=None)
    reporter = Reporter(speaking, samples, ranks.world_size)
    training = Training(model, samples, ranks, reporter, settings)
    if adaptation is not None:
        reporter.second_after(SECOND_PERIOD_S)
        training = AdaptiveTraining(model, adaptation, ranks, reporter, settings)
    for part in distributed_parts(model):
        settle_buckets(part, ranks.world_size)
    keeper, restored = None, None
    # Rank 0 decides for all: one that saved while others did not would wait for them for ever.
    directory = ranks.share(settings.directory)
    if directory is not None:
        # The first save would take a second longer otherwise, with a move waiting for it.
        importlib.import_module("torch.distributed.checkpoint.state_dict")
        keeper = CheckpointKeeper(
            Shelf(directory),
            ranks,
            state,
            samples,
            job=environment.job,
            attempt=environment.attempt,
            ahead=proof_ahead(),
            copy_min_bytes=(
                COPY_MIN_BYTES if environment.copy_min_bytes is None else environment.copy_min_bytes
            ),
        )
        restored = keeper.restore()
        if restored is not None:
            samples.check(ranks.world_size, restored.position.offset)
        if restored is None and environment.attempt > 1 and ranks.rank == 0:
            sys.stderr.write(
                f"gsched.elastic: attempt {environment.attempt} of job {environment.job} begins "
                f"anew: there is no checkpoint in {directory}\n"
            )
    training.begin_with(keeper, restored)
    return training
