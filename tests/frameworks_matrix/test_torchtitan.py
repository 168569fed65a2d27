"""TorchTitan's own trainer through the CPU shim of the tests. Without TorchTitan it is skipped."""

import importlib.util
import json
import random
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="TorchTitan is not installed here"),
]

SHIM = str(Path(__file__).parent / "shims" / "torchtitan_on_cpu.py")


def assets(folder: Path) -> Path:
    """A tokenizer of a few words and texts of them."""
    words = [f"w{i}" for i in range(200)]
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    special = [
        {"id": vocabulary[t], "content": t, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for t in ("<unk>", "<s>", "</s>")
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer" / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    (folder / "c4_test").mkdir()
    draw = random.Random(5)
    rows = [json.dumps({"text": " ".join(draw.choices(words, k=100))}) for _ in range(400)]
    (folder / "c4_test" / "data.json").write_text("\n".join(rows))
    return folder


def test_fully_sharded_trainer(drill, tmp_path):
    """FSDP2 as TorchTitan sets it up; the place in the data is its own loader's.

    A restarted trainer loads the newest of its own checkpoints: what was captured is newer. When nobody's memory is
    left, what that checkpoint lacks is found in it, too.
    """
    where = assets(tmp_path / "assets")
    environ = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    drill(
        "titan",
        [SHIM, "--assets", str(where), "--checkpoints", "{out}-own"],
        steps=40,
        stop=True,
        durable=True,
        environ=environ,
    )
