"""The command line of the embedded server."""

from __future__ import annotations

import argparse
import shutil
import sys

from example_project.embedded import DATA_VARIABLE, DATABASE, ROOT, EmbeddedError, Server, server_for
from example_project.embedded.places import leftovers


def _status(server: Server) -> list[str]:
    version = server.version() if server.is_alive() else None
    return [
        f"server  {f'PostgreSQL {version}, running' if version else 'not running'}",
        f"in use  {'yes' if server.in_use() else 'no'}",
        f"data    {server.data}{'' if server.data.exists() else ' (not made yet)'}",
        f"log     {server.data / 'server.log'}",
        f"url     {server.dsn()}",
    ]


def remove(server: Server, *, force: bool) -> None:
    """Remove a server's data and say so."""
    server.reset(force=force)
    print(f"removed {server.data}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code is 1 when the server cannot do what was asked."""
    parser = argparse.ArgumentParser(
        prog="python -m example_project.embedded",
        description="Look after the example project's own PostgreSQL server.",
        epilog=f"{DATA_VARIABLE} chooses the folder of its data; {ROOT / '.awa-demo'} is the default.",
    )
    parser.add_argument(
        "verb",
        choices=["status", "start", "stop", "reset", "url"],
        help="status: is it running; start: run it until 'stop'; stop: now; reset: remove all data; "
        "url: its address, for psql or DATABASE_URL",
    )
    parser.add_argument("--force", action="store_true", help="stop or reset it under processes that use it")
    parser.add_argument(
        "--all",
        action="store_true",
        help="reset: the tests' server too, and whatever lies outside the project",
    )
    options = parser.parse_args(arguments)
    try:
        server = server_for()
        match options.verb:
            case "status":
                print("\n".join(_status(server)))
            case "start":
                server.keep_running()
                server.acquire()
                server.create_database(DATABASE)
                server.release()
                print(server.dsn())
            case "stop":
                print("stopped" if server.stop(force=options.force) else "it was not running")
            case "reset":
                remove(server, force=options.force)
                if options.all:
                    remove(server_for(durable=False), force=options.force)
                    for folder in leftovers():
                        shutil.rmtree(folder)
                        print(f"removed {folder}")
            case "url":
                print(server.dsn())
    except EmbeddedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
