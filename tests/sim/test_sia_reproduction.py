"""Sia's lists and traces as training jobs, and what the reproduction counts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gsched.errors import UsageError
from gsched.model.training import Batching, Scaling
from scripts.reproduce.sia_ablations_main import main as compare
from scripts.reproduce.sia_floor import floor_of, floor_s, rigid_floor_s
from scripts.reproduce.sia_lists import Cluster, Jobs, Row, Says, lists_of, read_list, with_rigid
from scripts.reproduce.sia_main import DATA, contender, main
from scripts.reproduce.sia_runs import Contention, Setup, alone_s, run_list
from scripts.reproduce.sia_training import TracedTraining, least_run_time_s, spread
from scripts.reproduce.sia_truth import Application

#: Step times are linear in the batch; those of two nodes twice as long.
PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,10,1.0,0.0
1,30,3.0,0.0
2,10,1.5,0.5
2,20,2.5,0.5
4,10,1.6,0.6
11,10,3.0,2.0
44,10,4.0,3.0
"""
SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
6,6,10,5.0,4.0
6,24,10,6.0,5.0
"""
#: Two epochs of ten steps; with the larger batch the noise scale is 20 and then 60 samples.
VALIDATION = {
    20: "progress,iteration,metric,grad_sqr,grad_var\n10,10,1,1.0,1.0\n20,20,1,1.0,3.0\n",
    40: "progress,iteration,metric,grad_sqr,grad_var\n10.5,7,1,1.0,1.0\n20,14,1,1.0,3.0\n",
}
LIST = """name,time,application,num_replicas,batch_size
toy-1,100,toy,2,40
toy-0,40,toy,1,20
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with the traces of one model, and a list."""
    model = tmp_path / "traces" / "toy"
    model.mkdir(parents=True)
    for suffix, factor in (("aws", 1.0), ("rtx", 0.5), ("dgx-ext", 0.25)):
        (model / f"placements-{suffix}.csv").write_text(_faster(PLACEMENTS, factor), "utf-8")
        (model / f"scalability-{suffix}.csv").write_text(_faster(SCALABILITY, factor), "utf-8")
    for batch, text in VALIDATION.items():
        (model / f"validation-{batch}.csv").write_text(text, "utf-8")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "workload-1.csv").write_text(LIST, "utf-8")
    return tmp_path


def _faster(table: str, factor: float) -> str:
    header, *lines = table.splitlines()
    fields = [line.split(",") for line in lines]
    rows = [
        ",".join([*row[:-2], *(f"{factor * float(value)}" for value in row[-2:])]) for row in fields
    ]
    return "\n".join([header, *rows]) + "\n"


@pytest.fixture
def toy(data: Path) -> Application:
    """Return the model."""
    return Application("toy", data / "traces")


def test_steps_between_measured_batches_are_interpolated(toy: Application) -> None:
    """Linear in the batch, whatever the order of nodes; below the smallest as with that."""
    device = toy.device("t4")
    found = device.times((2,), 14)
    small, apart = device.times((1,), 4), device.times((1, 1), 10)

    assert (device.per_gpu_min, device.per_gpu_max, device.per_node) == (10, 30, 4)
    assert found is not None
    assert (found.step_s, found.gradient_s) == pytest.approx((1.9, 1.4))
    assert small is not None
    assert small.step_s == 1.0
    assert apart is not None
    assert apart.gradient_s == 1.0
    assert (device.largest((2,)), device.largest((4,)), device.times((2,), 21)) == (20, 10, None)


def test_an_efficiency_is_that_of_the_epoch_and_the_batch(toy: Application) -> None:
    """Gain (var + sqr) / (var / scale + sqr); the progress of an epoch is the least of all."""
    assert (toy.batch, toy.batch_max) == (20, 40)
    assert toy.ends == (200.0, 400.0)
    assert toy.gain(40, 0) == pytest.approx(2 / 1.5)
    assert toy.gain(40, 1) == pytest.approx(4 / 2.5)
    assert toy.gain(20, 1) == 1.0
    assert (toy.epoch(0.0), toy.epoch(200.0), toy.epoch(400.0)) == (0, 1, 1)


def test_a_training_takes_the_steps_of_its_epochs(toy: Application) -> None:
    """What is chosen counts, in passes that fit; a fixed batch is split over the GPUs."""
    free, fixed = TracedTraining(toy), TracedTraining(toy, 40)
    chosen = free.step((("t4", 2),), Batching(per_gpu=20))
    large = free.step((("t4", 1),), Batching(per_gpu=40))
    alone = fixed.step((("t4", 1),), None)
    mixed = fixed.step((("a100", 2), ("t4", 2)), None)

    assert chosen is not None
    assert (chosen.samples, chosen.step_s) == pytest.approx((40, 1.2 * 2.5))
    assert large is not None
    assert large.batching == Batching(per_gpu=20, accumulation=1)
    assert large.step_s == pytest.approx(1.2 * 4.0)
    assert alone is not None
    assert (alone.samples, alone.batching.accumulation) == (40, 1)
    assert mixed is not None
    assert mixed.step_s == pytest.approx(1.2 * 1.6)  # four of the slower type on one node
    assert free.stretch(0.0, 40).efficiency == pytest.approx(2 / 3)
    assert fixed.work == pytest.approx(200 / (2 / 3) + 200 / 0.8)


def test_a_fixed_batch_that_its_gpus_do_not_divide_is_not_cut(toy: Application) -> None:
    """Three GPUs do 40 samples in two passes of seven on each, and some one less."""
    training = TracedTraining(toy, 40)
    places = (("t4", 3),)
    told = training.step(places, Batching(per_gpu=7, accumulation=1))
    large = training.step(places, Batching(per_gpu=14))

    assert told is not None
    assert (told.batching, told.samples, told.fits) == (
        Batching(per_gpu=7, accumulation=1),
        40,
        True,
    )
    assert training.step(places, None) == told
    assert large is not None
    assert (large.batching, large.samples, large.fits) == (
        Batching(per_gpu=7, accumulation=1),
        40,
        False,
    )


def test_a_batch_above_the_largest_global_one_is_cut_and_fits(toy: Application) -> None:
    """The batch is limited, and not by memory."""
    cut = TracedTraining(toy).step((("t4", 3),), Batching(per_gpu=7, accumulation=1))

    assert cut is not None
    assert (cut.batching.per_gpu, cut.samples, cut.fits) == (6, 36, True)


#: A job alone starts on a type on which it is not fastest, and may migrate; of its floor.
ALONE: float = 1.2


def _alone_s(folder: Path, row: Row, application: Application, policy: str) -> float:
    """Return the completion time of a rigid job alone on the cluster, seconds."""
    path = folder / "alone-1.csv"
    path.write_text(
        f"{LIST.splitlines()[0]}\n{row.name},0,{row.application},{row.gpus},{row.batch}\n", "utf-8"
    )
    setup = Setup(
        cluster=Cluster("hetero64"), applications={row.application: application}, rigid=1.0
    )
    found = run_list(path, contender(policy), setup)
    assert found.unfinished == 0
    return 3600 * found.jct_h


def test_each_model_and_size_of_the_lists_alone_takes_as_long_as_its_floor(tmp_path: Path) -> None:
    """On the empty cluster, under `goodput`: no rigid job of Sia's lists is slowed down."""
    if not DATA.is_dir():
        pytest.skip("the traces of Sia's artifact are not here")
    sizes: dict[tuple[str, int, int], Row] = {}
    for path in lists_of([DATA / "workloads" / "philly"]):
        for row in with_rigid(read_list(path), 1.0):
            sizes[row.application, row.gpus, row.batch] = row
    models = {model: Application(model, DATA / "traces") for model, _, _ in sizes}
    cluster = Cluster("hetero64")
    over: dict[tuple[str, int, int], float] = {}
    for size, row in sizes.items():
        floor = floor_of(row, cluster, models[row.application])
        took = _alone_s(tmp_path, row, models[row.application], "goodput") / floor
        assert took == pytest.approx(1) or took > 1
        over |= {size: took} if took > ALONE else {}

    assert len(sizes) >= 15
    assert over == {}


