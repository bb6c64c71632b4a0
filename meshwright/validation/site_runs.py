"""Measured runs to calibrate with: rows of runs files, and observations of `meshwright run` beside their plans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from costmodel.specs import ClusterSpec, InputError, Observation, Plan, RuntimeProfile
from hardware_profiles.errors import explain_validation_error
from hardware_profiles.files import read_at_most
from meshwright.files import MAX_DOCUMENT_BYTES, YAML_SUFFIXES, read_document, to_path
from meshwright.inputs import resolve_runtime
from meshwright.plan_files import load_plan
from meshwright.validation.adapters.errors import UnsupportedRunError
from meshwright.validation.adapters.frameworks import PRINTED_MEMORY, UNKNOWN, framework_of
from meshwright.validation.adapters.layout import adapt
from meshwright.validation.results import BadLine
from meshwright.validation.run_files import Line, read_runs
from meshwright.validation.run_rows import RunRow, extra_bytes, printed_bytes, step_time_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run: its plan, the profile that predicts it, seconds of a step and, where measured, the allocated peak."""

    id: str
    where: str
    plan: Plan
    runtime: RuntimeProfile
    seconds: float
    allocated_bytes: float | None

    @property
    def stack(self) -> tuple[str, str]:
        """What a site is made for: runtime and device."""
        return self.runtime.name, self.plan.cluster.device.name


@dataclass(frozen=True, slots=True)
class _LeftOut:
    where: str
    reason: str


def gather_runs(
    paths: Sequence[str | Path], *, runtime: str | None = None, cluster: ClusterSpec | None = None
) -> tuple[list[MeasuredRun], list[BadLine]]:
    """The runs of one runtime on one device, and every line left out with its reason.

    Args:
        paths: runs files (JSON Lines, CSV), and JSON files of plans and of observations of these plans, in any order.
        runtime: the runtime of the site; None takes the one of most runs. Runs that name no known framework count as its.
        cluster: where the runs were made, with measured rates; None takes the hardware that each run states.

    Raises:
        InputError: when a file cannot be read, no run is usable, or two stacks have equally many runs.
    """
    found: list[MeasuredRun] = []
    left: list[BadLine] = []
    rows, documents, broken = _split(paths)
    for each in (*_from_rows(rows, runtime), *_from_documents(documents), *broken):
        if isinstance(each, MeasuredRun):
            found.append(each)
        else:
            left.append(BadLine(where=each.where, reason=each.reason))
    chosen, others = _one_stack(found, runtime, cluster)
    left += others
    if cluster is not None:
        chosen, others = _on_cluster(chosen, cluster)
        left += others
    if not chosen:
        first = f"; first: {left[0].where}: {left[0].reason}" if left else ""
        raise InputError(f"no usable run to calibrate with ({len(left)} left out{first}); needed 3 to 10 measured runs")
    return chosen, left


def _split(paths: Sequence[str | Path]) -> tuple[list[Path], list[tuple[Path, dict[str, Any]]], list[_LeftOut]]:
    """Runs files, documents (plans, recommendations, observations) with their content, and those that are broken."""
    rows: list[Path] = []
    documents: list[tuple[Path, dict[str, Any]]] = []
    broken: list[_LeftOut] = []
    for given in paths:
        path = to_path(given, what="runs file")
        try:
            content = _document(path)
        except InputError as error:
            broken.append(_LeftOut(str(path), str(error)))
            continue
        if content is None:
            rows.append(path)
        else:
            documents.append((path, content))
    return rows, documents, broken


