"""One measured run: its checked fields, and the figures that follow from them.

The format is that of ``benchmarks/data/published_runs`` (its README lists the fields). Of a row only ``id``, ``model``,
``hardware``, ``parallel`` and ``measured`` must be there; a field that is unknown to this module is ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

_MAX_SIZE = 10**6
_MAX_SEQUENCE = 10**7
_MIB, _GIB = 2**20, 2**30
Size = Annotated[int, Field(gt=0, le=_MAX_SIZE)]
# Wider than any machine or run, and narrow enough that no ratio of two overflows.
Amount = Annotated[float, Field(ge=1e-9, le=1e15)]


class _Part(BaseModel):
    """Part of a row: absent fields are None, unknown ones are ignored, NaN and infinities are refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class ModelFields(_Part):
    """The model by its dimensions; ``moe`` is None for a dense one."""

    name: str = ""
    n_layers: Size | None = None
    hidden: Size | None = None
    ffn_hidden: Size | None = None
    n_heads: Size | None = None
    n_kv_heads: Size | None = None
    vocab: Annotated[int, Field(gt=0, le=_MAX_SEQUENCE)] | None = None
    seq_len: Annotated[int, Field(gt=0, le=_MAX_SEQUENCE)] | None = None
    gated_mlp: bool | None = None
    tied_embeddings: bool | None = None
    moe: dict[str, Any] | None = None


class HardwareFields(_Part):
    """The devices; link rates in GB/s, one direction, per device; the measured bus bandwidth in GB/s per node."""

    gpu: str
    gpu_mem_gb: Amount | None = None
    n_gpus: Size | None = None
    gpus_per_node: Size | None = None
    intra_node_gbps_per_gpu: Amount | None = None
    inter_node_gbps_per_gpu: Amount | None = None
    inter_node_measured_busbw_gbps_per_node: Amount | None = None


def _version_as_text(value: Any) -> Any:
    """Kernels are often told by their version: 2."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class ParallelFields(_Part):
    """The layout, in the source's own words."""

    tp: Size | None = None
    pp: Size | None = None
    dp: Size | None = None
    cp: Size | None = None
    ep: Size | None = None
    vpp: Size | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    fsdp: str | None = None
    sequence_parallel: bool | None = None
    schedule: str | None = None
    micro_batch: Size | None = None
    global_batch: Size | None = None
    grad_accum: Amount | None = None
    recompute: str | None = None
    offload: str | None = None
    dtype: str | None = None
    flash_attention: Annotated[bool | str | None, BeforeValidator(_version_as_text)] = None
    compile: bool | None = None
    optimizer: str | None = None
    extra: dict[str, Any] | None = None


class MeasuredExtra(_Part):
    """Further figures that some sources print; a step time may be derived from TFLOP/s with the source's formula."""

    step_time_s_derived: Amount | None = None
    peak_allocated_mib: Amount | None = Field(default=None, alias="peak_allocated_MiB")
    peak_reserved_mib: Amount | None = Field(default=None, alias="peak_reserved_MiB")
    peak_reserved_gib: Amount | None = None


class MeasuredFields(_Part):
    """What was measured; ``peak_memory_gb`` in GiB. Of ``samples_per_s``, TFLOP/s and utilisations only the presence counts."""

    step_time_s: Amount | None = None
    tokens_per_s_per_gpu: Amount | None = None
    peak_memory_gb: Amount | None = None
    samples_per_s: Any = None
    tflops_per_gpu: Any = None
    hardware_tflops_per_gpu: Any = None
    mfu: Any = None
    hfu: Any = None
    oom: bool | None = None
    error: str | None = None
    extra: MeasuredExtra | None = None


def _as_text(value: Any) -> str:
    """Remarks are shown and never used: whatever a file holds there is no reason to refuse its line."""
    return "" if value is None else str(value)


def _as_texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_as_text, value)) if isinstance(value, list) else tuple(filter(None, [_as_text(value)]))


class RunRow(_Part):
    """One measured run."""

    id: Annotated[str, Field(min_length=1)]
    dataset: str = ""
    source: str = ""
    runtime: str | None = None
    year: PositiveInt | None = None
    model: ModelFields
    hardware: HardwareFields
    parallel: ParallelFields
    measured: MeasuredFields
    doubtful: bool = False
    config_complete: bool = True
    rank_group: str | None = None
    flags: Annotated[tuple[str, ...], BeforeValidator(_as_texts)] = ()
    notes: Annotated[str, BeforeValidator(_as_text)] = ""


