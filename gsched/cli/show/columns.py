"""What a table's columns are, whoever draws it."""


class Column:
    """One column.

    Attributes:
        title: its heading.
        right: whether numbers stand in it.
        wraps: whether a terminal may break its text over lines; others are cut with an ellipsis.
        style: rich's words for its colour on a terminal.
        least: to how many characters a narrow terminal may cut it; None: it is never cut.
        drop: its turn to be left out where a terminal is too narrow for all; 0: it always stays.
    """

    __slots__ = ("drop", "least", "right", "style", "title", "wraps")

    def __init__(
        self,
        title: str,
        *,
        right: bool = False,
        wraps: bool = False,
        style: str = "",
        least: int | None = None,
        drop: int = 0,
    ):
        self.title = title
        self.right = right
        self.wraps = wraps
        self.style = style
        self.least = least
        self.drop = drop