def test_isolated_run_times_use_the_best_batch_in_each_epoch(toy: Application) -> None:
    """Four GPUs do 40 samples in the time of 20, which count as 4/3 and 8/5 steps of 20."""
    four_s = 1.2 * 1.6 * (10 / (4 / 3) + 10 / (8 / 5))

    assert least_run_time_s(toy, "t4", (1,)) == pytest.approx(1.2 * 2.0 * 20)
    assert least_run_time_s(toy, "t4", (4,)) == pytest.approx(four_s)


def test_the_floor_of_a_rigid_job_is_on_the_fastest_type_that_has_its_gpus(
    toy: Application,
) -> None:
    """Its batch and its GPUs are fixed: 40 samples in 13.75 steps; the A100 is the fastest type."""
    hetero, homo = Cluster("hetero64"), Cluster("homo64")

    assert rigid_floor_s(toy, homo, 2, 40) == pytest.approx(30 + 13.75 * 1.2 * 2.5)
    assert rigid_floor_s(toy, hetero, 2, 40) == pytest.approx(30 + 13.75 * 1.2 * 2.5 / 4)
    assert rigid_floor_s(toy, hetero, 25, 40) == float("inf")
    assert floor_s(toy, hetero) <= rigid_floor_s(toy, hetero, 2, 40)


