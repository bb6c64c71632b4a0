"""Sections of the report about data that a fit had not seen, and about other predictors."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from meshwright.validation.baseline import factors_by_device, left_out_outcomes, naive_outcomes
from meshwright.validation.calibration_record import CalibrationRecord, Constant, FoldErrors
from meshwright.validation.markdown import percent, table
from meshwright.validation.metrics import errors_of
from meshwright.validation.peers import DATASETS, PEERS, PeerFigures
from meshwright.validation.results import Replay, ReplayErrors

_SIGNED = "+.1%"
ALL = "all"
"""The name under which a record keeps the errors of all datasets together."""


def unseen_section(record: CalibrationRecord | None) -> str:
    """Errors of datasets and rows that were left out of the fit, the constants, and where the intervals come from."""
    title = "## Runs that the constants had not seen"
    if record is None:
        return f"{title}\n\nNo record of a calibration was given (`--calibration FILE`); all figures above are on the runs given."
    parts = [
        title,
        f"From the calibration of {record.date}. Left out: the constants are fitted to all other datasets; a framework that no "
        "other dataset uses is predicted by the profile `unknown`. Five-fold: a fifth of every dataset's rows is left out at a "
        "time. `known`: most of the dataset's rows are of runtimes that other datasets have too.",
        _fold_table(record),
    ]
    if record.constants:
        parts += ["### Fitted constants", _constants_table(record.constants)]
    if record.bands:
        parts += ["### Where the intervals come from", _mappings_table(record.bands)]
    return "\n\n".join(parts)


def _fold_table(record: CalibrationRecord) -> str:
    parts = (record.in_sample, record.leave_one_dataset_out, record.five_fold)
    names = sorted({name for part in parts for name in part}, key=lambda name: (name == ALL, name))
    body = []
    for name in names:
        seen, out, fold = (part.get(name, FoldErrors(rows=0)) for part in parts)
        known = "" if out.runtime_known is None else "yes" if out.runtime_known else "no"
        cells = [f"{max(seen.rows, out.rows, fold.rows):,}", percent(seen.median), percent(seen.mean), known]
        cells += [percent(out.median), percent(out.mean), percent(out.bias, _SIGNED)]
        body.append((f"**{name}**" if name == ALL else name, *cells, percent(fold.median), percent(fold.mean)))
    header = ("dataset", "rows", "median, in sample", "mean", "known", "median, left out", "mean", "bias")
    return table((*header, "median, five-fold", "mean"), body)


def _constants_table(constants: Sequence[Constant]) -> str:
    body = [
        (each.name, each.owner or "all", *map(_number, (each.value, each.uncertainty, each.prior, each.low, each.high)))
        for each in sorted(constants, key=lambda constant: (constant.owner or "", constant.name))
    ]
    return table(("constant", "of", "value", "uncertainty", "prior", "from", "to"), body, left=("of",))


def _mappings_table(lines: Sequence[dict[str, JsonValue]]) -> str:
    columns = list(dict.fromkeys(name for line in lines for name in line))
    return table(columns, [[_shown(line.get(name)) for name in columns] for line in lines])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _shown(value: JsonValue) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def peers_section(answer: Replay) -> str:
    """Folklore on exactly the rows above, and other predictors on the same published runs."""
    rows = answer.rows
    with_factors = naive_outcomes(rows, factors_by_device(rows))
    ours = answer.summary.pooled
    body = [
        _computed("meshwright", ours, seen="see above"),
        _computed("6ND at 40% of peak", errors_of(naive_outcomes(rows)), seen="no"),
        _computed("... with one factor per accelerator, fitted here", errors_of(with_factors), seen="yes"),
        _computed("... and fitted to the other datasets", errors_of(left_out_outcomes(rows)), seen="no"),
    ]
    header = (
        "predictor",
        "rows",
        "seen by its fit",
        "median",
        "mean",
        "within 20%",
        "pairs ordered right",
        "out of memory told",
    )
    parts = [
        "## Beside folklore and other predictors",
        "6ND: six FLOP per parameter and token at 40% of the accelerator's peak (the 16-bit one). It knows no layout, so all "
        "runs of a rank group tie and count half. On exactly the same rows:",
        table(header, body, left=("seen by its fit",)),
    ]
    if any(row.dataset in DATASETS for row in rows):
        peers = (
            "predictor at commit",
            "runs",
            "seen by its fit",
            "median",
            "mean",
            "pairs ordered right",
            "out of memory told",
        )
        parts += [
            "Other predictors on the published runs of `benchmarks/data/published_runs` that they can express; each was run "
            "once at the commit named, and its figures are not computed again here. The rows that each can express differ, so "
            "only large differences mean something:",
            table((*peers, "peak memory"), [_peer(each) for each in PEERS], left=("runs", "seen by its fit")),
        ]
    return "\n\n".join(parts)


def _computed(name: str, errors: ReplayErrors, *, seen: str) -> tuple[str, ...]:
    return (
        name,
        f"{errors.rows:,}",
        seen,
        percent(errors.median_absolute_error),
        percent(errors.mean_absolute_error),
        percent(errors.within_20_percent, ".0%"),
        percent(errors.pair_order, ".0%"),
        percent(errors.oom_recall, ".0%"),
    )


def _peer(peer: PeerFigures) -> tuple[str, ...]:
    figures = (peer.median, peer.mean, peer.pair_order, peer.oom_recall, peer.memory)
    return (peer.name, peer.rows, "yes" if peer.seen else "no", *figures)
