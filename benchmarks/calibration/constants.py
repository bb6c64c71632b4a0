"""Free constants of the cost model: where they are written, and how they act on a run.

A free constant is a YAML entry with a value, a prior and bounds: of a family of accelerators (hardware_profiles/families,
and the efficiency of the link and the network that its published runs used, where no rate was measured), of a runtime
(costmodel/runtimes) or of all stacks (costmodel/constants/shared.yaml). The prior's standard deviation is a sixth of the
bounds' width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from costmodel.specs import ClusterSpec, RuntimeProfile

ROOT = Path(__file__).parents[2]
FAMILIES = ROOT / "hardware_profiles" / "families"
RUNTIMES = ROOT / "costmodel" / "runtimes"
SHARED = ROOT / "costmodel" / "constants" / "shared.yaml"
NETWORKS = {"ampere": "ib-hdr-200g", "hopper": "ib-ndr-400g", "turing": "eth-50g", "volta": "ib-edr-100g"}
NODES = {"turing": "g4dn.12xlarge"}
UNKNOWN = "unknown"
_BOUNDS_IN_DEVIATIONS = 6.0

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeConstant:
    """One number to fit. ``kind`` is family, runtime or shared; ``owner`` the family, the runtime or empty."""

    kind: str
    owner: str
    name: str
    path: Path
    value: float
    prior: float
    low: float
    high: float

    @property
    def deviation(self) -> float:
        """Standard deviation of the prior."""
        return (self.high - self.low) / _BOUNDS_IN_DEVIATIONS


def read_free_constants() -> list[FreeConstant]:
    """Every free constant of the repository, in a stable order."""
    found: list[FreeConstant] = []
    for path in sorted(FAMILIES.glob("*.yaml")):
        found += _read(path, "family", path.stem)
        for folder, names in (("networks", NETWORKS), ("nodes", NODES)):
            if path.stem in names:
                found += _read(FAMILIES.parent / folder / f"{names[path.stem]}.yaml", "family", path.stem)
    for path in sorted(RUNTIMES.glob("*.yaml")):
        found += _read(path, "runtime", path.stem)
    return found + _read(SHARED, "shared", "")


def _read(path: Path, kind: str, owner: str) -> list[FreeConstant]:
    entries = _flat(yaml.safe_load(path.read_text(encoding="utf-8")), ())
    return [
        FreeConstant(
            kind=kind,
            owner=owner,
            name=f"{path.parent.name}.{name}"
            if path.parent.name in ("networks", "nodes")
            else name.removeprefix("constants."),
            path=path,
            value=float(entry["value"]),
            prior=float(entry["prior"]),
            low=float(entry["bounds"][0]),
            high=float(entry["bounds"][1]),
        )
        for name, entry in entries
    ]


def _flat(content: Any, keys: tuple[str, ...]) -> Iterable[tuple[str, dict[str, Any]]]:
    if not isinstance(content, dict):
        return
    if "prior" in content:
        yield ".".join(keys), content
        return
    for key, value in content.items():
        yield from _flat(value, (*keys, str(key)))


def concerns(constant: FreeConstant, family: str, cluster: ClusterSpec, runtime: RuntimeProfile) -> bool:
    """Whether a run's step time can depend on a constant."""
    if constant.kind == "shared":
        return constant.name not in {"power_exponent"} or cluster.device.power_limit_watts is not None
    if constant.kind == "runtime":
        return constant.owner == runtime.name
    if constant.owner != family:
        return False
    if constant.name == "networks.link.efficiency":
        return len(cluster.levels) > 1 and cluster.levels[1].link.measured_bytes_per_second is None
    if constant.name == "nodes.link.efficiency":
        return cluster.levels[0].link.measured_bytes_per_second is None
    return True


def with_constants(
    cluster: ClusterSpec, runtime: RuntimeProfile, constants: Sequence[FreeConstant], values: Vector
) -> tuple[ClusterSpec, RuntimeProfile]:
    """A run's cluster and runtime under other values of some constants, which must concern it."""
    stack = dict(runtime.constants)
    device: dict[str, Any] = {}
    curve: dict[str, float] = {}
    levels = list(cluster.levels)
    for constant, number in zip(constants, values, strict=True):
        value = float(number)
        if constant.kind != "family":
            stack[constant.name] = stack[constant.name].model_copy(update={"value": value})
        elif constant.name.startswith("gemm."):
            curve[constant.name.removeprefix("gemm.")] = value
        elif constant.name == "nodes.link.efficiency":
            levels[0] = _with_efficiency(levels[0], value)
        elif constant.name == "networks.link.efficiency":
            levels[1:] = [_with_efficiency(level, value) for level in levels[1:]]
        else:
            device[constant.name] = value
    if curve:
        device["gemm"] = cluster.device.gemm.model_copy(update=curve)
    update = {"device": cluster.device.model_copy(update=device), "levels": tuple(levels)}
    return cluster.model_copy(update=update), runtime.model_copy(update={"constants": stack})


def _with_efficiency(level: Any, value: float) -> Any:
    return level.model_copy(update={"link": level.link.model_copy(update={"efficiency": value})})


def middle_of_runtimes(constants: Sequence[FreeConstant], values: Vector, *, without: str = "") -> dict[str, float]:
    """What runtime ``unknown`` states: the median of each constant over the fitted runtimes but one."""
    by_name: dict[str, list[float]] = {}
    for constant, value in zip(constants, values, strict=True):
        if constant.kind == "runtime" and constant.owner not in (UNKNOWN, without):
            by_name.setdefault(constant.name, []).append(float(value))
    return {name: float(np.median(found)) for name, found in by_name.items()}


def write_constants(constants: Sequence[FreeConstant], values: Vector, uncertainty: Vector) -> None:
    """Put the values into the files they came from, nothing else of which changes."""
    for path in {constant.path for constant in constants}:
        text = path.read_text(encoding="utf-8")
        for constant, value, error in zip(constants, values, uncertainty, strict=True):
            if constant.path == path:
                text = _replaced(text, replace(constant, value=float(value)), float(error))
        path.write_text(text, encoding="utf-8")


def _replaced(text: str, constant: FreeConstant, uncertainty: float) -> str:
    name = re.escape(constant.name.rsplit(".", 1)[-1])
    pattern = re.compile(
        rf"^(\s*{name}: \{{value: )[^,]+(, prior: [^,]+, bounds: \[[^\]]*\])(?:, uncertainty: [^,]+)?,", re.M
    )
    shown = f"{constant.value / 1e9:.3f}e+9" if constant.value > 1e6 else f"{constant.value:.4g}"
    changed, count = pattern.subn(rf"\g<1>{shown}\g<2>, uncertainty: {uncertainty:.2g},", text)
    if count != 1:
        raise ValueError(f"{constant.path}: {count} entries of {constant.name}")
    return changed
