"""Plain columns for a terminal."""

from collections.abc import Iterator, Sequence


def columns(rows: Sequence[Sequence[object]], *, indent: int = 2, left: int = 1) -> Iterator[str]:
    """Yield rows as aligned lines: numbers to the right, the first `left` and texts to the left.

    A column is to the right where every cell below its head is a number, a dash or empty.
    """
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not texts:
        return
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    to_right = [
        place >= left and all(_numeric(row[place]) for row in texts[1:])
        for place in range(len(widths))
    ]
    for row in texts:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_right, strict=True)
        ]
        yield (" " * indent + "  ".join(cells)).rstrip()


def _numeric(text: str) -> bool:
    return not text or text[0] in "0123456789.-+[>" or text in ("unbounded", "refused")
