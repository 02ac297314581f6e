"""How long a training runs where: the run-time model of the deadline policies.

Source: Fu Maozhong, Hu Haiyang, Li Zhongjin, "A dynamic resource scheduling method for GPU
clusters", Journal of Computer Research and Development 60(6), 2023,
doi 10.7544/issn1000-1239.202220149; the numbers of the equations are theirs. Ours are: the device's
speed divides the time of a step, the bandwidth is that of the slowest connection that is used
(`gschedd.plan.training.Fabric`), and a training that may not have one GPU is not held to be slower
than one.
"""

from typing import Final

from msgspec import Struct

from gsched.model.training import ALPHA, Training, Urgency
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.training import Layout, Size

#: Bytes of a gradient: one number of 32 bits for each parameter (equation 5).
GRADIENT_BYTES: Final = 4

ONE_GPU: Final = Layout(counts=(1,))


class PaperSpeed(Struct, frozen=True, kw_only=True, cache_hash=True, tag="paper"):
    """Data-parallel training with a ring all-reduce after every step; its work is in samples.

    Equation 2: ``T_step = T_cal + T_comm``. Equation 3: ``N_step = S_dataset / (S_batch * N_GPU)``.
    So ``S_batch * N_GPU / T_step`` samples are done in a second, and equation 1,
    ``T_run = T_step * N_step * N_epoch``, is the samples that are left over this rate.

    Attributes:
        parameters: of the model (N_param).
        batch: samples in a step on each GPU (S_batch).
        step_time_s: T_cal, of one step on one GPU without communication, seconds; equation 4
            measures it as the mean of a few iterations.
    """

    parameters: float
    batch: float
    step_time_s: float

    def __post_init__(self) -> None:
        """Raise ValueError where this can be no training."""
        if self.parameters < 0 or self.batch <= 0 or self.step_time_s <= 0:
            raise ValueError(
                f"batch and step time must be above 0, parameters not below it: {self}"
            )

    def communication_s(self, layout: Layout) -> float:
        """Return T_comm of a step, seconds: 0 on one GPU.

        Equation 5: ``2 (N_GPU - 1) / N_GPU * 4 N_param / B``, what each GPU sends and receives in a
        ring over the bandwidth inside the node, or the network's where there are several nodes.
        """
        gpus = layout.gpus
        sent_bytes = 2 * (gpus - 1) / gpus * GRADIENT_BYTES * self.parameters
        return sent_bytes / layout.bandwidth_bytes_s

    def step_s(self, layout: Layout) -> float:
        """Return T_step, seconds (equation 2)."""
        return self.step_time_s / layout.device + self.communication_s(layout)

    def rate(self, layout: Layout) -> float:
        """Return samples a second.

        Equations 5, 2 and 3 in one, as it is requested each training on each layout.
        """
        gpus = layout.gpus
        sent_bytes = 2 * (gpus - 1) / gpus * GRADIENT_BYTES * self.parameters
        step_s = self.step_time_s / layout.device + sent_bytes / layout.bandwidth_bytes_s
        return self.batch * gpus / step_s


class WalltimeSpeed(Struct, frozen=True, kw_only=True, cache_hash=True, tag="walltime"):
    """A training of which only the run time on the GPUs asked for is known; its work is in seconds.

    On fewer GPUs it is taken to be slower in proportion, on more to be no faster. With any speed-up
    that grows ever more slowly with the GPUs, which is every one without a gain in cache or memory,
    it really ends no later than that: fewer cost at most so much, and such a guarantee is kept.

    Attributes:
        gpus: on which the run time is known; 0: it has none, and takes as long anywhere.
    """

    gpus: int

    def __post_init__(self) -> None:
        """Raise ValueError where this can be no training."""
        if self.gpus < 0:
            raise ValueError(f"there are no fewer GPUs than none: {self}")

    def rate(self, layout: Layout) -> float:
        """Return the seconds of run time on the known GPUs that a second here is worth."""
        share = min(layout.gpus / self.gpus, 1.0) if self.gpus else 1.0
        return share * layout.device


def size_of_training(training: Training) -> Size | None:
    """Return how much work a training is and how fast it is done; None if too little is said.

    What was measured (``iterations`` and ``rates``) goes before the model and its data. Parameters
    must be named: without them several GPUs would look better than they are.

    Raises:
        ValueError: a number in it is impossible.
    """
    if training.iterations and training.rates:
        return Size(speed=TableSpeed.of(training), work=training.iterations)
    samples = training.samples * training.epochs
    if samples and training.batch and training.step_time_s and training.parameters:
        speed = PaperSpeed(
            parameters=training.parameters,
            batch=training.batch,
            step_time_s=training.step_time_s,
        )
        return Size(speed=speed, work=samples)
    return None


def size_of_run(run_time_s: float, gpus: int) -> Size:
    """Return the size of a training that is known to run so long on so many GPUs.

    Raises:
        ValueError: the number of GPUs is below 0.
    """
    return Size(speed=WalltimeSpeed(gpus=gpus), work=run_time_s, with_start=True)


def one_gpu_time_s(size: Size) -> float:
    """Return T_max, the run time on one GPU on which times were measured, seconds.

    Infinite where it cannot run on one.
    """
    rate = size.speed.rate(ONE_GPU)
    return size.work / rate if rate > 0 else float("inf")


def allowed_time_s(size: Size, urgency: Urgency) -> float:
    """Return T_exp, how long after its submission a training must be done, seconds.

    Equation 6: ``T_exp = alpha * T_max``; equation 7, the deadline, adds the time of submission.
    """
    return ALPHA[urgency] * one_gpu_time_s(size)
