"""What a trainer can still say when it hangs: its Python stacks and torch's flight recorder.

Stacks come from `faulthandler` on a signal: written by the C handler, without the interpreter's lock, into a memfd
that the agent reads. The flight recorder needs a thread that can run Python, which a rank blocked in a collective
has: the main thread waits without the lock. A stopped process gives neither; then the kernel's view of it is the
evidence.
"""

from __future__ import annotations

import base64
import faulthandler
import os
import signal
import socket
import sys
import threading

from lmr.integrations.torchrun import local_socket

STACKS_SIGNAL = signal.SIGRTMAX - 2
"""Real-time signals are used by nobody's scripts; the first ones belong to the C library, the last to init systems."""
RECORD_MOST_BYTES = 640 * 1024


class Evidence:
    """Answers for one trainer.

    `stacks_fd` is the descriptor of the memfd the stacks go to, `socket_name` the abstract name that flight records are
    asked for at.
    """

    def __init__(self) -> None:
        self.stacks_fd = os.memfd_create("lmr-stacks", os.MFD_CLOEXEC)
        self.socket_name = f"lmr-trainer-{os.getpid()}"
        self._listener: socket.socket | None = None

    def install(self) -> None:
        """Be ready; a script's own handler of the signal is left alone."""
        if signal.getsignal(STACKS_SIGNAL) == signal.SIG_DFL:
            faulthandler.register(STACKS_SIGNAL, file=self.stacks_fd, all_threads=True, chain=False)
        try:
            self._listener = local_socket.listen(self.socket_name)
        except OSError as error:
            print(f"lmr: flight records of this rank cannot be asked for: {error}", file=sys.stderr)
            return
        threading.Thread(target=self._answer, name="lmr-evidence", daemon=True).start()
        os.register_at_fork(after_in_child=self._listener.close)

    def _answer(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                asked, _ = listener.accept()
            except OSError:
                return
            with asked:
                try:
                    local_socket.check_peer(asked)
                    local_socket.send(asked, _flight_record())
                except (OSError, local_socket.LocalSocketError):
                    continue


def _flight_record() -> dict[str, str | None]:
    """The newest collectives as torch recorded them; `record` is None with the reason in `why`."""
    torch = sys.modules.get("torch")
    dump = getattr(getattr(getattr(torch, "_C", None), "_distributed_c10d", None), "_dump_fr_trace_json", None)
    if dump is None:
        return {"kind": "flight_record", "record": None, "why": "this torch has no flight recorder"}
    try:
        body = dump(includeCollectives=True, onlyActive=False)
    except (RuntimeError, TypeError) as error:
        return {"kind": "flight_record", "record": None, "why": str(error)}
    body = body if isinstance(body, bytes) else str(body).encode()
    if len(body) > RECORD_MOST_BYTES:
        return {"kind": "flight_record", "record": None, "why": f"{len(body)} bytes are too many for one message"}
    return {"kind": "flight_record", "record": base64.b64encode(body).decode(), "why": None}
