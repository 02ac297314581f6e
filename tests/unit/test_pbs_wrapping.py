"""Lines of qstat -f are broken as ``prt_attr`` of Torque breaks them.

The expected texts were printed by a C program that follows prt_attr of Torque's qstat.c.
"""

import pytest

from gsched.cli.pbs.attributes import Attribute, wrapped

VARIABLES = (
    "    Variable_List = VARIABLE_0=value0,VARIABLE_1=value1,VARIABLE_2=value2,\n"
    "\tVARIABLE_3=value3,VARIABLE_4=value4,VARIABLE_5=value5,VARIABLE_6=value6,\n"
    "\tVARIABLE_7=value7,VARIABLE_8=value8"
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            ",".join(f"VARIABLE_{number}=value{number}" for number in range(9)),
            VARIABLES,
        ),
        (
            "a" * 170 + ",b",
            "    Variable_List = " + "a" * 61 + "\n\t" + "a" * 73 + "\n\t" + "a" * 36 + ",b",
        ),
        (
            "c" * 50 + "," + "d" * 75 + "," + "e" * 20,
            "    Variable_List = " + "c" * 50 + ",\n\t" + "d" * 72 + "\n\tddd," + "e" * 20,
        ),
        ("", "    Variable_List = "),
    ],
)
def test_long_values_are_broken_as_the_c_source_breaks_them(value: str, expected: str) -> None:
    assert wrapped(Attribute("Variable_List", "", value)) == expected


def test_nothing_is_broken_without_a_line_size() -> None:
    value = "a" * 200 + "," + "b" * 200

    assert wrapped(Attribute("x", "y", value), line_size=0) == f"    x.y = {value}"
