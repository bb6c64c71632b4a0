"""How torchtitan deals layers to pipeline stages, and the flags that make it deal them as a plan does.

torchtitan 0.3.0, distributed/pipeline_parallel.py: the embedding counts as ``first`` layers, norm and head as ``last`` (both 1
unless told otherwise), so the stages share num_layers + first + last; the first stages take one more where that does not divide.
Stages are two a rank under schedules of several chunks, else one; pipeline_parallel_layers_per_stage k makes them
ceil((num_layers + first + last) / k).
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.specs import InputError

_FIRST, _LAST, _PER = (
    "parallelism.pipeline_parallel_first_stage_less_layers",
    "parallelism.pipeline_parallel_last_stage_less_layers",
    "parallelism.pipeline_parallel_layers_per_stage",
)
MODULES = "parallelism.module_fqns_per_model_part"
SPLIT_FLAGS = (_FIRST, _LAST, _PER, MODULES)
_WEIGHTS = tuple((first, last) for total in range(5) for first in range(3) if 0 <= (last := total - first) <= 2)
# The defaults first, then the smallest that do.
_TRIED = ((1, 1), *(pair for pair in _WEIGHTS if pair != (1, 1)))
_CHUNKS_OF_MULTI = 2


def split(num_layers: int, num_stages: int, first: int = 1, last: int = 1) -> tuple[int, ...] | None:
    """Layers of every stage as torchtitan deals them, or None where it refuses to.

    Args:
        num_layers: of the model.
        num_stages: virtual stages.
        first: layers that the embedding counts as.
        last: layers that norm and head count as.
    """
    if num_stages == 1:
        return (num_layers,)
    share, rest = divmod(num_layers + first + last, num_stages)
    if share == 0 or first > share or last > share:
        return None
    stages = [share + (index < rest) for index in range(num_stages)]
    stages[0] -= first
    stages[-1] -= last
    return tuple(stages)


def count_stages(
    num_layers: int, pipeline: int, per_stage: int | None, *, multi: bool, first: int = 1, last: int = 1
) -> int:
    """Virtual stages that torchtitan makes.

    Args:
        num_layers: of the model.
        pipeline: pipeline ranks.
        per_stage: pipeline_parallel_layers_per_stage, or None.
        multi: whether the schedule runs several chunks a rank.
        first: as in `split`.
        last: as in `split`.
    """
    if per_stage is None:
        return pipeline * (_CHUNKS_OF_MULTI if multi else 1)
    return -(-(num_layers + first + last) // per_stage)


def split_flags(layers: Sequence[int], pipeline: int) -> dict[str, list[str]]:
    """The flags, key -> words, that make torchtitan deal layers so.

    Args:
        layers: of every virtual stage.
        pipeline: pipeline ranks.
    """
    total, stages = sum(layers), len(layers)
    multi = stages > pipeline
    for first, last in _TRIED:
        if split(total, stages, first, last) != tuple(layers):
            continue
        flags = {} if (first, last) == (1, 1) else {_FIRST: [str(first)], _LAST: [str(last)]}
        if count_stages(total, pipeline, None, multi=multi) == stages:
            return flags
        shared = total + first + last
        for per_stage in range(-(-shared // stages), shared // (stages - 1) + 2):
            if count_stages(total, pipeline, per_stage, multi=multi, first=first, last=last) == stages:
                return flags | {_PER: [str(per_stage)]}
    return {MODULES: module_names(layers)}


def module_names(layers: Sequence[int]) -> list[str]:
    """The modules of every stage, a word each, as module_fqns_per_model_part lists them."""
    words, start = [], 0
    for index, count in enumerate(layers):
        names = [f"layers.{number}" for number in range(start, start + count)]
        names = ["tok_embeddings", *names] if index == 0 else names
        words.append(",".join([*names, "norm", "lm_head"] if index == len(layers) - 1 else names))
        start += count
    return words


def read_modules(words: Sequence[str]) -> tuple[int, ...]:
    """Layers of every stage in module_fqns_per_model_part.

    Raises:
        InputError: when they are not the layers of a model in order, with the embedding first and the head last.
    """
    parts = [word.split(",") for word in words]
    numbers = [[name for name in part if name.startswith("layers.")] for part in parts]
    listed = [name for part in numbers for name in part]
    whole = listed == [f"layers.{index}" for index in range(len(listed))]
    ends = bool(parts) and "tok_embeddings" in parts[0] and {"norm", "lm_head"} <= set(parts[-1])
    if not whole or not ends or not all(numbers):
        raise InputError(
            f"--{MODULES} is {' '.join(words)}; needed tok_embeddings first, layers.0 and so on in order, at least one a stage, "
            "and norm,lm_head last"
        )
    return tuple(len(part) for part in numbers)
