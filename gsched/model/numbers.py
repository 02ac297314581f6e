"""Numbers that are decoded from outside: bounded, so that the database and JSON hold them exactly.

msgspec checks them when it decodes, not when a program makes a value.
"""

from typing import Annotated, Final

from msgspec import Meta

#: Beyond it JSON readers lose digits; SQLite holds integers below 2**63.
MAX_NUMBER: Final = 2**53

Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Number = Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Amount = Annotated[float, Meta(ge=-1e300, le=1e300)]
#: Of a request: a user may ask for up to an exbibyte.
Size = Annotated[int, Meta(ge=0, le=2**62)]
