"""What a modelled job does once it runs."""

from msgspec import Struct

from gschedd.sim.course import AdaptiveAttempt


class Program(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The behaviour of one part of a job.

    Attributes:
        work_s: how long it runs on a node of speed 1 that gives it all the CPU it wants, seconds.
        cpus: how many CPUs it keeps busy while it can, for each part; may be more or less than
            what was requested.
        memory_bytes: how much memory it uses, for each part.
        exit_code: with which it ends by itself.
        ignores_term: it ends only when it is killed.
        user_error: it cannot be started, through its user's fault.
        work_done: of a training, in earlier attempts, as its checkpoint has it.
        work_rate: of a training, work done in a second; 0 for all other jobs, which have no
            checkpoints.
        restore_s: until a training does its first step, seconds; part of ``work_s``.
        gpu_use: for which part of the time it keeps a GPU of its own busy; see
            `gschedd.sim.gpu_work`.
        gpu_uses: how busy its GPUs are from which second of it on, 0 to 1; empty: all the time.
        course: of an adaptive training, which ends when that does; None for all other jobs.
    """

    work_s: float
    cpus: float = 1.0
    memory_bytes: int = 0
    exit_code: int = 0
    ignores_term: bool = False
    user_error: bool = False
    work_done: float = 0.0
    work_rate: float = 0.0
    restore_s: float = 0.0
    gpu_use: float = 1.0
    gpu_uses: tuple[tuple[float, float], ...] = ()
    course: AdaptiveAttempt | None = None

    def checkpoint(self, wall_s: float, now_s: float) -> float | None:
        """Return the work done after so long, or None for a job without checkpoints."""
        if self.course is not None:
            return self.course.work_done(now_s)
        if not self.work_rate:
            return None
        return self.work_done + self.work_rate * max(0.0, wall_s - self.restore_s)