def test_the_floor_is_printed_and_nothing_is_run(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each model, or for each size of rigid jobs."""
    arguments = ["--trace", str(data / "lists"), "--truth", str(data / "traces"), "--floor"]
    assert main(arguments) == 0
    free = capsys.readouterr().out
    assert main([*arguments, "--rigid", "1"]) == 0
    rigid = capsys.readouterr().out

    assert "alone on the whole" in free
    assert [line.split("│")[0].strip() for line in free.splitlines()].count("toy") == 1
    assert [line.split("│")[0].strip() for line in rigid.splitlines()].count("toy") == 2


def test_the_share_of_a_job_is_taken_on_each_type(toy: Application) -> None:
    """Weighted by GPUs; between whole numbers linear, below one in proportion."""
    cluster = Cluster("homo64")
    one_s, two_s = (30.0 + least_run_time_s(toy, "t4", (gpus,)) for gpus in (1, 2))

    assert alone_s(toy, cluster, 1.0) == pytest.approx(one_s)
    assert alone_s(toy, cluster, 1.5) == pytest.approx((one_s + two_s) / 2)
    assert alone_s(toy, cluster, 0.5) == pytest.approx(2 * one_s)


def test_contention_is_averaged_over_the_life_of_a_job() -> None:
    """Two jobs for half of the time."""
    found = Contention([(0.0, 10.0), (5.0, 20.0), (30.0, 40.0)])

    assert found.mean(0.0, 10.0) == pytest.approx(1.5)
    assert found.mean(5.0, 20.0) == pytest.approx((5 * 2 + 10) / 15)
    assert found.mean(30.0, 40.0) == pytest.approx(1.0)


def test_a_list_is_read_in_order_of_submission(data: Path) -> None:
    """Jobs ask for what their users tuned, or say how fast they are on each number of GPUs."""
    (path,) = lists_of([data / "lists"])
    rows = read_list(path)
    toy = {"toy": Application("toy", data / "traces")}
    asked = Jobs(rows, Cluster("hetero64"), toy, Says.JOBS).jobs
    sized = Jobs(rows, Cluster("hetero64"), toy, Says.TRAININGS).jobs

    assert [(row.name, row.submit_s, row.gpus) for row in rows] == [
        ("toy-0", 40.0, 1), ("toy-1", 100.0, 2),
    ]  # fmt: skip
    assert asked[1].resources == "select=2:ncpus=1:ngpus=1,place=free"
    assert sized[0].training is not None
    assert dict(sized[0].training.rates)[2] == pytest.approx(1 / (1.2 * 1.5))
    assert sized[0].training.iterations == pytest.approx(20)


@pytest.mark.parametrize("policy", ["fifo", "themis"])
def test_a_list_is_run_and_told(
    data: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every job ends; the figures are those of its jobs; the table and the file say the same."""
    found = _run(data, "--policies", policy)

    assert found["cluster"] == "hetero64"
    (figures,) = found["lists"]
    each = {job["name"]: job for job in figures["each"]}
    assert (figures["jobs"], figures["unfinished"]) == (2, 0)
    assert figures["jct_h"] == pytest.approx(sum(job["jct_s"] for job in each.values()) / 7200)
    assert figures["makespan_h"] == pytest.approx(
        (max(job["submit_s"] + job["jct_s"] for job in each.values()) - 40) / 3600
    )
    assert f" {policy} " in capsys.readouterr().out


def test_jobs_alone_take_what_the_traces_say(data: Path) -> None:
    """On the number of GPUs that was requested: one start, and the steps of two epochs."""
    (figures,) = _run(data, "--policies", "fifo", "--cluster", "homo64")["lists"]
    each = {job["name"]: job for job in figures["each"]}

    assert each["toy-0"]["jct_s"] == pytest.approx(30 + 20 * 1.2 * 2.0)
    assert each["toy-1"]["jct_s"] == pytest.approx(30 + 13.75 * 1.2 * 2.5)
    assert each["toy-1"]["gpu_s"] == pytest.approx(2 * each["toy-1"]["jct_s"])
    assert each["toy-1"]["restarts"] == 0


def _run(data: Path, *arguments: str) -> dict[str, Any]:
    given: Sequence[str] = (
        "--trace", str(data / "lists"),
        "--truth", str(data / "traces"),
        "--json", str(data / "out.json"),
        *arguments,
    )  # fmt: skip
    assert main(given) == 0
    found: dict[str, Any] = json.loads((data / "out.json").read_text("utf-8"))
    return found


def test_larger_parts_of_rigid_jobs_include_smaller_ones(data: Path) -> None:
    """Nothing else of a job changes."""
    rows = read_list(data / "lists" / "workload-1.csv") * 10
    none, some, all_ = (with_rigid(rows, part) for part in (0.0, 0.3, 1.0))
    rigid = [place for place, row in enumerate(some) if row.scaling is Scaling.RIGID]
    more = with_rigid(rows, 0.6)

    assert none == rows
    assert len(rigid) == 6
    assert all(more[place].scaling is Scaling.RIGID for place in rigid)
    assert {row.scaling for row in all_} == {Scaling.RIGID}
    assert [row.gpus for row in all_] == [row.gpus for row in rows]


def test_a_job_that_is_not_profiled_measures_no_batches(toy: Application) -> None:
    """Its steps stay what they are."""
    profiled, plain = TracedTraining(toy), TracedTraining(toy, profiled=False)
    places = (("t4", 2),)

    assert [sample.batch_per_gpu for sample in profiled.profile("t4")] == [10, 30]
    assert plain.profile("t4") == ()
    assert plain.step(places, None) == profiled.step(places, None)


def test_changes_of_one_part_are_compared(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first row is the policy as published; each change differs in its own setting only."""
    arguments = [
        "--trace", str(data / "lists"),
        "--truth", str(data / "traces"),
        "--only", "rounds,rigid",
        "--json", str(data / "out.json"),
    ]  # fmt: skip
    assert compare(arguments) == 0
    rows = json.loads((data / "out.json").read_text("utf-8"))
    told = capsys.readouterr().out

    assert [row["part"] for row in rows] == ["as published", *["rounds"] * 4, *["rigid"] * 4]
    assert {row["unfinished"] for row in rows} == {0}
    assert len({row["gpu_h"] for row in rows if row["part"] != "rigid"}) > 1
    assert "25 % of jobs" in told
    assert compare([*arguments, "--lists", "9"]) == 2
    assert "has lists 1 to 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        compare(["--only", "magic"])
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,time\na,1\n", "lacks application, num_replicas, batch_size"),
        (LIST.replace("100", "soon"), "is no list of Sia's"),
        (LIST.splitlines()[0] + "\n", "has no jobs"),
        (LIST.replace("toy,2", "other,2"), "no traces of 'other'"),
        (LIST.replace("toy-0", "toy-1"), "same name"),
    ],
)
def test_what_is_no_list_is_said_in_words(
    data: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the file or the model, and what is wrong."""
    (data / "lists" / "workload-1.csv").write_text(text, "utf-8")
    arguments = ["--trace", str(data / "lists"), "--truth", str(data / "traces")]

    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--policies", "none"], ["--lists", "a"], ["--jobs", "0"], ["--rigid", "2"]]
)
def test_bad_arguments_are_refused(words: list[str]) -> None:
    """With the exit status of a wrong command line."""
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2


def test_a_folder_without_lists_is_named(tmp_path: Path) -> None:
    """There must be one at least."""
    with pytest.raises(UsageError, match="no lists in"):
        lists_of([tmp_path])


def test_isolated_jobs_have_the_sizes_that_the_paper_names() -> None:
    """GPU-hours on one T4 with the best batch: small, medium, large and extra large jobs."""
    if not DATA.is_dir():
        pytest.skip("the traces of Sia's artifact are not here")
    hours = {
        name: least_run_time_s(Application(name, DATA / "traces"), "t4", spread(1, 4)) / 3600
        for name in ("cifar10", "deepspeech2", "bert", "yolov3", "imagenet")
    }

    assert 0.5 < hours["cifar10"] < 2.5
    assert 1 < hours["bert"] < 10
    assert 1 < hours["deepspeech2"] < 10
    assert 10 < hours["yolov3"] < 100
    assert 100 < hours["imagenet"] < 1000
