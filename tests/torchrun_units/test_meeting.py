"""Whose address an endpoint is."""

import pytest
from torch.distributed.elastic.rendezvous import utils

from lmr.integrations.torchrun.meeting import _is_this_machine


@pytest.fixture
def host_name_says_nothing(monkeypatch):
    """As on a machine whose host name does not resolve to the network the endpoint is in."""
    monkeypatch.setattr(utils, "_matches_machine_hostname", lambda _host: False)


@pytest.mark.usefixtures("host_name_says_nothing")
def test_any_address_of_the_machine_is_its_own():
    assert _is_this_machine("127.0.0.1")
    assert _is_this_machine("localhost")


@pytest.mark.usefixtures("host_name_says_nothing")
@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_elsewhere_or_none_is_not(host):
    assert not _is_this_machine(host)
