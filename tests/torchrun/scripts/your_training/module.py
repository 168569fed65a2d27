"""Stands for the user's training module: the small training, told by the environment what a command line would say."""

import os
import runpy
import sys
from pathlib import Path

sys.argv = ["module", *os.environ["TRAINING_ARGUMENTS"].split()]
runpy.run_path(str(Path(__file__).parents[1] / "small_training.py"), run_name="__main__")
