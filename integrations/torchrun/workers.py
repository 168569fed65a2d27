"""The workers of this node, as their supervisors and trainers report over the node's socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from lmr.engine.events import ExitError
from lmr.integrations.torchrun.local_peer import Peer, serve
from lmr.integrations.torchrun.process_tree import kill_group

log = structlog.get_logger("lmr.workers")


@dataclass(frozen=True)
class Exit:
    """How one worker ended; all None when it vanished without a word."""

    rank: int
    exit_code: int | None = None
    signal: int | None = None
    step: int | None = None
    error: ExitError | None = None

    @property
    def clean(self) -> bool:
        """The training script returned."""
        return self.exit_code == 0

    @property
    def secondary(self) -> bool:
        """A peer vanished; this worker is an echo."""
        return self.error is not None and self.error.kind == "collective"


class Workers:
    """Watches the workers of one generation at a time.

    Args:
        socket_name: abstract name supervisors and trainers connect to.
        on_started: called when every local rank has its supervisor.
        on_exit: called for every exit of the current generation, clean ones too.
        on_trainer: called with every message of a current trainer.
    """

    def __init__(
        self,
        socket_name: str,
        on_started: Callable[[], None],
        on_exit: Callable[[Exit], None],
        on_trainer: Callable[[dict[str, Any]], None],
    ) -> None:
        self.socket_name = socket_name
        self._on_started = on_started
        self._on_exit = on_exit
        self._on_trainer = on_trainer
        self._generation = -1
        self._ranks: frozenset[int] = frozenset()
        self._supervisors: dict[int, Peer] = {}
        self._trainers: dict[int, Peer] = {}
        self._exits: dict[int, Exit] = {}
        self._killed = False
        self._leaving = False
        self._peers: set[Peer] = set()
        self._stop = self._listen()

    def _listen(self) -> Callable[[], None]:
        return serve(self.socket_name, self._connected)

    def expect(self, generation: int, ranks: tuple[int, ...]) -> None:
        """From here on these ranks of this generation count; what older ones say is history."""
        self._generation = generation
        self._ranks = frozenset(ranks)
        self._supervisors = {}
        self._trainers = {}
        self._exits = {}
        self._killed = False

    @property
    def supervised(self) -> bool:
        """Whether every local rank reported itself."""
        return bool(self._ranks) and self._supervisors.keys() == self._ranks

    @property
    def finished(self) -> bool:
        """Whether every local rank's script has returned."""
        return bool(self._ranks) and self._ranks == {rank for rank, e in self._exits.items() if e.clean}

    def pids(self) -> list[int]:
        """The current supervisors and trainers. Safe from any thread."""
        return [peer.about["pid"] for peer in [*self._supervisors.values(), *self._trainers.values()]]

    def kill(self) -> None:
        """SIGKILL every current worker's process group: they hold no state that is needed. Safe from any thread.

        How they end from here on is our doing and no news.
        """
        self._killed = True
        for pid in self.pids():
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        kill_group(pid)

    def leave(self) -> None:
        """The agent was told to end and so are its workers: how they end is no news, and nobody holds."""
        self._killed = self._leaving = True
        for rank in self._exits:
            if rank in self._supervisors:
                self._supervisors[rank].send("exit", code=1)

    def all_lost(self) -> None:
        """The agent saw the workers fail: those that have not said how are lost without a word."""
        for rank in sorted(self._ranks):
            self._ended(Exit(rank))

    def release(self, code: int) -> None:
        """Let the supervisors end with `code`."""
        for peer in self._supervisors.values():
            peer.send("exit", code=code)

    def beat(self, until_s: float | None) -> None:
        """Tell the supervisors that this agent runs.

        Args:
            until_s: when they must end their trainers if they hear nothing more, in monotonic seconds of this machine.
        """
        for peer in self._supervisors.values():
            peer.send("here", until_s=until_s)

    def close(self) -> None:
        """Stop listening and drop every connection."""
        self._stop()
        for peer in list(self._peers):
            peer.close()

    def _connected(self, sock: socket.socket) -> None:
        self._peers.add(Peer(sock, self._message, self._gone))

    def _message(self, peer: Peer, message: dict[str, Any]) -> None:
        try:
            self._dispatch(peer, message)
        except (KeyError, TypeError, ValueError) as error:
            log.error("worker_message_refused", message=str(message)[:200], why=repr(error))

    def _dispatch(self, peer: Peer, message: dict[str, Any]) -> None:
        if message["kind"] == "hello":
            peer.about = message
        if not self._current(peer):
            return
        role, rank = peer.about["role"], peer.about["rank"]
        match message["kind"], role:
            case "hello", "supervisor":
                self._supervisors[rank] = peer
                if self.supervised:
                    self._on_started()
            case "exited", "supervisor" if self._leaving:
                peer.send("exit", code=message["exit_code"] if message["exit_code"] is not None else 1)
            case "exited", "supervisor":
                self._ended(_exit_of(message))
            case "hello", "trainer":
                self._trainers[rank] = peer
            case _, "trainer":
                self._on_trainer(message)

    def _current(self, peer: Peer) -> bool:
        return peer.about.get("generation") == self._generation and peer.about.get("rank") in self._ranks

    def _gone(self, peer: Peer) -> None:
        self._peers.discard(peer)
        rank = peer.about.get("rank")
        if rank is not None and self._supervisors.get(rank) is peer and rank not in self._exits and self._current(peer):
            self._ended(Exit(rank))

    def _ended(self, ended: Exit) -> None:
        if ended.rank in self._exits or self._killed:
            return
        self._exits[ended.rank] = ended
        self._on_exit(ended)


def _exit_of(message: dict[str, Any]) -> Exit:
    error = message["error"]
    return Exit(
        rank=message["rank"],
        exit_code=message["exit_code"],
        signal=message["signal"],
        step=message["step"],
        error=ExitError.model_validate(error) if error is not None else None,
    )
