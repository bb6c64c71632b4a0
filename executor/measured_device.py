"""Readings of one device -> its profile.

(1) GEMM: hardware_profiles.fit's curve through the products of the main precision. The peak is the catalogue's where
    the device is known. A CPU's is the best rate seen, and another precision's peak is the one that puts its products
    on the same curve; an unknown device's peaks are the curves' asymptotes
(2) memory: bandwidth is that of an addition (a known device's is the catalogue's); memory_fraction = bytes / seconds of
    a normalisation, gate and residual, forward and backward, over that bandwidth. A CPU computes and dispatches in
    turn, so there the seconds are without operations x launch
(3) attention_fraction = causal FLOP / seconds of the fused forward, over the peak
"""

from __future__ import annotations

import math
from typing import Any

from costmodel.specs import DeviceSpec, Precision
from executor.measured_draft import Draft, Finding
from hardware_profiles.fit import fit_gemm_curve, gemm_residual
from hardware_profiles.types import GemmCurve

_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp64", "bf16", "fp16")
_CUDA_HEAD_DIM = 128.0


def make_device(draft: Draft, processor: str) -> DeviceSpec:
    """Equations (1) to (3); what was not measured of a known device stays the catalogue's."""
    peaks, curve, sources = _products(draft)
    launch = _launch(draft)
    bandwidth, fraction, memory_sources = _memory(draft, launch)
    facts, known = draft.facts, draft.known
    changes: dict[str, Any] = {
        "peak_flops_per_second": peaks,
        "memory_bytes": facts["memory_bytes"] if draft.cuda else max(1, facts["memory_bytes"] // facts["local_size"]),
        "memory_bandwidth_bytes_per_second": bandwidth,
        "memory_fraction": fraction,
        "gemm": curve,
        "attention_fraction": _attention(draft, peaks[draft.main]),
        "launch_seconds": launch,
        # The fractions are those at the power limit that the device has now.
        "full_rate_watts_per_tflops": None,
    }
    if facts.get("power_limit_watts"):
        changes["power_limit_watts"] = facts["power_limit_watts"]
        sources["power_limit_watts"] = f"{draft.source}: nvidia-smi -q"
    sources |= memory_sources | {
        "memory_bytes": f"{draft.source}: {'the driver' if draft.cuda else 'free memory, shared'}",
        "attention_fraction": draft.source,
        "launch_seconds": draft.source,
    }
    if known is None:
        name = facts["name"]
        architecture = name if draft.cuda else processor
        identity = {"name": name, "kind": facts["kind"], "vendor": "local", "architecture": architecture}
        return DeviceSpec.model_validate({**identity, **changes, "sources": sources})
    kept = {path: text for path, text in known.sources.items() if path.partition(".")[0] not in sources}
    return DeviceSpec.model_validate({**known.model_dump(), **changes, "sources": {**kept, **sources}})


def _products(draft: Draft) -> tuple[dict[Precision, float], GemmCurve, dict[str, str]]:
    """Equation (1): peaks, the curve and their sources."""
    points = draft.products(draft.main)
    best = max(flops / seconds for flops, seconds in points)
    peak = draft.known.peak_flops_per_second[draft.main] if draft.known else best
    curve = fit_gemm_curve([(flops, seconds, peak) for flops, seconds in points])
    if draft.cuda and (draft.known is None or curve.max_fraction > 1):
        # A peak that was not the catalogue's is the asymptote; more than all of the catalogue's is its boost clock.
        peak = peak if draft.known else peak * curve.max_fraction
        curve = curve.model_copy(update={"max_fraction": 1.0})
    residual = gemm_residual(curve, [(flops, seconds, peak) for flops, seconds in points])
    finding = Finding(
        name=f"matrix products, {draft.main}",
        value=peak * curve.max_fraction,
        unit="FLOP/s",
        num_points=len(points),
        residual=residual,
        remark=f"{curve.max_fraction:.0%} of the peak for large ones, half of that at {curve.half_flops:.3g} FLOP each",
    )
    draft.findings.append(finding)
    peaks = dict(draft.known.peak_flops_per_second) if draft.known else {draft.main: peak}
    for precision in _PRECISIONS:
        if precision != draft.main and draft.products(precision):
            _other_precision(draft, precision, curve, peaks)
    sources = {"gemm": draft.quality(len(points), residual)}
    if draft.known is None:
        sources["peak_flops_per_second"] = f"{draft.source}: the best rate seen, others by their products on one curve"
    return peaks, curve, sources


def _other_precision(draft: Draft, precision: Precision, curve: GemmCurve, peaks: dict[Precision, float]) -> None:
    """The peak that puts its products on the curve; a known device keeps the catalogue's, and the difference is shown."""
    points = draft.products(precision)
    logs = [math.log((flops + curve.half_flops) / (curve.max_fraction * seconds)) for flops, seconds in points]
    peak = math.exp(sum(logs) / len(logs))
    residual = gemm_residual(curve, [(flops, seconds, peak) for flops, seconds in points])
    catalogue = peaks.get(precision) if draft.known else None
    remark = (
        ""
        if catalogue is None
        else f"by the curve of {draft.main} the catalogue's peak gives {peak / catalogue:.2f} of it"
    )
    if draft.known is None:
        peaks[precision] = peak
    draft.findings.append(
        Finding(
            name=f"matrix products, {precision}",
            value=peak * curve.max_fraction,
            unit="FLOP/s",
            num_points=len(points),
            residual=residual if len(points) > 1 else None,
            remark=remark,
        )
    )


def _launch(draft: Draft) -> float:
    _, dispatch = draft.readings["dispatch"][0]
    launch = draft.readings["launch"][0][1] if draft.cuda else dispatch
    draft.findings.append(Finding(name="launch of one operation", value=launch, unit="s"))
    if draft.cuda:
        remark = "dispatch through autograd, averaged over a training step"
        draft.findings.append(Finding(name="eager operation", value=dispatch, unit="s", remark=remark))
    return launch


def _memory(draft: Draft, launch: float) -> tuple[float, float, dict[str, str]]:
    """Equation (2): bandwidth, fraction, sources."""
    (stream_bytes,), stream_seconds = draft.readings["stream"][0]
    (moved_bytes, operations), seconds = draft.readings["elementwise"][0]
    stream = stream_bytes / stream_seconds
    bandwidth = draft.known.memory_bandwidth_bytes_per_second if draft.known else stream
    moving = seconds if draft.cuda else max(seconds - operations * launch, seconds / 10)
    fraction = moved_bytes / moving / bandwidth
    fraction = min(1.0, fraction) if draft.cuda else fraction
    remark = f"an addition; {stream / bandwidth:.0%} of the nominal rate" if draft.known else "an addition"
    draft.findings.append(Finding(name="memory bandwidth", value=stream, unit="B/s", remark=remark))
    remark = "normalisation, gate and residual, forward and backward"
    draft.findings.append(
        Finding(name="memory-bound operations", value=moved_bytes / moving, unit="B/s", remark=remark)
    )
    sources = {"memory_fraction": draft.source}
    return (
        bandwidth,
        fraction,
        sources if draft.known else sources | {"memory_bandwidth_bytes_per_second": draft.source},
    )


def _attention(draft: Draft, peak: float) -> float:
    """Equation (3): the fraction at the usual head dimension and the longest sequence; the others are shown."""
    fractions = {
        (sizes[1], sizes[2]): sizes[0] / seconds / peak for sizes, seconds in draft.readings.get("attention", ())
    }
    for (head_dim, length), fraction in fractions.items():
        draft.findings.append(
            Finding(
                name=f"fused attention, head dimension {head_dim:.0f}",
                value=fraction * peak,
                unit="FLOP/s",
                remark=f"{fraction:.0%} of the peak, forward, {length:.0f} tokens, causal half",
            )
        )
    usual = {key: value for key, value in fractions.items() if not draft.cuda or key[0] == _CUDA_HEAD_DIM} or fractions
    # A CPU's first one has the sizes of the models that it trains; a GPU's longest sequence shows the kernel itself.
    chosen = max(usual, key=lambda key: key[1]) if draft.cuda else next(iter(usual))
    return min(1.0, usual[chosen]) if draft.cuda else usual[chosen]
