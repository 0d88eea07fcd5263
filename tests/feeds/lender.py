"""Somebody who lends cores to feeds: processes of this machine, behind a socket, as a node's host does on Ray."""

import contextlib
import socket
import threading

import numpy

from dovetail.feeds.process_server import ProcessServer
from dovetail.feeds.remote_cores import RemoteCores
from dovetail.feeds.transport import Channel
from dovetail.vocabulary import ProgramError


class Lender:
    """Lends so many cores, and can take all of them back."""

    def __init__(self, folder, cores):
        self.cores, self.lent = cores, []
        self.borrowed = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "cores"))
        self._listener.listen()
        self.remote = RemoteCores(str(folder / "cores"))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.take_back()
        self._listener.close()

    def take_back(self):
        """As a node that is gone, or an order that wants its cores."""
        self.cores = 0
        for channel in list(self.lent):
            channel.shut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[Channel(connection)], daemon=True).start()

    def _serve(self, ours):
        with contextlib.suppress(OSError, EOFError), ours:
            while True:
                word, *rest = ours.receive()
                if word == "idle":
                    ours.send(self.cores - len(self.lent))
                elif word == "echo":
                    ours.send_encoded(b"", [numpy.zeros(rest[0], dtype=numpy.uint8)])
                else:
                    self._lend(ours, *rest)
                    return

    def _lend(self, ours, path, pickled):
        if len(self.lent) >= self.cores:
            ours.send((False, ""))
            return
        self.lent.append(ours)
        server = ProcessServer(pickled, path=path)
        try:
            with server.fork()[1] as theirs:
                self.borrowed += 1
                ours.send((True, ""))
                back = threading.Thread(target=_pass, args=[theirs, ours], daemon=True)
                back.start()
                _pass(ours, theirs)
                back.join()
        except ProgramError as error:
            ours.send((False, str(error)))
        finally:
            server.close()
            self.lent.remove(ours)


def _pass(one, other):
    """Pass on what comes from one side until it ends."""
    with contextlib.suppress(OSError, EOFError):
        while True:
            other.send_encoded(*one.receive_encoded())
    one.shut()
    other.shut()
