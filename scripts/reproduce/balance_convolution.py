"""A job: convolves images that come in at a fixed rate, strip by strip, and says what it did.

It keeps a window of the latest images in memory. One that falls behind, as its node is over-used,
takes longer: nothing is left out.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WIDTH = 640
STRIP_ROWS = 240
PERIOD_S = 0.25
BLUR = np.outer(*[np.hanning(9)[1:-1].astype(np.float32)] * 2)


def convolve(image: NDArray[np.float32], kernel: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the part of a convolution for which the kernel lies within the image.

    Args:
        image: shape ``(H, W)``.
        kernel: shape ``(h, w)``, at most as large.

    Returns:
        JobClass ``(H - h + 1, W - w + 1)``.
    """
    rows, columns = (size - part + 1 for size, part in zip(image.shape, kernel.shape, strict=True))
    total = np.zeros((rows, columns), dtype=np.float32)
    flipped = kernel[::-1, ::-1]
    for row in range(kernel.shape[0]):
        for column in range(kernel.shape[1]):
            total += flipped[row, column] * image[row : row + rows, column : column + columns]
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Convolve for so many seconds' worth of images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="of images")
    parser.add_argument("--memory-mb", type=int, default=100, help="of images kept")
    parser.add_argument("--seed", type=int, default=0, help="of the generated images")
    asked = parser.parse_args(arguments)
    chance = np.random.default_rng(asked.seed)
    kept_rows = asked.memory_mb * 2**20 // (4 * WIDTH)
    images = chance.random((kept_rows, WIDTH), dtype=np.float32)
    begin_s = time.monotonic()
    brightest = 0.0
    for strip in range(round(asked.seconds / PERIOD_S)):
        first = strip * STRIP_ROWS % (kept_rows - STRIP_ROWS)
        blurred = convolve(images[first : first + STRIP_ROWS], BLUR)
        brightest = max(brightest, float(blurred.max()))
        due_s = begin_s + (strip + 1) * PERIOD_S
        time.sleep(max(0.0, due_s - time.monotonic()))
    print(f"brightest {brightest:.3f}, {time.monotonic() - begin_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