def tokens_per_step(row: RunRow) -> int | None:
    """Tokens of one optimizer step, or None where the row does not say."""
    batch = global_batch_size(row)
    return None if batch is None or row.model.seq_len is None else batch * row.model.seq_len


def global_batch_size(row: RunRow) -> int | None:
    """Sequences per step: as stated, or micro batch x accumulation x data-parallel size; `is_sane_batch` bounds it."""
    parallel = row.parallel
    if parallel.global_batch is not None:
        return parallel.global_batch
    if parallel.micro_batch is None or parallel.grad_accum is None or parallel.dp is None:
        return None
    return min(_MAX_SIZE + 1, round(parallel.micro_batch * parallel.grad_accum * parallel.dp))


def is_sane_batch(batch: int) -> bool:
    """Whether a batch is one that somebody could train with: at least one sequence and at most a million."""
    return 1 <= batch <= _MAX_SIZE


def step_time_seconds(row: RunRow) -> float | None:
    """Measured seconds of one step: as stated, from tokens per second, or as derived from the source's TFLOP/s."""
    timed = _timed_seconds(row)
    if timed is not None or row.measured.extra is None:
        return timed
    return row.measured.extra.step_time_s_derived


def was_measured(row: RunRow) -> bool:
    """Whether the row holds any figure of a run: some rows of papers are requirements that were computed, not runs."""
    figures = row.measured.model_dump(exclude={"oom", "error"}, exclude_none=True)
    return any(figures.values())


def is_derived(row: RunRow) -> bool:
    """Whether the step time was worked out from TFLOP/s with the source's formula, for want of a measured one."""
    return _timed_seconds(row) is None and step_time_seconds(row) is not None


def _timed_seconds(row: RunRow) -> float | None:
    measured, tokens = row.measured, tokens_per_step(row)
    if measured.step_time_s is not None:
        return measured.step_time_s
    if measured.tokens_per_s_per_gpu is None or tokens is None or row.hardware.n_gpus is None:
        return None
    return tokens / (measured.tokens_per_s_per_gpu * row.hardware.n_gpus)


def tokens_per_second_per_device(row: RunRow) -> float | None:
    """Measured throughput: as stated, or from the step time."""
    if row.measured.tokens_per_s_per_gpu is not None:
        return row.measured.tokens_per_s_per_gpu
    seconds, tokens, devices = step_time_seconds(row), tokens_per_step(row), row.hardware.n_gpus
    return None if seconds is None or tokens is None or devices is None else tokens / seconds / devices


def extra_bytes(row: RunRow, kind: str) -> int | None:
    """Peak bytes ``allocated`` or ``reserved`` that ``measured.extra`` prints."""
    extra = row.measured.extra
    if extra is None:
        return None
    if kind == "allocated":
        return None if extra.peak_allocated_mib is None else round(extra.peak_allocated_mib * _MIB)
    if extra.peak_reserved_mib is not None:
        return round(extra.peak_reserved_mib * _MIB)
    return None if extra.peak_reserved_gib is None else round(extra.peak_reserved_gib * _GIB)


def printed_bytes(row: RunRow) -> int | None:
    """``measured.peak_memory_gb`` in bytes; what kind of memory it is depends on the source."""
    return None if row.measured.peak_memory_gb is None else round(row.measured.peak_memory_gb * _GIB)


def describe(row: RunRow) -> str:
    """Model, devices and layout in one line, as far as the row states them: ``GPT 22B, 8 x A100-80GB, tp 8, micro 4``."""
    parallel, devices = row.parallel, row.hardware.n_gpus
    sizes = [(name, getattr(parallel, name)) for name in ("tp", "pp", "vpp", "cp", "dp")]
    parts = [
        row.model.name,
        f"{f'{devices} x ' if devices else ''}{row.hardware.gpu}",
        *(f"{name} {size}" for name, size in sizes if (size or 1) > 1),
        f"ZeRO-{parallel.zero_stage}" if parallel.zero_stage else "",
        f"micro {parallel.micro_batch}" if parallel.micro_batch else "",
        f"seq {row.model.seq_len}" if row.model.seq_len else "",
        f"recompute {parallel.recompute}" if parallel.recompute not in (None, "none") else "",
        parallel.dtype or "",
    ]
    return ", ".join(part for part in parts if part)
