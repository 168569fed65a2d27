"""Run a command with faults in it: `lmr inject CAMPAIGN -- torchrun ...`.

For tests and drills, never for production: the faults are real. What a campaign may say is in docs/faults.md.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lmr.integrations.faults.campaign import load_campaign
from lmr.integrations.faults.errors import FaultsError
from lmr.integrations.faults.marks import Marks, node_of
from lmr.integrations.faults.runner import Runner, to_stderr


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr inject`."""
    parser.add_argument("campaign", type=Path, help="TOML file that says which fault strikes where and when")
    parser.add_argument("--marks", type=Path, help="folder of what has struck (default: CAMPAIGN with .marks added)")
    parser.add_argument("--check", action="store_true", help="only check the campaign")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run, as on each node")


def run(args: argparse.Namespace) -> int:
    """Run the command; its exit code, 2 where the campaign or this machine does not allow it."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    try:
        campaign = load_campaign(args.campaign)
        if args.check:
            print(f"{args.campaign}: {len(campaign.faults)} faults")
            return 0
        if not command:
            to_stderr("no command; write it after `--`, as in: lmr inject campaign.toml -- torchrun ...")
            return 2
        marks = Marks((args.marks or Path(f"{args.campaign}.marks")).absolute())
        if known := len(marks.strikes()):
            to_stderr(f"{known} faults have struck already and are not repeated ({marks.folder})")
        return Runner(campaign, args.campaign, marks, node_of(os.environ), to_stderr).run(command)
    except FaultsError as error:
        to_stderr(str(error))
        return 2
    except OSError as error:
        to_stderr(f"{error.filename or command[0]}: {error.strerror}")
        return 2
