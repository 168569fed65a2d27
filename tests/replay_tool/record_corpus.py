"""Records the corpus: `python tests/replay_tool/record_corpus.py` after a deliberate change of the rules.

The tests verify the recorded logs with today's engine. A decision that differs is either a mistake or a new rule; a new
rule has a new engine version, and its recordings are added beside those of the versions before.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from stories import STORIES

from lmr.engine.offline import run_facts
from lmr.replay_tool.jsonl import record_line
from lmr.replay_tool.main import main as replay

CORPUS = Path(__file__).parent / "corpus"


def main() -> None:
    """Writes every story's log, and the explanation of its last plan."""
    CORPUS.mkdir(exist_ok=True)
    os.environ["COLUMNS"] = "120"
    for name, story in STORIES.items():
        lines = [record_line(record) for _, record in run_facts(story())]
        path = CORPUS / f"{name}.jsonl"
        path.write_text("".join(lines), "utf-8")
        with redirect_stdout(StringIO()) as told:
            replay(["explain", str(path)])
        path.with_suffix(".txt").write_text(told.getvalue(), "utf-8")


if __name__ == "__main__":
    main()
