"""Progress that a person can watch and a log file can keep."""

from __future__ import annotations

import time
from typing import TextIO

WIDTH = 36


class ProgressBar:
    """A bar that redraws itself on a terminal, and a plain line now and then anywhere else."""

    def __init__(self, out: TextIO, unit: str) -> None:
        self.out = out
        self.unit = unit
        self.live = out.isatty()
        self.began = time.monotonic()
        self._shown: tuple[int, int] | None = None

    def show(self, done: int, total: int) -> None:
        """Draw the state, if it changed (on a terminal) or moved by a quarter (elsewhere)."""
        seconds = time.monotonic() - self.began
        if self.live:
            filled = WIDTH * done // total if total else WIDTH
            bar = "#" * filled + "." * (WIDTH - filled)
            self.out.write(f"\r  [{bar}] {done}/{total} {self.unit} {seconds:5.1f} s ")
        elif self._shown is None or self._quarter(done, total) != self._quarter(*self._shown):
            self.out.write(f"  {done}/{total} {self.unit} after {seconds:.1f} s\n")
        self._shown = (done, total)
        self.out.flush()

    def finish(self) -> None:
        """Leave the line of the bar."""
        if self.live:
            self.out.write("\n")
            self.out.flush()

    @staticmethod
    def _quarter(done: int, total: int) -> int:
        return 4 * done // total if total else 4
