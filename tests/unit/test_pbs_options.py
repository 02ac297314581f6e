"""The options of gsub beside those of qsub of Torque and OpenPBS."""

from typing import Final

import pytest

from gsched.cli.submit.rows import ROWS

#: The synopses of qsub(1) of Torque 6 and qsub(1B) of OpenPBS 23.
TORQUE: Final = "aAbcCdDefhIjkKlmMnNopPqrStTuvVwWxXz"
OPENPBS: Final = "aAcCefhIGXjJklmMNopPqrRSuvVWz"


@pytest.mark.parametrize(("manual", "letters"), [("Torque", TORQUE), ("OpenPBS", OPENPBS)])
def test_gsub_knows_each_option_of_qsub(manual: str, letters: str) -> None:
    known = {name for row in ROWS for name in row.names.split()}
    assert {f"-{letter}" for letter in letters} - known == set(), manual
