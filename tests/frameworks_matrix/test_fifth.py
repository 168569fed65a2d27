"""The adapter printed in docs/adapters.md, word for word, on a framework it was written for."""

import os
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torchrun, pytest.mark.long, pytest.mark.timeout(900)]

HERE = Path(__file__).parent / "fifth"
DOCUMENT = Path(__file__).parents[2] / "docs" / "adapters.md"


def test_the_documented_adapter_works(drill, tmp_path):
    """Two optimizers, two micro-batches a step, a counter of the framework's own: all of it comes back."""
    code = DOCUMENT.read_text().split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "spark_lmr.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), str(HERE), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    loop = drill(
        [str(HERE / "train_with_spark.py")],
        environ={"LM_RESILIENCY_ADAPTERS": "spark.trainer=spark_lmr", "PYTHONPATH": path},
    )
    assert loop.step() == 60
