"""A PostgreSQL server of the tests' own: in a temporary folder, on a socket that only they know."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg

FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB")


def binaries():
    """The folder with initdb and postgres, of the newest version here; None without any."""
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found = sorted(debian, key=lambda path: float(path.parts[-3]))
    path = found[-1] if found else shutil.which("initdb")
    return path and Path(path).resolve().parent


def owner():
    """As whom it runs, since PostgreSQL refuses root."""
    if os.getuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class Server:
    def __init__(self, folder):
        self.folder, self.made = folder, 0

    def connect(self):
        return psycopg.connect(host=self.folder, user="postgres", autocommit=True)

    def address(self):
        """Of an empty schema, which is there sooner than a database; they share the lease."""
        self.made += 1
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA roll{self.made}")
        where = f"host={self.folder}&options=-csearch_path%3Droll{self.made}"
        return f"postgresql+psycopg://postgres@/postgres?{where}"


@contextmanager
def running(binaries):
    """A server, gone with all its files at the end."""
    folder = tempfile.mkdtemp(prefix="archipel-pg-")  # short: a socket's path has 107 bytes at most
    who = owner()
    if who:
        os.chown(folder, who["user"], who["group"])
    data = f"{folder}/data"
    make = [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
    options = [f"-c{each}" for each in ("listen_addresses=", *FAST)]
    process = None
    try:
        subprocess.run([*make, "--no-sync"], check=True, capture_output=True, cwd=folder, **who)
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(
                [binaries / "postgres", "-D", data, "-k", folder, *options],
                stderr=log,
                cwd=folder,
                **who,
            )
        server = Server(folder)
        for attempt in range(200):
            try:
                server.connect().close()
                break
            except psycopg.OperationalError:
                if process.poll() is not None or attempt == 199:
                    raise RuntimeError(Path(folder, "log").read_text()) from None
                time.sleep(0.05)
        yield server
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)  # without waiting for those connected
            process.wait()
        shutil.rmtree(folder)
