"""What the tests of shipping share: slurmtrain with its extra for S3, a real S3 server, and a faulty way to it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environments
import pytest
from ceph import Ceph
from cluster import Cluster, wait_until

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def ship_venv(cluster_session: Cluster) -> Path:
    """A virtual environment with ``slurmtrain[ship]`` that the researcher can use, made once beside the cluster."""
    venv = Path(cluster_session.facts["dir"]) / "venv-ship"
    stamp, sources = venv / ".installed", _digest()
    with (venv.parent / ".venv-ship.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != sources:
            environments.create(venv)
            environments.install(venv, [f"{REPO}[ship]"])
            stamp.write_text(sources, encoding="utf-8")
    return venv


def _digest() -> str:
    """Of all that is installed: another worker may be using it, so it is replaced only where it is another version."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "slurmtrain", "templates", "plugins"):
        for path in sorted([REPO / name, *(REPO / name).rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(REPO)).encode() + path.read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ceph]:
    """Ceph's gateway."""
    server = Ceph(tmp_path_factory.mktemp("ceph"))
    try:
        yield server.start()
    finally:
        server.stop()


class Bucket:
    """A bucket seen from outside, through a program of its own: nothing of slurmtrain's is asked."""

    def __init__(self, venv: Path, server: Ceph, name: str) -> None:
        self.name = name
        self._venv = venv
        self._server = server
        self._call(f"fs.call_s3('create_bucket', Bucket={name!r})")

    def contents(self) -> dict[str, bytes]:
        """Every object and what is in it."""
        cut = len(self.name) + 1
        found: dict[str, bytes] = self._call(f"out = {{k[{cut}:]: fs.cat_file(k) for k in fs.find({self.name!r})}}")
        return found

    def names(self) -> list[str]:
        return sorted(self._call(f"out = [k[len({self.name!r})+1:] for k in fs.find({self.name!r})]"))

    def uploads(self) -> list[str]:
        """Keys of multipart uploads that were begun and not ended."""
        listed = f"fs.call_s3('list_multipart_uploads', Bucket={self.name!r}).get('Uploads') or []"
        return sorted(self._call(f"out = [u['Key'] for u in {listed}]"))

    def _call(self, code: str) -> Any:
        import pickle

        program = (
            "import fsspec, pickle, sys\n"
            "fs = fsspec.filesystem('s3', use_listings_cache=False)\nout = None\n"
            f"{code}\nsys.stdout.buffer.write(pickle.dumps(out))\n"
        )
        env = {**os.environ, **self._server.environ}
        done = subprocess.run(
            [self._venv / "bin/python", "-c", program], capture_output=True, env=env, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        return pickle.loads(done.stdout)


class FaultyWay:
    """A TCP proxy to a server that may answer 503, cut connections in the middle, or be slow."""

    def __init__(self, port: int, seed: int = 1) -> None:
        self._to = port
        self._random = random.Random(seed)
        self.busy = 0.0  # how many of the requests are answered SlowDown instead
        self.cut_after: int | None = None  # bytes from the client, then the connection is gone
        self.bytes_per_s: float | None = None
        self.answered_busy = 0
        self.sent = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = client.recv(65536)
            if self._random.random() < self.busy:
                self.answered_busy += 1
                body = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>reduce</Message></Error>"
                client.sendall(
                    b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Type: application/xml\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                return
            with socket.create_connection(("127.0.0.1", self._to), 10) as server:
                server.sendall(head)
                self._pump(client, server, len(head))

    def _pump(self, client: socket.socket, server: socket.socket, seen: int) -> None:
        while True:
            ready, _, _ = select.select([client, server], [], [], 60)
            if not ready:
                return
            for one in ready:
                data = one.recv(65536)
                if not data:
                    return
                (server if one is client else client).sendall(data)
                if one is client:
                    seen += len(data)
                    self.sent += len(data)
                    if self.bytes_per_s:
                        threading.Event().wait(len(data) / self.bytes_per_s)
                    if self.cut_after is not None and seen > self.cut_after:
                        return


def wait_for_object(bucket: Bucket, name: str, timeout_s: float = 180) -> None:
    wait_until(lambda: name in bucket.names(), timeout_s, f"object {name}", 1.0)
