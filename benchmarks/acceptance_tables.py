"""Three published tables beside the predictions: how long, against what, and who wins.

python benchmarks/acceptance_tables.py

The runs are those of data/published_runs, adapted and predicted as `meshwright replay` does; no constant belongs to a table.

1. arXiv 2205.05198, table 5: iteration times of four GPTs with full and with selective recomputation.
2. arXiv 2104.04473, table 2: throughput of PTD-P over that of ZeRO-3, GPT-3 175B on 384, 768 and 1,536 devices.
3. Oneflow-Inc/DLPerf's GPT report: OneFlow and Megatron-LM on the same configurations, which are pure data parallel, pure
   model parallel, hybrid, and hybrid with a pipeline. The report compares the frameworks configuration by configuration;
   who wins is the one with the shorter step. The layouts of one framework among themselves follow, best first: those of
   one model and batch on the same devices. Runs of the very same configuration differ by up to 4%, so layouts that are
   closer than that are a tie.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

from meshwright import replay
from meshwright.validation import named_tables
from meshwright.validation.named_tables import Versus
from meshwright.validation.results import ReplayRow

RUNS = Path(__file__).parent / "data" / "published_runs"
CATEGORIES = {"DP": "pure data", "MP": "pure model", "2D": "hybrid"}


def load_rows() -> tuple[ReplayRow, ...]:
    """The replayed rows of all three tables."""
    return replay([RUNS / "megatron.jsonl", RUNS / "oneflow_dlperf.jsonl"]).rows


def mean_absolute_error(rows: tuple[ReplayRow, ...]) -> float:
    """Mean of the absolute relative errors of step times."""
    errors = [abs(row.relative_error) for row in rows if row.relative_error is not None]
    return sum(errors) / len(errors)


def category(layout: str) -> str:
    """``hybrid, pipeline`` of ``2D_PP_2x4x4_512_2304x24``."""
    words = list(itertools.takewhile(lambda word: "x" not in word, layout.split("_")))
    return "hybrid, pipeline" if words[-1] == "PP" else CATEGORIES[words[0]]


def is_right(pair: Versus) -> bool:
    """Whether the run that is predicted to be faster was faster."""
    return (pair.predicted[0] < pair.predicted[1]) == (pair.measured[0] < pair.measured[1])


def _print_recomputation(rows: tuple[ReplayRow, ...]) -> None:
    table = named_tables.selective_recomputation_rows(rows)
    print(f"arXiv 2205.05198, table 5: seconds an iteration\n{'':30}{'published':>11}{'predicted':>11}{'error':>8}")
    for row in table:
        measured, predicted = row.measured.step_time_seconds, row.predicted and row.predicted.step_time_seconds
        print(f"{row.id:30}{measured:11.2f}{predicted:11.2f}{row.relative_error:+8.1%}")
    print(f"mean absolute error {mean_absolute_error(table):.2%}\n")


def _print_zero(rows: tuple[ReplayRow, ...]) -> None:
    print(
        f"arXiv 2104.04473, table 2: throughput of PTD-P over that of ZeRO-3\n{'':30}{'published':>11}{'predicted':>11}"
    )
    for pair in named_tables.ptd_and_zero_3(rows):
        published, predicted = (times[1] / times[0] for times in (pair.measured, pair.predicted))
        print(f"{pair.task:30}{published:11.3f}{predicted:11.3f}{pair.ratio_error:+8.1%}")
    print()


def _print_frameworks(rows: tuple[ReplayRow, ...]) -> None:
    pairs = named_tables.oneflow_and_megatron(rows)
    print(f"DLPerf, OneFlow : Megatron-LM, seconds a step\n{'':28}{'':18}{'published':>17}{'predicted':>17}")
    for pair in pairs:
        published, predicted = (f"{times[0]:.3f} : {times[1]:.3f}" for times in (pair.measured, pair.predicted))
        wrong = "" if is_right(pair) else "  WRONG"
        print(f"{pair.task:28}{category(pair.task):18}{published:>17}{predicted:>17}{wrong}")
    print(f"{sum(map(is_right, pairs))} of {len(pairs)} right\n")


def layout_groups(rows: tuple[ReplayRow, ...]) -> dict[str, list[ReplayRow]]:
    """DLPerf's rows by framework, batch and model, where there are several."""
    groups: dict[str, list[ReplayRow]] = defaultdict(list)
    for row in rows:
        if row.id.startswith("dlperf-"):
            framework, layout = row.id.split("-", 2)[1:]
            groups[" ".join((framework, *layout.split("_")[-2:]))].append(row)
    return {name: group for name, group in groups.items() if len(group) > 1}


def layout_pairs(rows: tuple[ReplayRow, ...]) -> tuple[list[Versus], float]:
    """Pairs of layouts that differ by more than repeated runs do, and by how much those differ (relative)."""
    groups = layout_groups(rows)
    pairs = [
        (sizes_of(one) == sizes_of(other), _versus(name, one, other))
        for name, group in groups.items()
        for one, other in itertools.combinations(group, 2)
    ]
    noise = max(_apart(pair) for repeated, pair in pairs if repeated)
    return [pair for repeated, pair in pairs if not repeated and _apart(pair) > noise], noise


def sizes_of(row: ReplayRow) -> str:
    """``2x4x1``: data x tensor x pipeline."""
    return next(word for word in row.id.split("_") if "x" in word)


def _apart(pair: Versus) -> float:
    return max(pair.measured) / min(pair.measured) - 1


def _versus(name: str, one: ReplayRow, other: ReplayRow) -> Versus:
    (predicted, measured), (other_predicted, other_measured) = _times(one), _times(other)
    task = f"{name}: {sizes_of(one)} | {sizes_of(other)}"
    return Versus(task=task, predicted=(predicted, other_predicted), measured=(measured, other_measured))


def _times(row: ReplayRow) -> tuple[float, float]:
    """Predicted and measured seconds."""
    measured = row.measured.step_time_seconds
    if row.predicted is None or measured is None:
        raise ValueError(f"{row.id} has no two step times to compare: {row.reason}")
    return row.predicted.step_time_seconds, measured


def _print_layouts(rows: tuple[ReplayRow, ...]) -> None:
    print("DLPerf, layouts of one framework, batch and model, fastest first (seconds a step, published : predicted)")
    for name, group in layout_groups(rows).items():
        times = sorted((_times(row)[1], _times(row)[0], sizes_of(row)) for row in group)
        print(f"{name:24}" + ", ".join(f"{sizes} {measured:.3f} : {mine:.3f}" for measured, mine, sizes in times))
    pairs, noise = layout_pairs(rows)
    told = f"{sum(map(is_right, pairs))} of {len(pairs)} pairs further apart than repeated runs ({noise:.1%}) ordered right"
    print(f"{told}; {named_tables.layout_order(rows):.0%} of all pairs")


def main() -> None:
    rows = load_rows()
    for show in (_print_recomputation, _print_zero, _print_frameworks, _print_layouts):
        show(rows)


if __name__ == "__main__":
    main()
