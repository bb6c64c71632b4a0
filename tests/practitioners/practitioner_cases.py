"""Reports of practitioners, and the registry of what is checked of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CASES = Path(__file__).parents[2] / "benchmarks" / "data" / "practitioner_cases.jsonl"
Kind = Literal["LoRA", "8-bit", "MoE", "offload", "soft", "other vendor", "heterogeneous", "not a transformer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What is asserted of one case.

    ``leaves_out``: the parts of the case's own check that are not asserted, or asserted in another sense, each with
    its reason. ``fails_because``: the check fails, and why; it must then really fail.
    """

    run: Callable[[], None]
    leaves_out: str = ""
    fails_because: str = ""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a case is not checked at all."""

    kind: Kind
    reason: str


CHECKS: dict[str, Check] = {}


def case(
    name: str, *, part: str = "", leaves_out: str = "", fails_because: str = ""
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function as the check of the case ``name``, or of a part of it (``name/part`` in `CHECKS`)."""
    key = f"{name}/{part}" if part else name

    def register(function: Callable[[], None]) -> Callable[[], None]:
        if key in CHECKS:
            raise ValueError(f"case {key} is checked twice")
        CHECKS[key] = Check(run=function, leaves_out=leaves_out, fails_because=fails_because)
        return function

    return register


def checked_cases() -> set[str]:
    """Ids of the cases that have a check."""
    return {key.split("/")[0] for key in CHECKS}


def load_cases() -> dict[str, dict[str, Any]]:
    """All cases by id."""
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in rows}


EXCLUDED: dict[str, Exclusion] = {
    "mlm482-dp4pp2": Exclusion("soft", "sequence length and sharding of the optimizer are not stated"),
    "ds4527-est": Exclusion("offload", "parameters and optimizer state are on the host; offload is not modelled"),
    "ds912": Exclusion("offload", "host memory of ZeRO-2 and ZeRO-3 with offload; offload is not modelled"),
    "colossal6272": Exclusion("offload", "Gemini places parameters and optimizer state on the host; not modelled"),
    "mlm1000": Exclusion("soft", "batch and link are not stated, and the 20 TFLOP/s have no confirmed cause"),
    "mlm6429": Exclusion("MoE", "256 experts; experts are not modelled"),
    "moe-swift9403": Exclusion("MoE", "128 experts, LoRA, and Ascend devices; none of them is modelled"),
    "moe-verl3364": Exclusion("MoE", "experts, and a rollout engine of reinforcement learning beside training"),
    "piper32": Exclusion("MoE", "expert parallelism is not modelled"),
    "kohya1434": Exclusion("not a transformer", "SDXL is a convolutional U-Net; models are decoder-only transformers"),
    "axolotl1717": Exclusion("LoRA", "QLoRA over a frozen 4-bit base; adapters are not modelled"),
    "axolotl2217": Exclusion("LoRA", "LoRA over a frozen base; adapters are not modelled"),
    "xtuner88": Exclusion("soft", "QLoRA over a frozen 4-bit base; adapters are not modelled"),
    "hetero-ds4402": Exclusion("heterogeneous", "16 GB and 32 GB cards in one job; a cluster has equal devices"),
    "amd-mi250": Exclusion("other vendor", "no profile of AMD's accelerators, and neither model nor batch is stated"),
}
