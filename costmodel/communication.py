"""What one device sends in one step, per axis and kind of collective: counts and bytes, without framing.

Counts are per pipeline rank over all its chunks. For a rank with l layers, m micro-batches and T h elements of activations:

    (1) tensor parallel: 2 all-reduces of T h per layer forward and 2 backward, 2 more when the layer is recomputed; with
        sequence parallelism an all-gather and a reduce-scatter each, and the runtime's extra gathers backward
    (2) embedding: one of (1) forward; head: one of (1) backward, an all-gather of its input with sequence parallelism; loss:
        3 all-reduces of T fp32 numbers, or an all-gather of the logits
    (3) context parallel: context_parallel.py, equations (2) to (4), the forward's once more where attention is recomputed
    (4) pipeline: one message per micro-batch and boundary in each direction
    (5) data parallel: sharding.py, equations (1) to (3), as often as frequency.py and unshards.py say
    (6) a tied table on two pipeline ranks: an all-reduce of its gradient between them

Runtimes on FSDP2 and DTensor (sharding ``fsdp2``) have (1), (2), (5) and (6) to the byte in torch_communication.py.
"""

from __future__ import annotations

import numpy as np

from costmodel.context_parallel import ALL_GATHER, EXCHANGES, REPEATS_ATTENTION, RING, context_bytes
from costmodel.layer_kinds import layer_kinds
from costmodel.paths import boundary_messages
from costmodel.setting import Setting
from costmodel.sharding import data_groups
from costmodel.specs import BYTES_PER_ELEMENT, Communication
from costmodel.step import holds_tied_copy, stage_parameters
from costmodel.torch_communication import Senders, torch_calls
from costmodel.traffic import Call


def communication(setting: Setting, rank: int) -> tuple[Communication, ...]:
    """Traffic of one device of pipeline rank ``rank`` under the first candidate; entries of 0 bytes are left out."""
    return _of_rank(Senders(setting), rank)


def communication_of_ranks(setting: Setting) -> tuple[tuple[Communication, ...], ...]:
    """`communication` of every pipeline rank, computed once for ranks that hold the same between two others."""
    senders, last = Senders(setting), setting.num_ranks - 1
    contents, found = setting.contents, dict[tuple[object, ...], tuple[Communication, ...]]()
    places = []
    for rank, own in enumerate(setting.held):
        held = (contents.layers[0, own], contents.embedding[own], contents.head[own], setting.regathers[0, own])
        places.append((rank == 0, rank == last, *(column.tobytes() for column in held)))
        if places[-1] not in found:
            found[places[-1]] = _of_rank(senders, rank)
    return tuple(found[place] for place in places)


def _of_rank(senders: Senders, rank: int) -> tuple[Communication, ...]:
    setting = senders.setting
    calls = [*_context_calls(setting, rank), *_pipeline_calls(setting, rank)]
    if setting.problem.runtime.sharding == "fsdp2":
        calls += torch_calls(senders, rank)
    else:
        calls += [*_tensor_calls(setting, rank), *_tied_calls(setting, rank), *_data_calls(setting, rank)]
    merged: dict[tuple[str, str, int, str], tuple[float, float]] = {}
    for call in calls:
        sent = call.sent_bytes
        if call.count <= 0 or sent <= 0:
            continue
        key = (call.axis, call.op, call.group_size, setting.net.names[int(np.ravel(call.members.level)[0])])
        count, total = merged.get(key, (0.0, 0.0))
        merged[key] = (count + call.count, total + sent)
    gloo = setting.net.gloo
    return tuple(
        Communication(
            axis=axis,
            op=op,
            count=round(count),
            bytes_per_rank=round(sent),
            group_size=size,
            link=link,
            algorithm="direct"
            if op in ("send", "all_to_all")
            else "all_reduce"
            if gloo and op == "reduce_scatter"
            else "ring",
        )
        for (axis, op, size, link), (count, sent) in merged.items()
    )


def _rank_view(setting: Setting, rank: int) -> tuple[float, float, bool, bool]:
    """Layers and recomputed layers (full) of a rank, and whether it holds the embedding and the head."""
    contents = setting.contents
    layers = contents.layers[0, setting.held[rank]].sum(axis=(0, 1))
    full = float(layers[-1])
    own = setting.held[rank]
    return float(layers.sum()), full, bool(contents.embedding[own].any()), bool(contents.head[own].any())


def _tensor_calls(setting: Setting, rank: int) -> list[Call]:
    """Equations (1) and (2)."""
    grid, members = setting.grid, setting.tensor_group
    if grid.tensor_parallel_size[0] == 1:
        return []
    layers, full, embedding, head = _rank_view(setting, rank)
    micro_batches, tokens = float(grid.num_micro_batches[0]), float(setting.batch.tokens[0])
    model, element = setting.problem.model, setting.ceiling.element_bytes
    block = tokens * model.hidden_size * element
    sharded = bool(grid.sequence_parallel[0])
    blocks = micro_batches * (4.0 * layers + 2.0 * full + embedding + head)
    extra = micro_batches * setting.stack.sequence_parallel_extra_gathers * layers
    calls = []
    if sharded:
        gathers = blocks + extra + micro_batches * head
        calls += [Call("tp", "all_gather", gathers, gathers * block, members)]
        calls += [Call("tp", "reduce_scatter", blocks, blocks * block, members)]
    else:
        calls += [Call("tp", "all_reduce", blocks, blocks * block, members)]
    chunks = float(setting.problem.training.loss_chunks)
    losses = micro_batches * (2.0 if chunks > 1 else 1.0)  # chunks are made again in backward
    if head and grid.loss_parallel[0]:
        calls += [Call("tp", "all_reduce", 3.0 * losses * chunks, 12.0 * losses * tokens, members)]
    elif head:
        logits = losses * tokens * model.padded_vocab_size * element
        calls += [Call("tp", "all_gather", losses * chunks, logits, members)]
    return calls


