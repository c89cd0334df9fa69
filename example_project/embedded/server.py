"""One cluster and its users."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from example_project.embedded.places import (
    DATA_VARIABLE,
    NOTHING_THERE,
    Account,
    EmbeddedError,
    check_owner,
    digest,
    programs_for,
)

try:
    import fasteners
    import psutil
    import psycopg
    from psycopg import sql
except ImportError as error:
    raise ImportError(f"{NOTHING_THERE} ({error})") from error

DATABASE = "awa_demo"
#: Seconds that a start (crash recovery included) or a stop may take.
PATIENCE = 60
PORT = 5432
#: Some room for two workers with 50 slots each, the web server and a psql.
MAX_CONNECTIONS = 200
#: A crash of the machine may lose such a cluster; PostgreSQL's own tests run like this.
FORGETFUL = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class Server:
    """One cluster in one folder, shared by every process that asks for that folder."""

    def __init__(self, home: Path, account: Account, *, durable: bool) -> None:
        self.home = home
        self.data = home / "pgdata"
        self.account = account
        self.durable = durable
        # Short, since a socket's path has at most 107 bytes; the same for every process, whatever its TMPDIR.
        self.socket = Path("/tmp") / f"awa-pg-{digest(self.data)}"
        self._starting = fasteners.InterProcessLock(home / "start.lock")
        self._users = fasteners.InterProcessReaderWriterLock(home / "users.lock")
        self._keep = home / "keep-running"
        self._log = self.data / "server.log"
        self._held = False

    def url(self, database: str = DATABASE) -> str:
        """The address in the form that Django's settings read with the socket as HOST."""
        return f"postgres://postgres@:{PORT}/{self.socket}/{database}"

    def dsn(self, database: str = DATABASE) -> str:
        """The same address for libpq: psql, psycopg, pg_dump. django-environ reads it too."""
        return f"postgresql://postgres@:{PORT}/{database}?host={self.socket}"

    def acquire(self) -> None:
        """Join the users of the server, starting it when it does not run."""
        if self._held:
            return
        self._make_home()
        self._users.acquire_read_lock()
        try:
            with self._starting:
                if not self.is_alive():
                    self._start()
        except BaseException:
            self._users.release_read_lock()
            raise
        self._held = True
        atexit.register(self._release_at_exit)

    def release(self) -> None:
        """Leave; whoever leaves last stops the server, unless ``start`` asked for it to stay."""
        if not self._held:
            return
        self._held = False
        atexit.unregister(self._release_at_exit)
        self._users.release_read_lock()
        with self._alone() as alone:
            if alone and not self._keep.exists():
                self._stop()

    def keep_running(self) -> None:
        """Start the server for :meth:`stop` to end, whoever comes and goes."""
        self._make_home()
        self._keep.touch()
        self.acquire()
        self.release()

    def stop(self, *, force: bool = False) -> bool:
        """Stop the server now; True when it ran. Refused while processes use it, save by ``force``."""
        if not self.home.exists():
            return False
        self._keep.unlink(missing_ok=True)
        with self._alone() as alone:
            if not alone and not force:
                raise EmbeddedError(
                    f"the server of {self.home} is in use by another process; stop that first, or use --force"
                )
            return self._stop()

    def reset(self, *, force: bool = False) -> None:
        """Stop the server and remove all its data."""
        self.stop(force=force)
        for folder in (self.data, self.socket):
            if folder.exists():
                shutil.rmtree(folder)

    def is_alive(self) -> bool:
        """Whether a server on our data directory answers."""
        return self._ask("SHOW data_directory") == str(self.data)

    def in_use(self) -> bool:
        """Whether any process holds the server."""
        if self._held:
            return True
        if not self.home.exists():
            return False
        with self._alone() as alone:
            return not alone

    def version(self) -> str | None:
        """The server's version, or None when it does not answer."""
        return self._ask("SHOW server_version")

    def create_database(self, name: str) -> None:
        """Make a database unless it exists. Call it while holding the server."""
        with (
            self._starting,  # two processes that both find it missing
            psycopg.connect(self.dsn("postgres"), autocommit=True) as connection,
        ):
            found = connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def _ask(self, question: str) -> str | None:
        if not self.socket.exists():
            return None
        try:
            with psycopg.connect(self.dsn("postgres"), connect_timeout=5, autocommit=True) as connection:
                row = connection.execute(question.encode()).fetchone()
        except psycopg.OperationalError:
            return None
        return str(row[0]) if row else None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no process uses the server; while the block runs none can join."""
        alone = not self._held and self._users.acquire_write_lock(blocking=False)
        try:
            yield alone
        finally:
            if alone:
                self._users.release_write_lock()
            elif not self._held and self._users.lockfile is not None:
                # fasteners leaves the file open when it does not get the lock.
                self._users.lockfile.close()
                self._users.lockfile = None

    def _release_at_exit(self) -> None:
        try:
            self.release()
        except EmbeddedError as error:
            print(error, file=sys.stderr)

    def _make_home(self) -> None:
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedError(
                f"cannot make {self.home}: {error.strerror}; choose another folder with {DATA_VARIABLE}"
            ) from error
        check_owner(self.home, os.geteuid())
        if not self.account.can_reach(self.home):
            raise EmbeddedError(
                f"PostgreSQL runs as {self.account.name!r} here, who cannot enter {self.home}; "
                f"choose another folder with {DATA_VARIABLE}"
            )

    def _start(self) -> None:
        programs = programs_for(self.account)
        if (self.data / "PG_VERSION").exists():
            self._check_data(programs)
            self._make_way(programs)
            if self.is_alive():
                return
            try:
                self._launch(programs)
                return
            except EmbeddedError:
                if self.durable:
                    raise
                # Without fsync a crash of the machine may leave anything behind, and nothing of worth.
        self._initialise(programs)
        self._launch(programs)

    def _launch(self, programs: Path) -> None:
        self._prepare_socket_folder()
        options = [
            "listen_addresses=",
            f"port={PORT}",
            f"unix_socket_directories={self.socket}",
            "unix_socket_permissions=0700",  # the cluster trusts whoever can connect
            f"max_connections={MAX_CONNECTIONS}",
            *(() if self.durable else FORGETFUL),
        ]
        settings = " ".join(f"-c {option}" for option in options)
        self._pg_ctl(programs, "-l", self._log, "-o", settings, "start")
        if not self.is_alive():
            raise EmbeddedError(
                f"the server started but does not answer at {self.socket}; its log is {self._log}"
            )

    def _prepare_socket_folder(self) -> None:
        self.socket.mkdir(mode=0o700, exist_ok=True)
        if self.account.switched and self.socket.lstat().st_uid == 0:
            self._hand_over(self.socket)
        check_owner(self.socket, self.account.uid)

    def _initialise(self, programs: Path) -> None:
        """Make the cluster beside its place and move it there, so that half of one is never met."""
        fresh = self.home / "pgdata.new"
        for leftover in (fresh, self.data):
            if leftover.exists():
                shutil.rmtree(leftover)
        fresh.mkdir(mode=0o700)
        self._hand_over(fresh)
        self._run(
            *(programs / "initdb", "-D", fresh, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"),
            *(() if self.durable else ("--no-sync",)),
        )
        fresh.rename(self.data)

    def _hand_over(self, folder: Path) -> None:
        if not self.account.switched:
            return
        try:
            os.chown(folder, self.account.uid, self.account.gid)
        except OSError as error:
            raise EmbeddedError(
                f"cannot give {folder} to {self.account.name!r}, who runs PostgreSQL here: {error.strerror}; "
                f"choose another folder with {DATA_VARIABLE} or set DATABASE_URL"
            ) from error

    def _check_data(self, programs: Path) -> None:
        """Refuse data of another user or another major version with a way out."""
        owner = self.data.stat().st_uid
        if owner != self.account.uid:
            raise EmbeddedError(
                f"{self.data} belongs to user {owner} but PostgreSQL would run as {self.account.name!r}; "
                f"remove {self.home} as that user, or choose another folder with {DATA_VARIABLE}"
            )
        made_by = (self.data / "PG_VERSION").read_text().strip()
        brought = self._run(programs / "postgres", "--version").split()[-1].split(".")[0]
        if made_by != brought:
            raise EmbeddedError(
                f"{self.data} was made by PostgreSQL {made_by}, but PostgreSQL {brought} is installed; "
                "remove the data with 'python -m example_project.embedded reset'"
            )

    def _make_way(self, programs: Path) -> None:
        """Deal with whatever postmaster.pid names, so that PostgreSQL does not refuse to start.

        A process that is gone is left to PostgreSQL, which also looks for backends that outlived it.
        """
        pid = self._recorded_pid()
        if pid is None or not psutil.pid_exists(pid):
            return
        process = self._postmaster()
        if process is None:  # a zombie, or somebody else's process under a number that was used again
            self._pid_file.unlink(missing_ok=True)
            return
        # Ours, but silent: it recovers, it shuts down, or somebody removed its socket.
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit and self._postmaster() is not None:
            if self.is_alive():
                return
            if self._says_ready() and not (self.socket / f".s.PGSQL.{PORT}").exists():
                break
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(timeout=0.2)
        self._stop()

    @property
    def _pid_file(self) -> Path:
        return self.data / "postmaster.pid"

    def _recorded_pid(self) -> int | None:
        try:
            return int(self._pid_file.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None

    def _says_ready(self) -> bool:
        """Whether the server noted in its pid file that it takes connections."""
        try:
            return self._pid_file.read_text().rstrip().endswith("ready")
        except FileNotFoundError:
            return False

    def _postmaster(self) -> psutil.Process | None:
        """The process of postmaster.pid, if it is a server on our data directory and no zombie."""
        pid = self._recorded_pid()
        if pid is None:
            return None
        try:
            process = psutil.Process(pid)
            # The command line can be read for another user's process too; a zombie has none.
            return process if str(self.data) in process.cmdline() else None
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None

    def _stop(self) -> bool:
        """Stop the server, if one runs on our data directory, and wait for its end."""
        if self._postmaster() is None:
            return False
        self._pg_ctl(programs_for(self.account), "-m", "fast", "stop")
        with contextlib.suppress(OSError):
            self.socket.rmdir()
        return True

    def _pg_ctl(self, programs: Path, *arguments: str | Path) -> None:
        patience = ("-w", "-t", str(PATIENCE))
        try:
            self._run(programs / "pg_ctl", "-D", self.data, *patience, *arguments)
        except EmbeddedError as error:
            if not self._log.exists():
                raise
            last = self._log.read_text(errors="replace").splitlines()[-10:]
            raise EmbeddedError("\n".join([str(error), f"end of {self._log}:", *last])) from error

    def _run(self, *command: str | Path) -> str:
        """Run one of PostgreSQL's programs as the server's user; what it printed.

        Output goes to a file: a server started by ``pg_ctl`` would keep a pipe open for ever.
        """
        # PGPORT, PGDATA and their like would change what the server does.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        with tempfile.TemporaryFile() as output:
            try:
                subprocess.run(
                    command,
                    check=True,
                    cwd="/",  # the current folder may be closed to the server's user
                    env=environment | {"LC_ALL": "C"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    **self.account.popen,
                )
            except (subprocess.CalledProcessError, OSError) as error:
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
                raise EmbeddedError(
                    f"{Path(command[0]).name} failed on {self.data}: {error}\n{said}".rstrip()
                ) from error
            output.seek(0)
            return output.read().decode(errors="replace")
