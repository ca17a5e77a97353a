"""A real PostgreSQL server for the tests, in a directory of its own, on a socket of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def find_program(name: str) -> str | None:
    """Where Debian and others keep the programs of the server."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(versions[-1]) if versions else shutil.which(name)


@contextmanager
def running_server() -> Iterator[str]:
    """The URL of a new server, which is stopped and deleted at the end."""
    directory = Path(tempfile.mkdtemp(prefix="discreet-pg-"))
    data = directory / "data"
    # The server refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    try:
        if user is not None:
            shutil.chown(directory, user)

        def run(name: str, *arguments: str) -> None:
            program = find_program(name)
            assert program is not None
            with (directory / "output").open("ab") as output:
                done = subprocess.run(
                    [program, *arguments],
                    user=user,
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    check=False,
                    timeout=120,
                )
            assert done.returncode == 0, (directory / "output").read_text()

        run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync")
        options = f"-c listen_addresses= -k {directory} -c max_connections=50"
        run("pg_ctl", "-D", str(data), "-w", "-l", str(directory / "log"), "-o", options, "start")
        try:
            yield f"postgresql:///postgres?host={directory}&user=postgres"
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
