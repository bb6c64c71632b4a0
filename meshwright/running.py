"""What happens on a machine: run a plan, measure this one, hold prediction against measurement. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.specs import ClusterSpec, Estimate, InputError, Observation

if TYPE_CHECKING:
    from costmodel.specs import Comparison


def measure(*, processes: int, quick: bool = True) -> ClusterSpec:
    """A profile of this machine's CPU as a cluster of ``processes`` devices; torch is needed.

    Args:
        processes: processes that will train side by side, each one device with its share of the cores.
        quick: about 20 seconds; otherwise about two minutes.

    Raises:
        InputError: when ``processes`` is not between 1 and what the machine can run, or torch is missing.
    """
    require_torch()
    from executor.measure import measure_cpu

    return measure_cpu(processes, 20.0 if quick else 120.0)


def compare(estimate: Estimate, observation: Observation) -> Comparison:
    """Predicted beside measured, field by field."""
    from meshwright.validation.compare import compare as compare_fields

    return compare_fields(estimate, observation)


def require_torch() -> None:
    """Refuse politely where the ``run`` extra is not installed.

    Raises:
        InputError: when torch or transformers cannot be imported.
    """
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is not installed; install it with: pip install 'meshwright[run]'")
