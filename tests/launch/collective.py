"""An all-reduce by plain sockets, for scripts of tests whose subject is the launcher: importing torch takes seconds.

It fails as gloo does: when a rank is gone, the others' next sum raises, or waits until they are ended.
"""

import os
import socket
import threading
import time
from pathlib import Path

CONNECT_S = 60.0


class Group:
    """The ranks of this round, as the launcher's variables name them; rank 0 adds up."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Wait until all have come. `folder`: where rank 0 writes its port down for this round."""
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.round = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        port_file = Path(folder) / f"port-{self.round}"
        self._hello = f"{self.round} {self.world}\n".encode()
        self._peers = self._gather(port_file) if self.rank == 0 else [self._connect(port_file)]

    def sum(self, value: int) -> int:
        """Of what each rank gives. Raises ConnectionError when one is gone."""
        if self.rank == 0:
            total = value + sum(_read(peer) for peer in self._peers)
            for peer in self._peers:
                _write(peer, total)
            return total
        _write(self._peers[0], value)
        return _read(self._peers[0])

    def close(self) -> None:
        """Leave."""
        for peer in self._peers:
            peer.close()

    def _gather(self, port_file: Path) -> list[socket.socket]:
        peers: list[socket.socket] = []
        with socket.create_server((os.environ["MASTER_ADDR"], 0)) as server:
            fresh = port_file.with_suffix(f".{os.getpid()}")
            fresh.write_text(str(server.getsockname()[1]))
            fresh.replace(port_file)
            while len(peers) < self.world - 1:
                peer, _ = server.accept()
                if peer.recv(len(self._hello), socket.MSG_WAITALL) == self._hello:
                    peer.sendall(self._hello)
                    peers.append(peer)
        return peers

    def _connect(self, port_file: Path) -> socket.socket:
        deadline = time.monotonic() + CONNECT_S
        while time.monotonic() < deadline:
            try:
                peer = socket.create_connection(
                    (os.environ["MASTER_ADDR"], int(port_file.read_text())), timeout=CONNECT_S
                )
                peer.sendall(self._hello)
                if peer.recv(len(self._hello), socket.MSG_WAITALL) == self._hello:
                    peer.settimeout(None)
                    return peer
            except (OSError, ValueError):
                threading.Event().wait(0.01)
        raise TimeoutError(f"rank 0 of round {self.round} is not there")


def _read(peer: socket.socket) -> int:
    data = peer.recv(8, socket.MSG_WAITALL)
    if len(data) < 8:
        raise ConnectionError("a rank is gone")
    return int.from_bytes(data, "big")


def _write(peer: socket.socket, value: int) -> None:
    peer.sendall(value.to_bytes(8, "big"))
