"""What adaptive jobs have measured, by job and by kind."""

import numpy as np
import pytest
from msgspec import structs

from gsched.model.training import Adaptive
from gschedd.models.adaptive import GoodputKnowledge
from gschedd.models.goodput.model import UNKNOWN
from gschedd.models.steptimes import Steps

ASKED = Adaptive(batch=32, batch_max=256)
KIND = "net"


def measured(gpu_type: str, step_s: float, per_gpu: int = 32) -> Steps:
    """Return steps on one GPU of a type."""
    return Steps(
        counts=(1,),
        gpu_type=gpu_type,
        samples=per_gpu,
        step_s=step_s,
        gradient_s=step_s,
        batch_per_gpu=per_gpu,
        batch_per_gpu_max=128,
    )


def goodput(known: GoodputKnowledge, job: int, gpu_type: str) -> float:
    """Return the goodput of a job on one GPU."""
    one = np.array([1])
    return float(known.model(job, KIND, ASKED).best(gpu_type, one, one).goodput[0])


def test_what_others_of_its_kind_measured_counts_on_types_that_a_job_has_not_run_on() -> None:
    """Job 2 runs twice as long as job 1 on type a; of type b it knows what job 1 took there."""
    known = GoodputKnowledge()
    known.learn(KIND, 1, measured("a", 1.0), 0.0)
    known.learn(KIND, 1, measured("b", 0.25), 0.0)
    before = goodput(known, 2, "b")
    known.learn(KIND, 2, measured("a", 2.0), 1.0)

    assert known.types(2, KIND) == {"a", "b"}
    assert goodput(known, 2, "a") == pytest.approx(goodput(known, 1, "a") / 2)
    assert goodput(known, 2, "b") == pytest.approx(before)
    assert before == pytest.approx(4 * goodput(known, 1, "a"))
    assert known.gpus_reached(2) == 1


def test_what_others_measure_later_counts_as_well() -> None:
    """A model that was requested already takes in what its kind learns of another type."""
    known = GoodputKnowledge()
    known.learn(KIND, 2, measured("a", 2.0), 0.0)
    assert known.model(2, KIND, ASKED).types() == {"a"}
    known.learn(KIND, 1, measured("b", 0.25), 1.0)
    known.learn(KIND, 1, measured("a", 9.0), 1.0)

    assert known.model(2, KIND, ASKED).types() == {"a", "b"}
    assert goodput(known, 2, "b") == pytest.approx(8 * goodput(known, 2, "a"))


def test_kinds_teach_how_fast_a_type_is_on_which_a_job_was_never_measured() -> None:
    """Another kind is four times as fast on type b: so is this one expected to be, until it ran."""
    known = GoodputKnowledge()
    known.learn("other", 1, measured("a", 3.0), 0.0)
    known.learn("other", 1, measured("b", 0.75), 0.0)
    known.learn(KIND, 2, measured("a", 1.0), 1.0)

    assert known.model(2, KIND, ASKED).types() == {"a"}
    assert goodput(known, 2, "b") == pytest.approx(4 * goodput(known, 2, "a"))
    known.learn(KIND, 2, measured("b", 2.0), 2.0)
    assert goodput(known, 2, "b") == pytest.approx(goodput(known, 2, "a") / 2)


def test_a_type_on_which_no_kind_was_measured_is_tried() -> None:
    """It counts as somewhat faster than the fastest type that is known."""
    known = GoodputKnowledge()
    known.learn(KIND, 2, measured("a", 1.0), 0.0)
    known.learn(KIND, 2, measured("b", 4.0), 0.0)

    assert goodput(known, 2, "c") == pytest.approx(UNKNOWN * goodput(known, 2, "a"))


def test_steps_of_several_gpus_say_nothing_of_the_speed_of_a_type() -> None:
    known = GoodputKnowledge()
    known.learn("other", 1, measured("a", 1.0), 0.0)
    several = structs.replace(measured("b", 0.1), counts=(2,), samples=64)
    known.learn("other", 1, several, 0.0)
    known.learn(KIND, 2, measured("a", 1.0), 1.0)

    assert goodput(known, 2, "b") == pytest.approx(UNKNOWN * goodput(known, 2, "a"))
