"""How layers are dealt to pipeline stages where nobody lists them."""

from __future__ import annotations

import itertools
import math

from costmodel.specs import InputError, ModelSpec, RuntimeProfile, StageCosts


def even_split(num_layers: int, num_virtual_stages: int) -> tuple[int, ...]:
    """Layers per virtual stage, differing by at most one.

    What is left over goes to the inner stages first, then to the first and at the very end to the last
    stage: the ends already carry the embedding and the head.

    Raises:
        InputError: when there are fewer layers than virtual stages.
    """
    if num_layers < num_virtual_stages:
        raise InputError(
            f"{num_layers} layers cannot fill {num_virtual_stages} pipeline stages "
            f"(pipeline_parallel_size x num_model_chunks): every stage needs at least one layer; use at most {num_layers}"
        )
    base, extra = divmod(num_layers, num_virtual_stages)
    order = [*range(1, num_virtual_stages - 1), 0, num_virtual_stages - 1][:extra]
    return tuple(base + (index in order) for index in range(num_virtual_stages))


def split_by_cost(model: ModelSpec, costs: StageCosts, num_stages: int) -> tuple[int, ...]:
    """Layers per stage where a stack deals its modules front to back: a stage ends once it has its share of all costs.

    Args:
        model: its layers cost 1 each.
        costs: what embedding and head cost.
        num_stages: pipeline stages.

    Returns:
        Layers of every stage, at least one.
    """
    group = model.layers[-1]
    attention, hidden = group.attention, model.hidden_size
    projections = hidden * attention.head_dim * 2 * (attention.num_attention_heads + attention.num_key_value_heads)
    feed_forward = hidden * group.feed_forward.intermediate_size * (3 if group.feed_forward.gated else 2)
    head = costs.head
    weight = model.padded_vocab_size * hidden / (projections + feed_forward) if head == "parameters" else float(head)
    share = (costs.embedding + model.num_hidden_layers + weight) / num_stages
    ends = [math.ceil(round(share * (stage + 1) - costs.embedding, 9)) for stage in range(num_stages - 1)]
    depth = model.num_hidden_layers
    bounded = [min(max(end, stage + 1), depth - num_stages + stage + 1) for stage, end in enumerate(ends)]
    return tuple(end - start for start, end in itertools.pairwise([0, *bounded, depth]))


def dealt_layers(model: ModelSpec, runtime: RuntimeProfile, num_ranks: int, num_chunks: int) -> tuple[int, ...]:
    """Layers of every virtual stage as a runtime deals them.

    Args:
        model: with the embedding table that the runtime pads.
        runtime: its ``stage_costs``, which hold for one chunk a rank; without them layers are dealt evenly.
        num_ranks: pipeline ranks.
        num_chunks: chunks of every rank.

    Raises:
        InputError: when there are fewer layers than virtual stages.
    """
    if runtime.stage_costs is None or num_chunks > 1:
        return even_split(model.num_hidden_layers, num_ranks * num_chunks)
    return split_by_cost(model, runtime.stage_costs, num_ranks)
