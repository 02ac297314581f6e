"""What a checkpoint holds of a training, and how it gets out of and into it.

Weights and optimiser state go through torch.distributed.checkpoint, which lets every rank write a
part of them and any number of ranks read them. Everything else is small, mostly: rank 0 writes its
own into one file, and each rank into another what it has otherwise than rank 0, and what is its own
by nature, as its random number generators.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gsched.elastic import buffers, gradients, plain, sharded
from gsched.elastic.buckets import pretend_step
from gsched.elastic.differences import Digests, Entries, differences, digests_of
from gsched.elastic.errors import BadArgumentError, BadCheckpointError, SaveError
from gsched.elastic.flushing import Flush
from gsched.elastic.generators import generators_state
from gsched.elastic.manifest import File, describe_file
from gsched.elastic.pickles import (
    OBJECTS_NAME,
    RankState,
    rank_name,
    read_pickles,
    save_pickles,
)
from gsched.elastic.ranks import Ranks
from gsched.elastic.stateful import Stateful
from gsched.elastic.tensors import (
    METADATA_NAME,
    can_copy_early,
    copy_tensors,
    first_failure,
    load_tensors,
    save_tensors,
    words,
)
from gsched.failpoint import failpoint

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from gsched.elastic.early import EarlyCopy

State = dict[str, Any]
Fault = str | None  # in words; None: there is none


@dataclass(frozen=True, slots=True)
class Written:
    """What all ranks have written, and the flush of what this one has; None: that is nothing."""

    files: list[File]
    flush: Flush | None


class TrainingState:
    """The objects of a training whose state is saved.

    Args:
        model: bare, or wrapped by DistributedDataParallel or FSDP.
        optimizers: of this model.
        also: further objects by name; on another number of ranks all get rank 0's state.
        per_rank: further objects by name; on another number of ranks they begin anew.

    Raises:
        BadArgumentError: an optimiser has parameters that the model has not, or a name is in both.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        also: Mapping[str, Stateful],
        per_rank: Mapping[str, Stateful],
    ) -> None:
        self.model = model
        self.optimizers = tuple(optimizers)
        self.also = dict(also)
        self.per_rank = dict(per_rank)
        twice = sorted(set(also) & set(per_rank))
        if twice:
            raise BadArgumentError(f"{twice[0]!r} is named in both also and per_rank")
        fault = self._unknown_parameters()
        if fault is not None:
            raise BadArgumentError(fault)
        self._is_plain = plain.is_plain(model)
        self._watch = gradients.GradientWatch(self.optimizers)

    def may_be_saved(self) -> bool:
        """Return whether nothing is lost between two steps here.

        Gradients that are being accumulated are saved for models whose parameters are simply
        tensors of a rank, and for no others.
        """
        return self._is_plain or not self._watch.any_unused()

    def size_to_copy(self) -> int:
        """Return the size of what could be copied while the training goes on, bytes."""
        if not self._is_plain or not can_copy_early():
            return 0
        states = (parts for each in self.optimizers for parts in each.state.values())
        held = (value for parts in states if isinstance(parts, dict) for value in parts.values())
        sizes = (getattr(value, "nbytes", 0) for value in (*self.model.parameters(), *held))
        return sum(size for size in sizes if isinstance(size, int))

    def copy_early(self, directory: str, ranks: Ranks, *, only_constant: bool) -> EarlyCopy:
        """Begin to write a copy into ``directory`` that `save` brings up to date.

        Called by all ranks together. All of them raise if one of them cannot.

        Args:
            directory: an empty one.
            ranks: that save it.
            only_constant: copy only parameters that are not trained.

        Raises:
            SaveError: it cannot be begun.
        """
        tensors: State = {}
        constant: set[str] = set()
        fault: Fault = None
        try:
            names = plain.PlainNames(self.model)
            tensors, _, _ = self._plain_tensors(names)
            known = names.parameters(self.model)
            constant = {f"model.{name}" for each, name in known.items() if not each.requires_grad}
        except Exception as error:  # noqa: BLE001 - told, and the training goes on
            fault = words(error)
        raise_first(ranks.gather(fault))
        return copy_tensors(tensors, directory, ranks, constant, only_constant=only_constant)

    def save(
        self,
        directory: str,
        ranks: Ranks,
        *,
        flush_later: bool = False,
        copy: EarlyCopy | None = None,
    ) -> Written:
        """Write the state into ``directory``, flushed, or with a flush under way.

        Called by all ranks together. All of them raise if one of them cannot.

        Args:
            directory: an empty one, but for the copy.
            ranks: that save it.
            flush_later: do not wait for the flush.
            copy: what was written there early, and was ended.

        Raises:
            SaveError: the disk is full, or an object cannot be saved; the words say which.
        """
        tensors, entries, own, digests, fault = self._collect()
        raise_first(ranks.gather(fault))
        failpoint("training.save.before_data")
        known = save_tensors(tensors, directory, ranks, copy)
        rank_0s = ranks.share(digests)
        files: list[File] = []
        flush = None
        try:
            own["differences"] = differences(entries, digests, rank_0s)
            save_pickles(directory, ranks.rank, entries, own)
            names = _own_files(directory, ranks.rank)
            files, flush = describe_and_flush(directory, names, later=flush_later, known=known)
        except Exception as error:  # noqa: BLE001 - an object's pickle may raise anything; it is told
            fault = words(error)
        outcomes = ranks.gather((files, fault))
        raise_first([fault for _, fault in outcomes])
        return Written([file for files, _ in outcomes for file in files], flush)

    def load(
        self, directory: str, ranks: Ranks, world_size: int, fault_of_tensors: Callable[[], Fault]
    ) -> RankState:
        """Take the state over from ``directory``; called by all ranks together.

        Args:
            directory: of a checkpoint; but for those with tensors, its files were found good.
            ranks: that load it.
            world_size: ranks that saved it.
            fault_of_tensors: returns, when it is known, what is wrong with a file with tensors.

        Returns:
            What `give_back` needs before the first step.

        Raises:
            BadCheckpointError: it cannot be loaded into these objects; some may have been changed.
        """
        from torch.distributed.checkpoint.api import CheckpointException

        template, fault = self._template(directory)
        refuse_first(ranks.gather(fault))
        failure = None
        try:
            load_tensors(template, directory, ranks)
        except CheckpointException as error:  # no Exception; the same on all ranks
            failure = first_failure(error)
        except Exception as error:  # noqa: BLE001 - torch's own are many; it is told
            fault = words(error)
        # Here it is seen that what was loaded is what was saved. If not, an older checkpoint is
        # loaded over it, or the training does not start.
        refuse_first(ranks.gather(fault_of_tensors() or fault))
        if failure is not None:
            raise BadCheckpointError(failure)
        state = RankState({}, {}, is_same_size=False)
        try:
            state = read_pickles(directory, ranks, world_size)
            self._take_over(template, state)
        except Exception as error:  # noqa: BLE001 - an object may raise anything; it is told
            fault = words(error)
        refuse_first(ranks.gather(fault))
        if ranks.rank == 0:
            _tell_differences(set(state.named("also")), set(self.also))
            _tell_differences(set(state.objects), set(self.per_rank))
            if self.per_rank and not state.is_same_size:
                names = ", ".join(sorted(self.per_rank))
                sys.stderr.write(
                    f"gsched.elastic: there were {world_size} ranks, and now there are "
                    f"{ranks.world_size}: per_rank objects begin anew: {names}\n"
                )
        return state

    def give_gradients_their_place(self, state: RankState, world_size: int) -> None:
        """Let gradients that are to be given back lie in the model's buckets, if they did.

        DistributedDataParallel divides those that do by the number of ranks, and multiplies others
        with its inverse: not the same for three. Called by all ranks together.
        """
        if not self._is_plain or not state.entries["in_buckets"] or world_size <= 2:
            return
        for part in plain.distributed_parts(self.model):
            if part.gradient_as_bucket_view:
                pretend_step(part)

    def give_back(self, state: RankState) -> None:
        """Set all but weights and what optimisers keep of them to what it was.

        Args:
            state: what `load` has returned; objects of the script may keep parts of it.
        """
        names = plain.PlainNames(self.model)
        entries = state.entries
        buffers.give_back(
            self.model,
            names,
            state.named("buffer"),
            entries["transient"],
            strict=self._is_plain,
        )
        if self._is_plain:
            gradients.give_back(entries["gradients"], self._optimized(names))
            for number, optimizer in enumerate(self.optimizers):
                plain.give_back_groups(optimizer, entries[f"optimizer {number}"])
        parts = plain.distributed_parts(self.model)
        for part, syncs in zip(parts, entries["forward_syncs"], strict=False):
            part.require_forward_param_sync = syncs
        for name, saved in state.named("also").items():
            if name in self.also:
                self.also[name].load_state_dict(saved)
        for name, saved in state.objects.items() if state.is_same_size else ():
            if name in self.per_rank:
                self.per_rank[name].load_state_dict(saved)

    def _collect(self) -> tuple[State, Entries, State, Digests, Fault]:
        """Return all that is to be saved, or why it cannot be had.

        Returns:
            What torch.distributed.checkpoint saves; what rank 0 saves for all, and the others where
            they have it otherwise; what each rank saves; digests of the second.
        """
        fault = self._unknown_parameters()
        if fault is not None:
            return {}, {}, {}, {}, fault
        try:
            names = plain.PlainNames(self.model)
            held, transient = buffers.buffers_of(self.model, names)
            entries: Entries = {f"buffer {name}": tensor for name, tensor in held.items()}
            entries["transient"] = transient
            parts = plain.distributed_parts(self.model)
            entries["forward_syncs"] = tuple(part.require_forward_param_sync for part in parts)
            if self._is_plain:
                tensors, rest = self._collect_plain(names)
                entries.update(rest)
            else:
                tensors = sharded.collect(self.model, self.optimizers)
            for name, thing in self.also.items():
                entries[f"also {name}"] = thing.state_dict()
            own: State = {
                **generators_state(),
                "objects": {name: thing.state_dict() for name, thing in self.per_rank.items()},
            }
            return tensors, entries, own, digests_of(entries), None
        except Exception as error:  # noqa: BLE001 - told, and the training goes on
            return {}, {}, {}, {}, words(error)

    def _collect_plain(self, names: plain.PlainNames) -> tuple[State, Entries]:
        tensors, extra, rests = self._plain_tensors(names)
        entries: Entries = {
            "gradients": self._watch.collect(names.parameters(self.model)),
            "in_buckets": self._watch.in_buckets(),
            "extra": extra,
        }
        entries.update({f"optimizer {number}": rest for number, rest in enumerate(rests)})
        return tensors, entries

    def _plain_tensors(self, names: plain.PlainNames) -> tuple[State, State, list[State]]:
        """Return weights and optimiser state, what else the model has, and each optimiser."""
        import torch

        known = names.parameters(self.model)
        weights = plain.weights(self.model, names)
        model = {name: at for name, at in weights.items() if isinstance(at, torch.Tensor)}
        extra = {name: value for name, value in weights.items() if name not in model}
        pairs = [plain.optimizer_state(optimizer, known) for optimizer in self.optimizers]
        optimizers = {str(number): parts for number, (parts, _) in enumerate(pairs)}
        return {"model": model, "optimizers": optimizers}, extra, [rest for _, rest in pairs]

    def _unknown_parameters(self) -> Fault:
        own = set(self.model.parameters())
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        if all(own.issuperset(group["params"]) for group in groups):
            return None
        return (
            "an optimiser has parameters that the model has not: put all modules that are "
            "trained into one, as nn.ModuleDict, and give `start` that"
        )

    def _optimized(self, names: plain.PlainNames) -> dict[Tensor, str]:
        known = names.parameters(self.model)
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return {parameter: known[parameter] for group in groups for parameter in group["params"]}

    def _template(self, directory: str) -> tuple[State, Fault]:
        """Return what is to be loaded, with room for it, or why that is unknown."""
        from torch.distributed import checkpoint

        try:
            metadata = checkpoint.FileSystemReader(directory).read_metadata()
            saved = metadata.state_dict_metadata
            if not self._is_plain:
                return sharded.template(self.model, self.optimizers, saved), None
            tree = plain.saved_parts(saved, metadata.planner_data or {})
            names = plain.PlainNames(self.model)
            known = names.parameters(self.model)
            weights, _ = self._collect_plain(names)
            missing = sorted(set(tree.get("model", ())) - set(weights["model"]))
            if missing:
                return {}, f"it has weights {missing[0]!r}, which the model has not"
            states: State = tree.get("optimizers", {})
            if any(int(number) >= len(self.optimizers) for number in states):
                return {}, f"it is of {len(states)} optimisers, and here are {len(self.optimizers)}"
            optimizers = {
                str(number): plain.optimizer_template(optimizer, known, states.get(str(number), {}))
                for number, optimizer in enumerate(self.optimizers)
            }
            return {"model": weights["model"], "optimizers": optimizers}, None
        except Exception as error:  # noqa: BLE001 - a pickle may raise anything; it is told
            return {}, words(error)

    def _take_over(self, tensors: State, state: RankState) -> None:
        """Let all objects have what was loaded."""
        missing = [
            number
            for number in range(len(self.optimizers))
            if self._is_plain and f"optimizer {number}" not in state.entries
        ]
        if missing:
            raise BadCheckpointError(
                f"it is of {missing[0]} optimisers, and here are {len(self.optimizers)}"
            )
        self.give_back(copy.deepcopy(state))
        if not self._is_plain:
            sharded.give_back(self.model, self.optimizers, tensors)
            return
        # Weights are where they belong; the model's own way of loading may do more with them.
        names = plain.PlainNames(self.model)
        known = names.parameters(self.model)
        whole = self.model.state_dict()
        extra: State = state.entries["extra"]
        for key in whole:
            whole[key] = extra.get(names.of(key), whole[key])
        self.model.load_state_dict(whole, strict=False)
        for number, optimizer in enumerate(self.optimizers):
            rest = copy.deepcopy(state.entries[f"optimizer {number}"])
            plain.load_optimizer(optimizer, known, tensors["optimizers"][str(number)], rest)


