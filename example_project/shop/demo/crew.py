"""The worker of the demo: a real process, watched from outside."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from django.core.management.base import CommandError

from example_project.shop.demo import processes
from example_project.shop.demo.screen import ProgressBar

#: How long to wait for jobs that the worker of somebody else runs.
OTHERS_SECONDS = 10


def run_worker(
    command: list[str],
    ended: Callable[[], int],
    total: int,
    bar: ProgressBar,
    patience: float,
    *,
    stop: bool = False,
) -> None:
    """Run a worker until it ends by itself; with ``stop``, until all jobs have ended, and ask it to end then.

    ``ended`` says how many have. Raises ``CommandError`` with the end of the worker's log when it takes longer than
    ``patience`` seconds, or does not end with exit code 0.
    """

    def look() -> bool:
        """Show the progress, pause, and say whether all has ended."""
        asked = time.monotonic()
        done = ended()
        bar.show(done, total)
        # On a large database or a busy machine the question itself takes time; the worker needs some too.
        time.sleep(max(0.1, time.monotonic() - asked))
        return done >= total

    limit = time.monotonic() + patience
    hung = False
    with tempfile.NamedTemporaryFile(prefix="awa-demo-worker-", suffix=".log", delete=False) as log:
        worker: subprocess.Popen[bytes] | None = None
        try:
            with processes.undisturbed(signal.SIGINT):
                worker = processes.start(*command, output=log)
            while worker.poll() is None and not hung:
                if look() and stop:
                    break
                hung = time.monotonic() >= limit and worker.poll() is None
            # Where `make serve` runs as well, its worker may still have some of the jobs in hand.
            limit = time.monotonic() + (OTHERS_SECONDS if worker.poll() == 0 else 0)
            while not look() and time.monotonic() < limit:
                pass
        except KeyboardInterrupt:
            Path(log.name).unlink()
            raise
        finally:
            bar.finish()
            if worker is not None:
                worker.terminate()
                code = processes.wait(worker, patience=40)
    if code == -signal.SIGTERM and stop:
        code = 0  # others had done everything before this worker had begun
    if hung or code:
        said = Path(log.name).read_text(errors="replace").splitlines()[-20:]
        what = f"was still at work after {patience:g} s" if hung else f"ended with exit code {code}"
        raise CommandError("\n".join([f"the worker {what}; the end of {log.name}:", *said]))
    Path(log.name).unlink()
