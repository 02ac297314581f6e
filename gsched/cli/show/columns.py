"""What the columns of a table are, whoever draws it."""


class Column:
    """One column.

    Attributes:
        title: its heading.
        right: whether it is aligned to the right, as numbers are.
        wraps: whether a terminal may break its text over lines; others are cut with an ellipsis.
        style: rich's words for its colour on a terminal.
        least: to how many characters a narrow terminal may cut it; None: it is never cut.
        drop: its turn to be left out where a terminal is too narrow for all; 0: it always stays;
            below 0: it is shown only where no other column is cut for it.
        once: a terminal shows a value that all lines share above the table instead.
    """

    __slots__ = ("drop", "least", "once", "right", "style", "title", "wraps")

    def __init__(  # noqa: PLR0913 - one for each attribute
        self,
        title: str,
        *,
        right: bool = False,
        wraps: bool = False,
        style: str = "",
        least: int | None = None,
        drop: int = 0,
        once: bool = False,
    ):
        self.title = title
        self.right = right
        self.wraps = wraps
        self.style = style
        self.least = least
        self.drop = drop
        self.once = once
