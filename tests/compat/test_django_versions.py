"""A smoke test on each further Django release, with the interpreter it needs, where that is on the machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
VENVS = ROOT / ".venv-compat"

RELEASES = [("3.12", "6.0"), ("3.13", "6.1")]


def interpreter(version: str) -> Path | None:
    """An interpreter of this version: on PATH, or kept by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [path / "bin" / "python" for path in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    if found := shutil.which(f"python{version}"):
        candidates.append(Path(found))
    for path in candidates:
        try:
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=20, check=True
            )
        except (OSError, subprocess.SubprocessError):
            continue  # a shim without its interpreter
        if re.match(rf"Python {re.escape(version)}\.", answer.stdout):
            return path
    return None


def environment(python: Path, release: str) -> Path:
    """The interpreter of a virtual environment with this Django release; made once."""
    wanted = [f"django~={release}.0", "psycopg[binary]>=3.2", "tzdata>=2024.1", "blake3>=1.0"]
    digest = hashlib.sha256(repr((str(python), wanted)).encode()).hexdigest()
    home = VENVS / f"django-{release}"
    stamp = home / "made-from"
    if not stamp.exists() or stamp.read_text() != digest:
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
        subprocess.run(
            [
                home / "bin" / "python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *wanted,
            ],
            check=True,
        )
        stamp.write_text(digest)
    return home / "bin" / "python"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("version", "release"), RELEASES)
def test_a_project_on_a_newer_django_migrates_enqueues_works_and_is_operated(
    version: str, release: str, empty_database: str
) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Django {release} was not tried: no Python {version} on this machine")
    done = subprocess.run(
        [environment(python, release), "-W", "error::DeprecationWarning", "tests/compat/smoke.py"],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": empty_database,
            "DJANGO_SETTINGS_MODULE": "tests.compat.settings",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Django {release}" in done.stdout
    sys.stdout.write(done.stdout)
