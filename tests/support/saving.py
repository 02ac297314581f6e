"""The processes of a hand-turned world's machines, and how training jobs save their state there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from gsched.protocol import node as n

if TYPE_CHECKING:
    from tests.support.world import Machine, World


class Program(Struct, kw_only=True):
    """What a job does once it runs.

    Attributes:
        runs_s: how long, if nobody stops it.
        exit_code: its own; ``exit_codes`` names other ones for single nodes.
        runs_on_s: other run times for single nodes.
        ignores_term: it ends only when it is killed.
        user_error: it cannot be started, and that is its own fault.
        oom: it is killed for memory instead of ending by itself.
        saves_s: how long it takes to save its state; None: it never answers.
        save_fault: why it cannot save its state.
        deaf_on: nodes on which no process handles the signal that requests its state.
        killed_by: the signal that ends it when it has been asked to save its state by a signal.
    """

    runs_s: float = 10.0
    exit_code: int = 0
    exit_codes: dict[str, int] = {}
    runs_on_s: dict[str, float] = {}
    ignores_term: bool = False
    user_error: bool = False
    oom: bool = False
    saves_s: float | None = 0.5
    save_fault: str = ""
    deaf_on: tuple[str, ...] = ()
    killed_by: int | None = None


class Running(Struct, kw_only=True):
    """A part that lives on a machine; ``turn`` grows when its end is planned anew."""

    share_gpus: tuple[int, ...]
    cpus: int
    started_s: float
    reported: bool = False
    turn: int = 0
    stopping: bool = False
    asked: int = 0
    requested_s: float = 0.0
    unhandled: int = 0


def save_state(world: World, machine: Machine, order: n.TakeCheckpoint) -> None:
    """Let a training save its state, in its own time, or say why it cannot."""
    job, attempt = order.job, order.attempt
    program = world.programs[job]
    if order.signal:
        _leave(world, machine, order)
        return

    def answer() -> None:
        part = machine.running.get((job, attempt))
        if part is None:
            return
        if program.save_fault:
            message: n.AttemptMessage = n.CheckpointFailed(
                job=job, attempt=attempt, request=order.request, message=program.save_fault
            )
        else:
            message = n.Checkpointed(
                job=job,
                attempt=attempt,
                request=order.request,
                step=1,
                work_done=world.now_s - part.started_s,
                waits=True,
            )
        world.tell(machine, message)

    if program.saves_s is not None:
        world.later(program.saves_s, answer)


def _leave(world: World, machine: Machine, order: n.TakeCheckpoint) -> None:
    """Let a job that only knows a signal save its state and end; it hears each request once."""
    part = machine.running.get((order.job, order.attempt))
    if part is None or order.request <= part.asked:
        return
    if machine.name in world.programs[order.job].deaf_on:
        part.unhandled = order.request
        message = f"no process of the job handles signal {order.signal}"
        failed = n.CheckpointFailed(
            job=order.job, attempt=order.attempt, request=order.request, message=message
        )
        world.tell(machine, failed)
        return
    part.asked, part.requested_s = order.request, world.now_s
    machine.signals.append((order.job, order.signal))
    program = world.programs[order.job]
    if program.saves_s is not None:
        world.later(program.saves_s, lambda: world.leave(machine, (order.job, order.attempt), part))
