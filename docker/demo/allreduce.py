"""Sums of vectors over all ranks, through TCP connections to rank 0: a small stand-in for NCCL."""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_HELLO = struct.Struct("!i16s")
_PATIENCE_S = 60.0


class PeerLostError(Exception):
    """Another rank is gone; this one cannot go on."""


@dataclass(frozen=True)
class World:
    """Who this process is among all ranks, and where rank 0 listens."""

    rank: int
    size: int
    address: str
    port: int
    launch: str  # which start of the training this is: stragglers of an earlier one are turned away


def read_world() -> World:
    """From torchrun's names for the environment, else from Slurm's, else a world of one."""
    env = os.environ
    return World(
        rank=int(env.get("RANK") or env.get("SLURM_PROCID") or 0),
        size=int(env.get("WORLD_SIZE") or env.get("SLURM_NTASKS") or 1),
        address=env.get("MASTER_ADDR") or env.get("SLURM_LAUNCH_NODE_IPADDR") or "localhost",
        port=int(env.get("MASTER_PORT") or env.get("SLURMTRAIN_MASTER_PORT") or 29500),
        launch=env.get("SLURMTRAIN_LAUNCH_KEY", "0"),
    )


class AllReduce:
    """``sum(vector)`` gives every rank the same sum, added up in the order of the ranks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._peers: dict[int, socket.socket] = {}
        if world.size > 1:
            self._peers = self._gather() if world.rank == 0 else {0: self._join()}

    def sum(self, vector: Vector) -> Vector:
        """Raises ``PeerLostError`` when a rank has gone."""
        if self._world.size == 1:
            return vector
        if self._world.rank != 0:
            self._send(0, vector)
            return self._receive(0, vector.size)
        total = vector.copy()
        for rank in sorted(self._peers):
            total += self._receive(rank, vector.size)
        for rank in self._peers:
            self._send(rank, total)
        return total

    def _gather(self) -> dict[int, socket.socket]:
        """Rank 0 waits for all others."""
        peers: dict[int, socket.socket] = {}
        with socket.create_server(("", self._world.port), backlog=self._world.size) as server:
            server.settimeout(_PATIENCE_S)
            while len(peers) < self._world.size - 1:
                try:
                    connection, _ = server.accept()
                    connection.settimeout(_PATIENCE_S)
                    rank, launch = _HELLO.unpack(_read(connection, _HELLO.size))
                except (OSError, EOFError) as exc:
                    missing = sorted(set(range(1, self._world.size)) - set(peers))
                    raise PeerLostError(f"ranks {missing} did not join within {_PATIENCE_S:.0f} s") from exc
                if launch.rstrip(b"\0").decode() != self._world.launch:
                    connection.close()
                    continue
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers[rank] = connection
        return peers

    def _join(self) -> socket.socket:
        """The other ranks call rank 0 until it answers."""
        world, deadline = self._world, time.monotonic() + _PATIENCE_S
        while True:
            try:
                connection = socket.create_connection((world.address, world.port), timeout=_PATIENCE_S)
                break
            except OSError as exc:
                if time.monotonic() > deadline:
                    raise PeerLostError(f"rank 0 does not answer at {world.address}:{world.port}") from exc
                time.sleep(0.1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_HELLO.pack(world.rank, world.launch.encode()[:16]))
        return connection

    def _send(self, rank: int, vector: Vector) -> None:
        try:
            self._peers[rank].sendall(vector.tobytes())
        except OSError as exc:
            raise PeerLostError(f"lost rank {rank}") from exc

    def _receive(self, rank: int, size: int) -> Vector:
        try:
            return np.frombuffer(_read(self._peers[rank], size * 8), dtype=np.float64).copy()
        except (OSError, EOFError) as exc:
            raise PeerLostError(f"lost rank {rank}") from exc


def _read(connection: socket.socket, size: int) -> bytes:
    chunks, missing = [], size
    while missing:
        chunk = connection.recv(min(missing, 1 << 20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
