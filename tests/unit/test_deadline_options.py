"""What users write about training jobs and deadlines, and what they are told when it is none."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.cli.common import print_error
from gsched.cli.submit.deadline import parse_deadline, planned_words, training_of
from gsched.cli.submit.options import merged, read_options
from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.stated import StatedOptions, gpu_range
from gsched.errors import BadResourceError, BadScriptError, GschedError, UsageError
from gsched.model.training import Training
from gsched.model.units import parse_bandwidth_bytes_s, parse_count, parse_interval_s
from gsched.protocol.submissions import SubmitResult

NOW_S = 1_790_000_000.0  # Mon Sep 21 14:13:20 UTC 2026
PLACE = SubmitContext(cwd="/", environment={"PATH": "/bin"}, now_s=NOW_S, umask=0o027)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "at_s", "after_s"),
    [
        ("8h", 0.0, 28800.0),
        ("1d12h", 0.0, 129600.0),
        ("90", 0.0, 90.0),
        ("2027-03-01 08:00", 1_803_888_000.0, 0.0),
        ("2027-03-01T08:00:30", 1_803_888_030.0, 0.0),
        ("2027-03-01T08:00Z", 1_803_888_000.0, 0.0),
        ("2027-03-01T08:00:00+01:00", 1_803_884_400.0, 0.0),
        ("2027-03-01T08:00:00-0130", 1_803_893_400.0, 0.0),
        ("2027-03-01 08:00:00 UTC", 1_803_888_000.0, 0.0),
        ("2027-03-01 08:00 +01:00", 1_803_884_400.0, 0.0),
        ("@1803888000", 1_803_888_000.0, 0.0),
    ],
)
def test_a_deadline_is_a_duration_or_a_moment(text: str, at_s: float, after_s: float) -> None:
    found = parse_deadline(text, now_s=NOW_S)

    assert (found.at_s, found.after_s) == (at_s, after_s)


def test_a_moment_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()

    assert parse_deadline("2027-03-01 08:00", now_s=NOW_S).at_s == 1_803_884_400.0


def test_errors_show_moments_in_local_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As all commands do, so that it is beside what the user wrote; programs get it as it came."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    said = UsageError("'2027-03-01 07:00:00 UTC': the earliest end is 2027-03-01 08:00:00 UTC")

    print_error(said, command="gsub")
    print_error(said, command="gsub", as_json=True)

    text, document = capsys.readouterr().err.splitlines()
    assert text == "gsub: '2027-03-01 07:00:00 UTC': the earliest end is 2027-03-01 09:00:00"
    assert "the earliest end is 2027-03-01 08:00:00 UTC" in document


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2025-01-01 08:00", "is in the past"),
        ("2027-02-30 08:00", "invalid date"),
        ("2027-13-01 08:00", "invalid date"),
        ("2027-03-01 24:00", "invalid date"),
        ("2027-03-01", "has no time of day"),
        ("08:00", "is a time of day or a duration"),
        ("8:00:00", "is a time of day or a duration"),
        ("someday 08:00", "invalid time"),
        ("20.02.2027 08:00", "invalid time"),
        ("2027-03-01 08:00 CET", "unknown time zone 'CET'"),
        ("2027-03-01 08:00 Europe/Berlin", "unknown time zone 'Europe/Berlin'"),
        ("2027-03-01 08:00pm", "unknown time zone 'pm'"),
        ("2027-03-01 08:00+25:00", "unknown time zone '+25:00'"),
        ("2027-03-01 08:00+01:75", "unknown time zone '+01:75'"),
        ("soon", "invalid time"),
        ("-1h", "invalid time"),
        ("", "invalid time"),
        ("0", "greater than zero"),
        ("99999999999d", "exceeds the limit"),
    ],
)
def test_what_is_no_deadline_is_refused_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises((UsageError, BadResourceError)) as refused:
        parse_deadline(text, now_s=NOW_S)

    assert words in refused.value.message
    assert refused.value.message.startswith("--deadline: ")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "count"),
    [("138M", 138e6), ("1.5B", 1.5e9), ("50k", 50e3), ("5e4", 5e4), ("50_000", 5e4), ("2G", 2e9)],
)
def test_counts_have_the_suffixes_of_models(text: str, count: float) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["0", "-5", "many", "1.5.2M", "1e99", "12MB", "", "inf", "nan"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(BadResourceError):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("35ms", 0.035), ("350us", 0.00035), ("0.035", 0.035), ("1m30s", 90.0)]
)
def test_steps_take_milliseconds(text: str, seconds: float) -> None:
    assert parse_interval_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0ms", "-1s", "fast", "35 months", ""])
def test_what_is_no_step_time_is_refused(text: str) -> None:
    with pytest.raises(BadResourceError):
        parse_interval_s(text)


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [("10GB/s", 1e10), ("100Gbit/s", 12.5e9), ("25 GiB/s", 25 * 2**30), ("8b/s", 1.0)],
)
def test_bandwidths_are_in_bytes_or_bits(text: str, bytes_s: float) -> None:
    assert parse_bandwidth_bytes_s(text) == bytes_s


@pytest.mark.parametrize("text", ["10", "10GB", "0GB/s", "fast", "-1GB/s", "10gb/s", "9999PB/s"])
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(BadResourceError):
        parse_bandwidth_bytes_s(text)


@pytest.mark.parametrize(
    ("text", "found"), [("4", (4, 0)), ("0", (0, 0)), ("1..8", (1, 8)), ("4..4", (4, 4))]
)
def test_gpus_are_a_number_or_a_range(text: str, found: tuple[int, int]) -> None:
    assert gpu_range(text) == found


@pytest.mark.parametrize("text", ["8..1", "0..4", "1..", "..4", "1-8", "a", "-1", "1..2..3", "²"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GPUs"):
        gpu_range(text)


def test_each_gpu_of_a_range_is_a_place_that_may_share_a_node() -> None:
    options = StatedOptions(gpus="2..8", cpus=4, walltime="1h")

    assert options.resource_texts == ("select=2:ncpus=4:ngpus=1", "walltime=1h")
    assert options.gpus_most == 8


@pytest.mark.parametrize(
    ("line", "script", "texts", "most"),
    [
        ({"gpus": "1..4"}, {"gpus": "8"}, "select=1:ngpus=1", 4),
        ({"gpus": "1..4"}, {"nodes": 2, "gpus": "2"}, "select=1:ngpus=1", 4),
        ({"gpus": "2"}, {"gpus": "1..4"}, "gpus=2", 0),
        ({"nodes": 2}, {"gpus": "1..4"}, "nodes=2", 0),
        ({"mem": "4gb"}, {"gpus": "1..4"}, "select=1:ngpus=1,mem=4gb", 4),
    ],
)
def test_the_command_line_beats_the_range_of_a_script_as_a_whole(
    line: dict[str, object], script: dict[str, object], texts: str, most: int
) -> None:
    both = merged(StatedOptions(line), StatedOptions(script))

    assert (",".join(both.resource_texts), both.gpus_most) == (texts, most)


def test_a_deadline_on_the_command_line_beats_the_urgency_of_a_script() -> None:
    both = merged(StatedOptions(deadline="8h"), StatedOptions(urgency="urgent"))

    assert (both["deadline"], both["urgency"]) == ("8h", None)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"gpus": "1..8", "nodes": 2}, "--gpus 1..8 and --nodes are mutually exclusive"),
        ({"gpus": "1..8", "resources": ("ncpus=4",)}, "--gpus 1..8 and -l ncpus are mutually"),
        ({"deadline": "8h", "urgency": "urgent"}, "--deadline and --urgency are mutually"),
        ({"params": "lots"}, "--params: invalid number 'lots'"),
        ({"batch": "0"}, "--batch: number must be greater than zero and at most 1e+18, got '0'"),
        ({"step_time": "quick"}, "--step-time: invalid time 'quick'"),
        ({"deadline": "2020-01-01 00:00"}, "--deadline: '2020-01-01 00:00' is in the past"),
    ],
)
def test_what_contradicts_itself_is_refused_before_the_head_is_asked(
    stated: dict[str, object], words: str
) -> None:
    with pytest.raises(GschedError) as refused:
        read_options(stated, PLACE)

    assert words in refused.value.message
    assert refused.value.hint


FILE = """
[model]
layers = 3

