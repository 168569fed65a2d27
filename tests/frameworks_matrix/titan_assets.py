"""What TorchTitan's debug model reads: a tokenizer of a few words, and texts."""

import json
import random
from pathlib import Path


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
