"""How the programs of scripts/gpu/sharing are judged."""

import pytest

from scripts.gpu.sharing import judge
from scripts.gpu.sharing_programs import Program
from scripts.gpu.sharing_questions import LIMIT

GIB = 1 << 30


@pytest.mark.parametrize(
    ("printed", "fault"),
    [
        (f"warning\n{LIMIT}\n", None),
        (f"{LIMIT * 9 // 10 + 1}\n", None),
        (f"{LIMIT + 1}\n", "8.00 GiB of 8"),
        (f"{2 * GIB}\n", "2.00 GiB of 8"),
        ("-1\n", "-0.00 GiB of 8"),
        ("", "it printed ''"),
        ("no number\n", "it printed 'no number\\n'"),
    ],
)
def test_a_program_gets_most_of_its_limit_and_not_more(printed: str, fault: str | None) -> None:
    assert judge(Program(name="x", code=""), printed) == fault


def test_a_program_with_an_exact_value_has_no_other() -> None:
    program = Program(name="x", code="", exact=101)

    assert judge(program, "101\n") is None
    assert judge(program, "100\n") == "100, and not 101"