def _document(path: Path) -> dict[str, Any] | None:
    """The content of a plan or an observation; None where the file holds runs, or cannot be read.

    Raises:
        InputError: when a YAML file is broken, since runs files are none.
    """
    if path.suffix in YAML_SUFFIXES:
        return read_document(path, what="plan or observation")
    if path.suffix != ".json":
        return None
    try:
        content = json.loads(read_at_most(path, MAX_DOCUMENT_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None
    is_document = isinstance(content, dict) and not ("hardware" in content and "measured" in content)
    return content if is_document else None


def _from_rows(paths: Sequence[Path], runtime: str | None) -> Iterator[MeasuredRun | _LeftOut]:
    for line in read_runs(paths):
        yield _LeftOut(line.where, line.reason) if line.row is None else _from_row(line, line.row, runtime)


def _from_row(line: Line, row: RunRow, runtime: str | None) -> MeasuredRun | _LeftOut:
    if runtime is not None and framework_of(row) == UNKNOWN:
        row = row.model_copy(update={"runtime": runtime})
    if row.measured.oom and not row.measured.error:
        return _LeftOut(line.where, "the run ended out of memory, so it has no step time")
    seconds = step_time_seconds(row)
    if seconds is None:
        return _LeftOut(line.where, "the run has no measured step time (measured.step_time_s or tokens_per_s_per_gpu)")
    if row.doubtful:
        return _LeftOut(line.where, "the run is marked doubtful")
    try:
        run = adapt(row)
    except UnsupportedRunError as error:
        return _LeftOut(line.where, str(error))
    return MeasuredRun(
        id=row.id,
        where=line.where,
        plan=run.plan,
        runtime=run.runtime,
        seconds=seconds,
        allocated_bytes=_allocated(row, run.plan, run.runtime),
    )


def _allocated(row: RunRow, plan: Plan, runtime: RuntimeProfile) -> float | None:
    """The measured peak as tensor bytes: reserved and device peaks less what the profile says lies on top."""
    kind, printed = PRINTED_MEMORY.get(row.dataset, "allocated"), printed_bytes(row)
    if (exact := extra_bytes(row, "allocated")) is not None:
        return float(exact)
    reserved = extra_bytes(row, "reserved")
    kind, peak = (kind, printed) if reserved is None else ("reserved", reserved)
    if peak is None or kind == "allocated" or plan.cluster.device.kind == "cpu":
        return None if peak is None else float(peak)
    context = runtime.context_bytes if kind == "device" else 0
    return (peak - context) / runtime.reserved_over_allocated if peak > context else None


def _from_documents(documents: Sequence[tuple[Path, dict[str, Any]]]) -> Iterator[MeasuredRun | _LeftOut]:
    """Observations, each beside the plan of its hash."""
    plans: dict[str, Plan] = {}
    observations: list[tuple[Path, dict[str, Any]]] = []
    for path, content in documents:
        if "best" in content or "schema_version" in content:
            try:
                plan = load_plan(path)
            except InputError as error:
                yield _LeftOut(str(path), str(error))
                continue
            plans[plan.plan_hash] = plan.model_copy(update={"site": None})
        else:
            observations.append((path, content))
    used: set[str] = set()
    for path, content in observations:
        try:
            observation = Observation.model_validate(content)
        except ValidationError as error:
            yield _LeftOut(str(path), explain_validation_error(error, "observation", Observation))
            continue
        used.add(observation.plan_hash or "")
        yield _observed(str(path), observation, plans)
    for plan_hash in set(plans) - used:
        yield _LeftOut(f"plan {plan_hash[:12]}", "no observation of this plan is given")


def _observed(where: str, observation: Observation, plans: dict[str, Plan]) -> MeasuredRun | _LeftOut:
    plan = plans.get(observation.plan_hash or "")
    if plan is None:
        shown = (observation.plan_hash or "none")[:12]
        return _LeftOut(where, f"the plan that it observed (plan_hash {shown}) is not given; name its plan file too")
    if not observation.step_time_seconds:
        return _LeftOut(where, "the observation has no step time; run at least 3 steps")
    return MeasuredRun(
        id=plan.plan_hash[:12],
        where=where,
        plan=plan,
        runtime=resolve_runtime(plan.runtime.name),
        seconds=observation.step_time_seconds,
        allocated_bytes=max((float(peak.tensor_bytes) for peak in observation.peaks), default=0.0) or None,
    )


def _one_stack(
    runs: Sequence[MeasuredRun], runtime: str | None, cluster: ClusterSpec | None
) -> tuple[list[MeasuredRun], list[BadLine]]:
    """The runs of one runtime on one device: the stated ones, else those of the stack with most runs."""
    device = None if cluster is None else cluster.device.name
    counts = Counter(run.stack for run in runs if runtime in (None, run.stack[0]) and device in (None, run.stack[1]))
    ranked = counts.most_common(2)
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        told = ", ".join(f"{count} of {name} on {device}" for (name, device), count in counts.most_common())
        raise InputError(f"the runs are of several stacks ({told}); choose one with --runtime and --cluster")
    stack = ranked[0][0] if ranked else (runtime or "another runtime", device or "another device")
    chosen = [run for run in runs if run.stack == stack]
    others = [
        BadLine(where=run.where, reason=f"{' on '.join(run.stack)}; the site is of {' on '.join(stack)}")
        for run in runs
        if run.stack != stack
    ]
    return chosen, others


def _on_cluster(runs: Sequence[MeasuredRun], cluster: ClusterSpec) -> tuple[list[MeasuredRun], list[BadLine]]:
    """The runs on a stated cluster, with its rates in place of those that their rows say."""
    chosen, others = [], []
    for run in runs:
        used, own = run.plan.num_devices_used, run.plan.cluster
        if used > cluster.num_devices:
            others.append(BadLine(where=run.where, reason=f"the run used {used} devices; {cluster.name} has fewer"))
        elif min(own.devices_per_node, used) != min(cluster.devices_per_node, used):
            reason = f"the run had {own.devices_per_node} devices a node; {cluster.name} has {cluster.devices_per_node}"
            others.append(BadLine(where=run.where, reason=reason))
        else:
            chosen.append(replace(run, plan=run.plan.model_copy(update={"cluster": cluster})))
    return chosen, others
