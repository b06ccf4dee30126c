"""A wire between two nodes on one machine, which needs no rights to be cut: a TCP proxy.

Cut, it forwards nothing and closes nothing: as on a network that is lost, whoever sends is not told, and also the end
of a connection is not heard of on the other side. Mended, what was sent meanwhile arrives, as TCP would send it again.
"""

import socket
import threading
from contextlib import suppress

FAR = "127.0.0.2"
"""The address under which the near side is reached over the wire."""
_CHUNK = 1 << 16


class Wire:
    """Leads connections to ports of FAR on to the same or other ports of this machine."""

    def __init__(self) -> None:
        self._whole = threading.Event()
        self._whole.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._ended = False
        self.held = 0
        """Pieces (data, or an end) that wait now for the wire to be mended."""

    def lead(self, port: int, to: int | None = None) -> None:
        """From FAR:`port` to 127.0.0.1:`to` (the same port)."""
        self._start(self._accept, self._keep(socket.create_server((FAR, port))), port if to is None else to)

    def cut(self) -> None:
        """From now on nothing passes."""
        self._whole.clear()

    def mend(self) -> None:
        """What waits passes, and all that follows."""
        self._whole.set()

    def answers(self, port: int, seconds: float) -> bool:
        """Does a request over the wire to that port have an answer within so long? (One that is alive has one.)"""
        with socket.create_connection((FAR, port), timeout=seconds) as asking:
            asking.sendall(b"GET / HTTP/1.0\r\n\r\n")
            try:
                return bool(asking.recv(1))
            except OSError:  # Nothing within its time, or nobody there.
                return False

    def close(self) -> None:
        """With all its connections."""
        self._ended = True
        self._whole.set()
        with self._lock:
            for socket_known in self._sockets:
                with suppress(OSError):
                    socket_known.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, story: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=story, args=arguments, daemon=True)  # type: ignore[arg-type]
        with self._lock:
            self._threads = [thread_before for thread_before in self._threads if thread_before.is_alive()] + [thread]
            thread.start()
        return thread

    def _keep(self, sockets: socket.socket) -> socket.socket:
        with self._lock:
            self._sockets.add(sockets)
        return sockets

    def _drop(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets.difference_update(sockets)
        for socket_known in sockets:
            socket_known.close()

    def _pass(self) -> None:
        """Until the wire is whole."""
        if not self._whole.is_set():
            with self._lock:
                self.held += 1
            self._whole.wait()
            with self._lock:
                self.held -= 1

    def _accept(self, listener: socket.socket, to: int) -> None:
        with suppress(OSError):
            while not self._ended:
                near, _ = listener.accept()
                self._start(self._carry, self._keep(near), to)
        self._drop(listener)

    def _carry(self, near: socket.socket, to: int) -> None:
        """One connection, in both directions."""
        self._pass()
        try:
            far = self._keep(socket.create_connection(("127.0.0.1", to)))
        except OSError:  # Nobody is there: whoever asked is told so.
            self._drop(near)
            return
        back = self._start(self._pump, far, near)
        self._pump(near, far)
        back.join()
        self._drop(near, far)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        data = b"begun"
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            self._pass()
            try:
                sink.sendall(data) if data else sink.shutdown(socket.SHUT_WR)
            except OSError:  # The other side is gone: tell this one.
                with suppress(OSError):
                    source.shutdown(socket.SHUT_RDWR)
                return
