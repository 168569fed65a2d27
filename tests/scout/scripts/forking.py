"""Loads torch once; runs a script in a fork for each line of its input, `{"script", "argv", "env"}`. Says the pid."""

import json
import os
import runpy
import signal
import sys

import torch.distributed.checkpoint

assert torch.get_num_threads() > 0
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
for line in sys.stdin:
    wanted = json.loads(line)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(wanted["env"])
        sys.argv = [wanted["script"], *wanted["argv"]]
        runpy.run_path(wanted["script"], run_name="__main__")
        os._exit(0)
    print(pid, flush=True)
