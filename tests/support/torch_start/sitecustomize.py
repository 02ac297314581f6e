"""Starts an interpreter that trains in half of the time: without torch's compiler.

This directory is in PYTHONPATH of a test's training (`tests.support.torch_python.TRAINING_PATH`):
each interpreter of it runs this first. Optimisers and DDP import ``torch._dynamo``, only to tell a
compiler that is not there what it must not compile: half of the CPU time that a rank takes to its
first step. ``torch.fx.experimental.symbolic_shapes`` brings a computer algebra system. What
``torch._meta_registrations`` and ``torch._decomp`` register is for tensors without content and for
compilers: a third of the CPU time of ``import torch``. A script that compiles fails with this;
ranks in forks of a process that has imported torch (`tests.support.forks`) have all of it, as have
the frameworks and the script of the guide.
"""

import gc
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any


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


sys.meta_path.insert(0, _WithoutOperators)

# What is imported stays: a tenth of the time of an import is for collections that find nothing.
gc.set_threshold(100_000, 50, 50)
