"""No process of a run outlives the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Ask the kernel to send this process a signal when the thread that started it ends; does nothing off Linux.

    Args:
        number: the signal.
        parent: process that started this one; when it has ended already, the signal is sent at once.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number.value, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)
