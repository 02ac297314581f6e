"""Starts an interpreter that trains in half of the time: without torch's compiler.

This directory is in PYTHONPATH of a test's training (`tests.support.torch_python.TRAINING_PATH`):
each interpreter of it runs this first. Optimisers and DDP import ``torch._dynamo``, only to tell a
compiler that is not there what it must not compile: half of the CPU time that a rank takes to its
first step. ``torch.fx.experimental.symbolic_shapes`` brings a computer algebra system. What
``torch._meta_registrations`` and ``torch._decomp`` register is for tensors without content and for
compilers: a third of the CPU time of ``import torch``. `WITHOUT` are packages for networks that are
exported, spread over ranks by dimensions, or debugged: a sixth of the CPU time to the first step of
a rank. A script that compiles fails with this; ranks in forks of a process that has imported torch
(`tests.support.forks`) have all of it, as have the frameworks and the script of the guide.
"""

import gc
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

#: Packages that are imported to be named only, by what trains: all below them is absent, too.
WITHOUT = (
    "torch.distributed.tensor",
    "torch.export",
    "torch._export",
    "torch._higher_order_ops",
    "torch.utils._debug_mode",
)


class _Absent(types.ModuleType):
    """A module of which other modules import classes that nobody uses."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _put(name: str, **content: object) -> None:
    sys.modules[name] = made = types.ModuleType(name)
    vars(made).update(content)


def _as_it_is(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    return function


def _nothing() -> None:
    pass


_put(
    "torch._dynamo",
    disable=_as_it_is,
    graph_break=_nothing,
    utils=types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    trace_rules=types.SimpleNamespace(clear_lru_cache=_nothing),
    eval_frame=types.SimpleNamespace(OptimizedModule=()),  # no object is an instance of it
)
for _absent in (
    "torch.fx.experimental.symbolic_shapes",  # it imports sympy
    "torch._decomp",
):
    sys.modules[_absent] = _Absent(_absent)


class _WithoutOperators:
    """Stands for ``torch._meta_registrations``; keeps what is needed of what that imports."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, cls()) if name == "torch._meta_registrations" else None  # type: ignore[arg-type]  # duck-typed

    def create_module(self, spec: ModuleSpec) -> None:
        pass

    def exec_module(self, module: types.ModuleType) -> None:
        torch: Any = sys.modules["torch"]
        from torch._opaque_base import OpaqueBaseMeta

        # As torch._prims.rng_prims does: no generator of random numbers is made without it.
        torch._C._set_generator_metaclass(OpaqueBaseMeta)


class _WithoutPackages:
    """Finds a package of `WITHOUT`, and whatever is sought in it."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        if not f"{name}.".startswith(tuple(f"{each}." for each in WITHOUT)):
            return None
        return ModuleSpec(name, cls(), is_package=True)  # type: ignore[arg-type]  # duck-typed

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path[:0] = [_WithoutOperators, _WithoutPackages]

# What is imported stays: a tenth of the time of an import is for collections that find nothing.
gc.set_threshold(100_000, 50, 50)
