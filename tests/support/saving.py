"""What runs on the machines of a hand-turned world, and how trainings save their state there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from gsched.protocol import node as n

if TYPE_CHECKING:
    from gschedd.core import effects as e
    from tests.support.world import Machine, World


class Running(Struct, kw_only=True):
    """A part that lives on a machine; ``turn`` grows when its end is planned anew."""

    share_gpus: tuple[int, ...]
    cpus: int
    started_s: float
    reported: bool = False
    turn: int = 0
    stopping: bool = False


def save_state(world: World, machine: Machine, order: e.SendCheckpoint) -> None:
    """Let a training save its state, in its own time, or say why it cannot."""
    job, attempt = order.job, order.attempt
    program = world.programs[job]

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
