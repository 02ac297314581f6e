"""The lines of an error output that say what went wrong, beside what torchrun adds."""

from gsched.cli.follow import TAIL_LINES, telling_lines

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 12, in <module>
    main()
  File "train.py", line 9, in main
    raise RuntimeError("rank 1: CUDA out of memory")
RuntimeError: rank 1: CUDA out of memory"""
SUMMARY = """\
W1122 11:02:03.100000 123 torch/distributed/elastic/multiprocessing/api.py:1014] Sending process 7
E1122 11:02:03.200000 123 torch/distributed/elastic/multiprocessing/api.py:988] failed (exitcode: 1)
Traceback (most recent call last):
  File "/usr/lib/python3.11/runpy.py", line 198, in _run_module_as_main
    return _run_code(code, main_globals, None,
  File "torch/distributed/run.py", line 150, in main
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
  exitcode  : 1 (pid: 7)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""


def test_the_traceback_of_a_rank_is_shown_instead_of_torchruns_summary() -> None:
    """The summary is longer than what is shown, and comes after it."""
    text = f"loading\n{TRACEBACK}\n{SUMMARY}\n"

    assert telling_lines(text) == TRACEBACK.splitlines()
    assert telling_lines(text)[-1] == "RuntimeError: rank 1: CUDA out of memory"


def test_of_several_tracebacks_that_of_the_failed_rank_is_shown() -> None:
    """Their lines are mixed, each with the rank before it."""
    first = [f"[rank0]: {line}" for line in TRACEBACK.replace("rank 1", "rank 0").splitlines()]
    second = [f"[rank1]: {line}" for line in TRACEBACK.splitlines()]
    mixed = [line for pair in zip(second, first, strict=True) for line in pair]
    text = "\n".join([*mixed, SUMMARY])

    assert telling_lines(text, rank=1) == second
    assert telling_lines(text, rank=0) == first


def test_the_last_of_a_chain_of_exceptions_is_shown() -> None:
    """As Python prints them: the one that ended the program is last."""
    chain = f"{TRACEBACK}\n\nDuring handling of the above exception, another occurred:\n\n"
    last = TRACEBACK.replace("CUDA out of memory", "cannot clean up")

    assert telling_lines(chain + last)[-1] == "RuntimeError: rank 1: cannot clean up"


def test_a_long_traceback_is_shown_by_its_end() -> None:
    """The line that names the exception is among them."""
    frames = "".join(f'  File "a.py", line {n}, in f\n    f({n})\n' for n in range(40))
    text = f"Traceback (most recent call last):\n{frames}ValueError: deep\n"

    assert len(telling_lines(text)) == TAIL_LINES
    assert telling_lines(text)[-1] == "ValueError: deep"


def test_without_a_traceback_the_last_lines_are_shown() -> None:
    """Whatever they are; a title that a program prints within a line is none."""
    lines = [f"line {n}" for n in range(30)]

    assert telling_lines("\n".join(lines)) == lines[-TAIL_LINES:]
    assert telling_lines("") == []
    assert telling_lines("log: Traceback (most recent call last): none\nend") == [
        "log: Traceback (most recent call last): none",
        "end",
    ]
    assert telling_lines(SUMMARY) == SUMMARY.splitlines()[-TAIL_LINES:]