def _own_files(directory: str, rank: int) -> list[str]:
    # torch names what a rank writes __RANK_NUMBER.distcp.
    names = [name for name in os.listdir(directory) if name.startswith(f"__{rank}_")]
    names.append(rank_name(rank))
    return [*names, METADATA_NAME, OBJECTS_NAME] if rank == 0 else names


def describe_and_flush(
    directory: str, names: Sequence[str], *, later: bool, known: Mapping[str, File] | None = None
) -> tuple[list[File], Flush]:
    """Return sizes and digests of files, and their flush: disk and processor work at once.

    Args:
        directory: where they are.
        names: of the files.
        later: do not wait for the flush.
        known: files whose digests are known.
    """
    flush = Flush([os.path.join(directory, name) for name in names])
    files = [(known or {}).get(name) or describe_file(directory, name) for name in names]
    if not later:
        flush.wait()
    return files, flush


def _tell_differences(saved: set[str], given: set[str]) -> None:
    for name in sorted(given - saved):
        sys.stderr.write(
            f"gsched.elastic: the checkpoint has no state of {name!r}: it begins anew\n"
        )
    for name in sorted(saved - given):
        sys.stderr.write(
            f"gsched.elastic: the checkpoint has a state of {name!r}, which this script does not "
            "name: it is left out\n"
        )


def raise_first(faults: Sequence[str | None]) -> None:
    """Raise `SaveError` with the first of the ranks' faults, if there is one."""
    for rank, fault in enumerate(faults):
        if fault is not None:
            raise SaveError(f"rank {rank}: {fault}" if len(faults) > 1 else fault)


def refuse_first(faults: Sequence[str | None]) -> None:
    """Raise `BadCheckpointError` with the first of the ranks' faults, if there is one."""
    for rank, fault in enumerate(faults):
        if fault is not None:
            raise BadCheckpointError(f"rank {rank}: {fault}" if len(faults) > 1 else fault)
