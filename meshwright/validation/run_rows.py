"""Measured runs, one a line -> checked rows, and what is wrong with the lines that are none.

The format is that of ``benchmarks/data/published_runs`` (its README lists the fields). Of a row only ``id``, ``model``,
``hardware``, ``parallel`` and ``measured`` must be there; a field that is unknown to this module is ignored. In a CSV
file the same fields are columns with dotted names (``parallel.tp``); an empty cell is an absent field.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from costmodel.specs import InputError
from hardware_profiles.errors import explain_validation_error
from hardware_profiles.files import read_at_most
from hardware_profiles.json_text import json_kind

_MAX_SIZE = 10**6
_MAX_SEQUENCE = 10**7
MAX_RUNS_BYTES = 2**28
_MAX_SHOWN = 200
_PARTS = ("model", "hardware", "parallel", "measured")
_TEXTS = ("id", "name", "gpu", "dataset", "source", "runtime")
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
    flash_attention: bool | str | None = None
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
    """What was measured; ``peak_memory_gb`` in GiB."""

    step_time_s: Amount | None = None
    tokens_per_s_per_gpu: Amount | None = None
    peak_memory_gb: Amount | None = None
    oom: bool | None = None
    error: str | None = None
    extra: MeasuredExtra | None = None


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


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: its row, or the reason why it is none. ``where`` is ``file:line``."""

    where: str
    row: RunRow | None
    reason: str = ""


def read_runs(paths: Sequence[str | Path]) -> Iterator[Line]:
    """Every line of every file that is not blank, in order.

    Args:
        paths: JSON Lines files, and CSV files by their suffix. A row without ``dataset`` gets the file's name without its
            suffix.

    Raises:
        InputError: when a file cannot be read, or a CSV file has no ``id`` column.
    """
    for path in map(Path, paths):
        try:
            content = read_at_most(path, MAX_RUNS_BYTES)
        except OSError as error:
            raise InputError(f"cannot read the runs file {path}: {error.strerror}") from error
        if len(content) > MAX_RUNS_BYTES:
            raise InputError(
                f"the runs file {path} holds more than {MAX_RUNS_BYTES:,} bytes; split it into smaller ones"
            )
        read = _read_csv if path.suffix.casefold() == ".csv" else _read_json_lines
        yield from read(content, path)


def _read_json_lines(content: bytes, path: Path) -> Iterator[Line]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield _read_json(line, f"{path.name}:{number}", path.stem)


def _read_json(content: bytes, where: str, dataset: str) -> Line:
    try:
        found = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        return Line(where, None, "the line is not UTF-8 text")
    except (ValueError, RecursionError) as error:
        return Line(where, None, f"the line is not JSON: {error}"[:_MAX_SHOWN])
    if not isinstance(found, dict):
        return Line(where, None, f"found {json_kind(found)}; needed a JSON object with the fields of a run")
    return _check(found, where, dataset)


def _read_csv(content: bytes, path: Path) -> Iterator[Line]:
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        columns = reader.fieldnames or ()
        if "id" not in columns:
            raise InputError(
                f"{path}: found the columns {', '.join(columns) or 'none'}; needed 'id', 'model.hidden', ..."
            )
        for cells in reader:
            yield _check(_nested(cells), f"{path.name}:{reader.line_num}", path.stem)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text") from error
    except csv.Error as error:
        yield Line(f"{path.name}:{reader.line_num}", None, f"the line is not CSV: {error}")


def _nested(cells: dict[str | Any, str | Any]) -> dict[str, Any]:
    """``{"parallel.tp": "2"}`` -> ``{"parallel": {"tp": 2}}``; a cell that is no JSON value is text."""
    found: dict[str, Any] = {part: {} for part in _PARTS}
    for column, cell in cells.items():
        if not isinstance(column, str) or not isinstance(cell, str) or not cell.strip():
            continue
        *parents, name = column.strip().split(".")
        place = found
        for parent in parents:
            inner = place.setdefault(parent, {})
            place = inner if isinstance(inner, dict) else place
        place[name] = cell.strip() if name in _TEXTS else _value(cell.strip())
    return found


def _value(cell: str) -> Any:
    try:
        return json.loads(cell.lower() if cell.casefold() in ("true", "false") else cell)
    except ValueError:
        return cell


def _check(found: dict[str, Any], where: str, dataset: str) -> Line:
    try:
        row = RunRow.model_validate(found)
    except ValidationError as error:
        return Line(where, None, explain_validation_error(error, "run", RunRow))
    return Line(where, row if row.dataset else row.model_copy(update={"dataset": dataset}))


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
    measured = row.measured
    if measured.step_time_s is not None:
        return measured.step_time_s
    tokens = tokens_per_step(row)
    if measured.tokens_per_s_per_gpu is not None and tokens is not None and row.hardware.n_gpus is not None:
        return tokens / (measured.tokens_per_s_per_gpu * row.hardware.n_gpus)
    return None if measured.extra is None else measured.extra.step_time_s_derived


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
