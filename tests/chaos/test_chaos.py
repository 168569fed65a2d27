"""An hour of faults by chance. `make chaos` plays shorter campaigns, and a single round again."""

import pytest

from chaos.run import campaign

pytestmark = [pytest.mark.torchrun, pytest.mark.long]


@pytest.mark.timeout(5_400)
def test_an_hour_of_chaos_leaves_the_same_training_behind(tmp_path):
    """State and losses as of an uninterrupted run; the log verifies; nothing is left on the machine."""
    assert campaign(tmp_path, 60, seed=1) == 0