[training]
params = "138M"
samples = 50_000
batch = 16
epochs = 2.5
step-time = "35ms"
"""


def workload(directory: Path, **stated: str) -> Training | None:
    """Return what options and the file of --training state."""
    place = SubmitContext(cwd=str(directory), environment={}, now_s=NOW_S, umask=0)
    return training_of(read_options(stated, place))


def test_a_file_says_the_size_and_an_option_beats_it(tmp_path: Path) -> None:
    (tmp_path / "size.toml").write_text(FILE)

    assert workload(tmp_path, training="size.toml", batch="32") == Training(
        parameters=138e6, samples=5e4, batch=32.0, epochs=2.5, step_time_s=0.035
    )


def test_a_file_may_say_what_was_measured(tmp_path: Path) -> None:
    text = "[training]\niterations = 1000\nrates = { 2 = 19.5, 1 = 10 }\n"
    (tmp_path / "size.toml").write_text(text)

    found = workload(tmp_path, training="size.toml")

    assert found == Training(iterations=1000.0, rates=((1, 10.0), (2, 19.5)))


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("[training]\nsample = 5\n", "unknown key 'sample'", "did you mean 'samples'?"),
        ("[training]\nsteptime = 5\n", "unknown key 'steptime'", "did you mean 'step_time'?"),
        ("[training]\nzzz = 5\n", "unknown key 'zzz'", "valid keys: params"),
        (
            "[training]\nstep_time = '35ms'\nstep-time = '1s'\n",
            "step-time is given twice, in two spellings",
            "remove one of them",
        ),
        (
            "[training]\nparameters = 5\nparams = 6\n",
            "params is given twice",
            "remove one of them",
        ),
        ("[training]\nbatch = true\n", "batch: invalid number True", "50000"),
        ("[training]\nbatch = [1]\n", "batch: invalid number [1]", "50000"),
        ("[training]\nbatch = -3\n", "batch: invalid number '-3'", "138M"),
        ("[training]\nepochs = nan\n", "epochs: invalid number 'nan'", "138M"),
        ("[training]\nrates = 5\n", "rates: must be a table", "1 = 12.5"),
        ("[training]\nrates = { a = 5 }\n", "rates: invalid number of GPUs 'a'", "1 = 12.5"),
        ("[training]\nrates = { 1 = -5 }\n", "rates: invalid rate -5", "1 = 12.5"),
        ("[training]\n", "[training] is empty", "valid keys: params"),
        ("[trainign]\nbatch = 1\n", "has no [training] table", "write [training]"),
        ("training = 5\n", "has no [training] table", "write [training]"),
        ("[training\n", "at line 1", "TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_key_that_is_meant(
    tmp_path: Path, text: str, words: str, hint: str
) -> None:
    (tmp_path / "size.toml").write_text(text)

    with pytest.raises(BadScriptError) as refused:
        workload(tmp_path, training="size.toml")

    assert words in refused.value.message
    assert "size.toml" in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            {"planned_gpus": 4, "predicted_end_s": NOW_S + 3600, "meets_deadline": True},
            (
                "planned on 4 GPUs, expected to finish at 15:13:20; "
                "the deadline 16:13:20 is expected to be met with 01:00:00 to spare"
            ),
        ),
        (
            {"planned_gpus": 1, "predicted_end_s": NOW_S + 9000, "meets_deadline": False}
            | {"late_reason": "jobs ahead of it in the queue"},
            (
                "LATE: planned on 1 GPU, expected to finish at 16:43:20; "
                "the deadline 16:13:20 will be missed by 00:30:00: jobs ahead of it in the queue"
            ),
        ),
        (
            {"predicted_end_s": NOW_S + 7200.3, "meets_deadline": False},
            (
                "LATE: expected to finish at 16:13:20; "
                "the deadline 16:13:20 will be missed by less than a second"
            ),
        ),
        ({"meets_deadline": False}, "LATE: the deadline 16:13:20 will be missed"),
        (
            {"late_reason": "it is held"},
            "cannot predict whether the deadline 16:13:20 will be met: it is held",
        ),
        ({"meets_deadline": True}, "the deadline 16:13:20 is expected to be met"),
        (
            {"deadline_s": None, "planned_gpus": 2, "predicted_end_s": NOW_S + 60},
            "planned on 2 GPUs, expected to finish at 14:14:20",
        ),
    ],
)
def test_the_answer_says_gpus_end_and_whether_it_is_in_time(
    result: dict[str, object], words: str
) -> None:
    said = {"deadline_s": NOW_S + 7200, **result}

    assert planned_words(SubmitResult(**said), now_s=NOW_S) == words  # type: ignore[arg-type] # as named
