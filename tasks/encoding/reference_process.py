"""The reference of a tokenizer.json in a process of its own, so that workers encode while it is being loaded.

The library tokenizers takes as long to load a large vocabulary as the fast encoder does, 0.3 to 0.4 s, and both keep
Python's lock. So the workers' server forks a process that loads the reference, and loads only the fast encoder itself.
Each worker gets a fork of that process when it first needs the reference. A worker that can't have one, or loses it,
loads the reference itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import TokenizerError
from tokenloom.tasks.running.forking import fork_beside
from tokenloom.tasks.running.worker_process import serve
from tokenloom.tokenizers import Encoded, Tokenizer, load_tokenizer
from tokenloom.tokenizers.identity import TokenizerIdentity

_PR_SET_PDEATHSIG = 1

_reference: Tokenizer | None = None  # in its own process and the forks of it


class RemoteTokenizer:
    """A tokenizer whose texts a fork of the reference's process encodes.

    Args:
        definition: see load_tokenizer.
        identity: what the tokenizer is, as this machine remembers it.
        files: its files.
    """

    def __init__(self, definition: Mapping[str, Any], identity: TokenizerIdentity, files: dict[str, bytes]) -> None:
        self.kind, self.name, self.vocab_size = identity.kind, identity.name, identity.vocab_size
        self.bos_ids, self.eot_id = identity.bos_ids, identity.eot_id
        self.fingerprint, self.backend, self.files = identity.fingerprint, identity.backend, files
        self.max_text_bytes = identity.max_text_bytes
        self._definition = definition
        self._requests: socket.socket | None = None
        self._connection: Connection | None = None
        self._loaded: Tokenizer | None = None

    def start(self) -> bool:
        """Start the reference's process; return False where this process can't."""
        self._requests, theirs = socket.socketpair()
        with theirs:
            return fork_beside(partial(_serve, self._load, theirs, self._requests))

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode."""
        whole = pa.concat_arrays([texts])  # of a slice, pickle would send all texts
        encoded: Encoded = self._call("encode", whole, dtype)
        return encoded

    def takes(self, text: NDArray[np.uint8]) -> bool:
        """See Tokenizer.takes."""
        return bool(self._call("takes", text))

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        return str(self._call("decode", ids))

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._loaded is None:
            try:
                kind, value = self._exchange((_call_reference, (method, arguments)))
            except (EOFError, OSError):  # its process is gone, or could not load it
                self._loaded = self._load()
            else:
                if kind == "error":
                    raise value
                return value
        return getattr(self._loaded, method)(*arguments)

    def _exchange(self, call: tuple[Any, ...]) -> tuple[str, Any]:
        """Send a call to this worker's fork; return "result" or "error", and the value."""
        connection = self._connection = self._connection or self._connect()
        try:
            connection.send(call)
            answer: tuple[str, Any] = connection.recv()
        except BaseException:
            connection.close()  # or the next call would get the answer to this one
            self._connection = None
            raise
        return answer

    def _connect(self) -> Connection:
        assert self._requests is not None  # it was started
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._requests, [b"\0"], [theirs.fileno()])
        return Connection(ours.detach())

    def _load(self) -> Tokenizer:
        tokenizer = load_tokenizer(self._definition)
        if tokenizer.fingerprint != self.fingerprint:
            raise TokenizerError(f"tokenizer {self.name}: its files changed since the build began; build again")
        return tokenizer


def _serve(load: Callable[[], Tokenizer], requests: socket.socket, others_end: socket.socket) -> NoReturn:
    """Load the reference, and fork a process for each connection that is sent; end with the workers' server."""
    global _reference
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it may end while this loads
    others_end.close()
    _reference = load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while True:
        descriptors = socket.recv_fds(requests, 1, 1)[1]
        if not descriptors:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            serve(descriptors[0])
        os.close(descriptors[0])


def _call_reference(call: tuple[str, tuple[Any, ...]]) -> Any:
    method, arguments = call
    return getattr(_reference, method)(*arguments)
