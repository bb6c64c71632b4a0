"""Import NumPy without its pool of BLAS threads: planning multiplies no matrices, and the pool costs CPU time."""

from __future__ import annotations

import importlib
import os

_VARIABLE = "OPENBLAS_NUM_THREADS"  # read once, when the library is loaded


def import_numpy() -> None:
    """Import NumPy with one BLAS thread, and leave the environment of later child processes as it was."""
    stated = os.environ.get(_VARIABLE)
    os.environ.setdefault(_VARIABLE, "1")
    try:
        importlib.import_module("numpy")
    finally:
        if stated is None:
            del os.environ[_VARIABLE]
