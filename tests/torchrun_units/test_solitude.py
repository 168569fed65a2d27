"""When a node that hears nothing of its decider stops its workers."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from lmr.integrations.torchrun.election import listen
from lmr.integrations.torchrun.peers import nobody_decides, serve_peers
from lmr.integrations.torchrun.solitude import Solitude

LEASE_S = 20
HEARS, DOES_NOT = 0.1 * LEASE_S, 0.3 * LEASE_S
"""What a peer answers: for how long it has not heard the decider."""
SECRET = b"of this test"


def cut_off(silences, answers):
    """Two peers, of which one is gone. When a silent node stopped its workers, and until when they were to go on.

    Args:
        silences: when it looks; all times are parts of the lease.
        answers: of the peer that is there, one for each.
    """
    clock, told, fenced, excused = SimpleNamespace(now=0.0), iter(answers), [], []
    clock.monotonic = lambda: clock.now

    async def main():
        tasks = []
        server, port = await serve_peers(SECRET, lambda: next(told), listen())
        current = SimpleNamespace(
            orders=SimpleNamespace(peers=[("127.0.0.1", port), ("127.0.0.1", 1)]), mine=object(), displaced=False
        )
        solitude = Solitude(
            LEASE_S * 1000,
            clock,
            SECRET,
            current=lambda: current,
            spawn=lambda work: tasks.append(asyncio.ensure_future(work)),
            excused=lambda: excused.append(solitude.safe_until() / LEASE_S),
            fence=lambda: fenced.append(clock.now / LEASE_S),
            host_gone=lambda: fenced.append("host gone"),
        )
        solitude.follow(SimpleNamespace(heard=0.0, refused_connections=False))
        for silence in silences:
            clock.now = silence * LEASE_S
            solitude.look(can_move=False)
            await asyncio.gather(*tasks)
        server.close()

    asyncio.run(main())
    return fenced, excused


@pytest.mark.parametrize(
    ("silences", "answers", "expected"),
    [
        ([0.3, 0.45], [], ([], [])),  # peers are not asked yet
        ([0.55, 0.75], [HEARS, HEARS], ([0.75], [])),  # this node is cut off
        ([0.55, 0.65, 0.75], [HEARS, DOES_NOT, DOES_NOT], ([], [1.65, 1.75])),  # the peer heard a frozen decider longer
        ([0.55, 0.75], [DOES_NOT, HEARS], ([0.75], [1.55])),  # somebody decides again, and this node does not hear it
    ],
)
def test_peers_are_asked_until_the_lease_is_nearly_over(silences, answers, expected):
    assert cut_off(silences, answers) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_peer_answers_on_its_port_whatever_the_kind_of_address(host):
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")

    async def asked():
        server, port = await serve_peers(SECRET, lambda: 9.0, listen())
        alone = await nobody_decides(SECRET, [(host, port)], 8_000, 10)
        server.close()
        return alone

    assert asyncio.run(asked())
