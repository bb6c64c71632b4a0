"""Start the worker processes of one node with torchrun, and write down the ones that die.

torchrun's own report is a page of text; this writes one file per dead process instead and stays quiet.

Usage: ``python -m executor.agent FOLDER LAUNCHER_PID TORCHRUN_ARGUMENTS...``
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from executor.failures import describe_agent, describe_exit, load, save
from executor.launch import SILENT
from executor.lifetime import die_with_parent


def main(arguments: list[str]) -> int:
    """Run torchrun; the exit code is 0, or 1 when a process failed."""
    folder, launcher = Path(arguments[0]), int(arguments[1])
    die_with_parent(signal.SIGTERM, launcher)
    # torchrun logs the death of every process; the root cause is told once, by the launcher.
    logging.disable(logging.CRITICAL)
    if os.environ.get("TORCH_CPP_LOG_LEVEL") == SILENT:
        os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # for the processes to come; this one has read it already
    options = torchrun.parse_args(arguments[2:])
    try:
        torchrun.run(options)
    except ChildFailedError as error:
        spoken = {failure.rank for failure in load(folder)}
        for rank, failure in error.failures.items():
            if rank not in spoken:
                save(describe_exit(rank, failure.exitcode, failure.timestamp), folder)
        return 1
    except SignalException as error:
        return 128 + error.sigval
    except Exception as error:  # no process was started: the nodes did not meet, or a port is taken
        meeting = f"node {options.node_rank} of {options.nnodes} at {options.rdzv_endpoint}"
        save(describe_agent(error, "" if options.standalone else meeting), folder)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