def _context_calls(setting: Setting, rank: int) -> list[Call]:
    """Equation (3)."""
    grid, members, ranks = setting.grid, setting.context_group, float(setting.grid.context_parallel_size[0])
    method = int(grid.context_parallel_method[0])
    if ranks == 1:
        return []
    calls: list[Call] = []
    layers = setting.contents.layers[0, setting.held[rank]].sum(axis=0)  # [G, K]
    for (group, _), kinds in zip(layer_kinds(setting.problem.model), layers, strict=True):
        backwards = float(setting.grid.num_micro_batches[0] * kinds.sum())
        forwards = backwards + float(setting.grid.num_micro_batches[0] * (kinds * REPEATS_ATTENTION).sum())
        sent = context_bytes(group.attention, batch=setting.batch, element_bytes=setting.ceiling.element_bytes)
        keys, exchanged = float(sent.keys[0]), float(sent.exchanged[0])
        both = forwards + backwards
        if method == RING:
            messages = (ranks - 1.0) * both
            calls.append(Call("cp", "send", messages, (messages + (ranks - 1.0) * backwards) * keys, members))
        elif method == ALL_GATHER:
            calls.append(Call("cp", "all_gather", both, both * ranks * keys, members))
            calls.append(Call("cp", "reduce_scatter", backwards, backwards * ranks * keys, members))
        else:
            calls.append(Call("cp", "all_to_all", EXCHANGES * both, both * exchanged, members))
    return calls


def _pipeline_calls(setting: Setting, rank: int) -> list[Call]:
    """Equation (4); scattered messages are gathered again over the tensor group."""
    ranks, grid = setting.num_ranks, setting.grid
    if ranks == 1:
        return []
    tensor, micro_batches = float(setting.batch.tensor_parallel[0]), float(grid.num_micro_batches[0])
    whole = float(setting.batch.tokens[0]) * setting.problem.model.hidden_size * setting.ceiling.element_bytes
    sharded = bool(grid.sequence_parallel[0])
    scattered = not sharded and setting.stack.pipeline_scatter_gather > 0 and tensor > 1
    after = boundary_messages(np.ones((1, ranks)), setting.held)[0]  # 1 where a stage's neighbour is on another rank
    own = setting.held[rank]
    messages = micro_batches * float(after[own].sum() + np.concatenate([[0.0], after[:-1]])[own].sum())
    message = whole / tensor if sharded or scattered else whole
    members = setting.pipeline_group()
    calls = [Call("pp", "send", messages, messages * message, members, ranks)]
    if scattered:
        calls += [Call("tp", "all_gather", messages, messages * whole, setting.tensor_group)]
    return calls


def _tied_calls(setting: Setting, rank: int) -> list[Call]:
    """Equation (6)."""
    if not holds_tied_copy(setting) or not setting.apart or rank not in (0, setting.num_ranks - 1):
        return []
    table = setting.problem.model.padded_vocab_size * setting.problem.model.hidden_size
    gradient = BYTES_PER_ELEMENT[setting.problem.training.precision.reduce]
    shared = table / float(setting.batch.tensor_parallel[0]) * gradient
    return [Call("pp", "all_reduce", 1.0, shared, setting.pipeline_group())]


def _data_calls(setting: Setting, rank: int) -> list[Call]:
    """Equation (5)."""
    groups, often = data_groups(setting), setting.often
    precision = setting.problem.training.precision
    own = setting.held[rank]
    of_stages, calls = stage_parameters(setting)[0, own], setting.contents.calls[0, own]
    parameters, pieces, repeated = float(of_stages.sum()), float(calls.sum()), setting.regathers[0, own]
    element = BYTES_PER_ELEMENT[precision.compute]
    gathered = parameters * element
    reduced = parameters * BYTES_PER_ELEMENT[precision.reduce]
    partitioned = setting.grid.hierarchical_partition_size[0] > 0
    forward = float(often.forward_gather[0] + often.first_gather[0])
    backward = float(often.backward_gather[0])
    reduces, replicas = float(often.backward_reduce[0] + often.last_reduce[0]), float(often.replicas[0])
    again = groups.partition if partitioned else groups.shard
    shards = float(np.ravel(groups.shard.size)[0])
    return [
        Call("dp_shard", "all_gather", forward * pieces, forward * gathered, groups.shard),
        Call("dp_shard", "all_gather", backward * pieces, backward * gathered, again),
        Call("dp_shard", "all_gather", float(repeated @ calls), float(repeated @ of_stages) * element, groups.shard),
        Call("dp_shard", "reduce_scatter", reduces * pieces, reduces * reduced, groups.shard),
        Call("dp_replicate", "all_reduce", replicas * pieces, replicas * reduced / shards, groups.replicate),
    ]
