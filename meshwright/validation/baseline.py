"""What folklore says of the same runs: the prediction that any other must beat.

(1) step time T = 6 N D / (0.40 x devices x peak), N parameters, D tokens of one step (arXiv 2001.08361, section 2.1: six
    FLOP per parameter and token), at a model FLOP utilization of 40%; peak: dense, of the format of matrix inputs; of
    16-bit formats also where single multiplications run in fp8
(2) with one factor per accelerator: T x the median over its judged runs of measured / (1)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from costmodel.models.parameters import num_parameters
from costmodel.specs import Plan
from meshwright.validation.metrics import Outcome, outcome_of
from meshwright.validation.results import ReplayRow

FLOPS_PER_PARAMETER_AND_TOKEN = 6
MODEL_FLOPS_UTILIZATION = 0.40


def naive_step_time_seconds(plan: Plan) -> float:
    """Number (1), in seconds: it knows the model's size, the batch and the devices, and nothing of the layout."""
    training = plan.training
    tokens = training.global_batch_size * training.sequence_length
    peak = plan.cluster.device.peak_flops_per_second[training.precision.compute]
    # Padding of the vocabulary depends on the layout, which folklore does not know.
    parameters = num_parameters(plan.model.model_copy(update={"padded_vocab_size": plan.model.vocab_size}))
    needed_flops = FLOPS_PER_PARAMETER_AND_TOKEN * parameters * tokens
    return needed_flops / (MODEL_FLOPS_UTILIZATION * plan.num_devices_used * peak)


def factors_by_device(rows: Iterable[ReplayRow]) -> dict[str, float]:
    """The factors of number (2), by accelerator, of the judged runs with a step time."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        seconds, naive = row.measured.step_time_seconds, row.naive_step_time_seconds
        if row.judged and row.device is not None and seconds is not None and naive is not None:
            ratios[row.device].append(seconds / naive)
    return {device: median(found) for device, found in sorted(ratios.items())}


def naive_outcomes(rows: Sequence[ReplayRow], factors: Mapping[str, float] | None = None) -> list[Outcome]:
    """The judged rows with number (1) for a prediction, or number (2) where ``factors`` has the accelerator.

    Folklore has no interval and no memory: both ends are the prediction, and peaks are left out.
    """
    found = []
    for row in rows:
        outcome, naive = outcome_of(row), row.naive_step_time_seconds
        if outcome is None or naive is None or row.measured.step_time_seconds is None:
            continue
        seconds = naive * (factors or {}).get(row.device or "", 1.0)
        found.append(
            replace(
                outcome, predicted_seconds=seconds, low_seconds=seconds, high_seconds=seconds, memory=None, oom=None
            )
        )
    return found


def left_out_outcomes(rows: Sequence[ReplayRow]) -> list[Outcome]:
    """Like number (2), each dataset with the factors of all the others; 1 where no other has the accelerator."""
    found = []
    for dataset in sorted({row.dataset for row in rows}):
        factors = factors_by_device(row for row in rows if row.dataset != dataset)
        found += naive_outcomes([row for row in rows if row.dataset == dataset], factors)
    return found
