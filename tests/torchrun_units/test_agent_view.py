"""What we change in torchrun's agent object, pinned to the torch that is installed."""

import inspect

import pytest
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerGroup, WorkerSpec
from torch.distributed.launcher.api import LaunchConfig

from lmr.integrations.torchrun.agent_view import DEFAULT_MONITOR_S, MONITOR_S, AgentView


class Agent:
    """As much of an agent as `AgentView` looks at, around torch's own worker group."""

    def __init__(self, monitor_interval: float) -> None:
        spec = WorkerSpec(
            role="r", local_world_size=1, rdzv_handler=None, entrypoint="true", monitor_interval=monitor_interval
        )
        self._group = WorkerGroup(spec)

    def get_worker_group(self) -> WorkerGroup:
        return self._group


@pytest.mark.parametrize(("given", "used"), [(DEFAULT_MONITOR_S, MONITOR_S), (0.5, 0.5), (0.01, 0.01)])
def test_only_torchruns_default_interval_is_changed(given: float, used: float) -> None:
    agent = Agent(given)
    AgentView(agent).look_often()
    assert agent.get_worker_group().spec.monitor_interval == used


def test_another_agent_object_is_left_alone() -> None:
    AgentView(object()).look_often()
    AgentView(None).look_often()


def test_torchrun_reads_the_interval_after_the_first_rendezvous() -> None:
    source = inspect.getsource(SimpleElasticAgent._invoke_run)
    assert source.index("_initialize_workers") < source.index("spec.monitor_interval") < source.index("while True")


def test_the_default_is_torchruns() -> None:
    assert LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1).monitor_interval == DEFAULT_MONITOR_S
