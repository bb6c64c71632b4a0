"""What one device of a runtime on FSDP2 and DTensor sends in one step, call by call and to the byte.

A rank with l layers and m micro-batches; t tensor parallel size, T tokens of a micro-batch, h hidden size, e bytes of the
compute format, B = T h e. *SP* is sequence parallelism. Bytes are those of the whole tensor of one call:

    (1) tensor parallel, a layer          SP      4 all-gathers and 4 reduce-scatters of B
                                          else    4 all-reduces of B
        recomputed in full, besides       SP      2 all-gathers and a reduce-scatter of B
                                          else    an all-reduce of B
        Recomputation stops at the last tensor that backward needs, the input of the last projection. Where that projection is
        normalised (gemma2) it is made again with its collective: one reduce-scatter (all-reduce) of B more
    (2) embedding cut along hidden        SP      an all-to-all of B / t in each direction (on gloo an all-gather of B)
                                          else    an all-gather of B forward
        along the vocabulary (tied)       SP      a reduce-scatter forward, an all-gather backward, of B
                                          else    an all-reduce of B forward
    (3) head                              SP      an all-gather of B forward, a reduce-scatter of B backward
                                          else    an all-reduce of B backward
        logits                            an all-gather of t ceil(V / t) T e; in a parallel loss 3 all-reduces of T fp32 numbers
    (4) gradients that are sums over tp: under SP those of norms and position embeddings, an all-reduce of R per element each
        before every reduction of their group (a row-wise bias sees the gathered gradient of its output)
        without FSDP2 all of a rank's in one message per step; query and key norms always, in one message of shards
    (5) data parallel, a group of tensors (a layer, or embedding, norm and head): gathers of C per gathered element and
        reductions of R per gathered element, as often as frequency.py and unshards.py say; over replicas an all-reduce of R
        per element of the padded shard. A tensor is padded to ceil(rows / n) n rows (shard_sizes.py)
    (6) a tied table on two pipeline ranks: an all-reduce of the gradient's shard, G per element, between the two
    (7) the gradient's norm and the loss: an all-reduce of 2 float64 over all devices (``world``, or the only axis there is)

Sources: torch 2.13.0 torch/distributed/tensor/parallel/{style,loss}.py, tensor/_collective_utils.py (`shard_dim_alltoall`),
fsdp/_fully_shard/{_fsdp_param,_fsdp_param_group,_fsdp_collectives}.py, utils/checkpoint.py (early stop). `meshwright verify`
counts the same on the executor itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import Group, group
from costmodel.frequency import is_wrapped, reduces_every_micro_batch
from costmodel.layer_kinds import layer_kinds
from costmodel.models.families import FAMILIES
from costmodel.models.parameters import ParameterTensor, embedding_tensors, head_tensors, layer_tensors
from costmodel.setting import Setting
from costmodel.shard_sizes import Cut, ModelSizes, Sizes, model_sizes, tensors_sizes
from costmodel.sharding import DataGroups, data_groups
from costmodel.specs import BYTES_PER_ELEMENT
from costmodel.step import holds_tied_copy
from costmodel.traffic import Call

_PER_HEAD_NORMS = (".q_norm.weight", ".k_norm.weight")
_LOSS_BYTES, _LOSS_REDUCTIONS = 4, 3
_NORM_AND_LOSS_BYTES = 16


def torch_calls(senders: Senders, rank: int) -> list[Call]:
    """Equations (1) to (7) for one pipeline rank of the first candidate."""
    sender = _Rank(senders, rank)
    calls = sender.data() + sender.tied() + sender.world()
    if senders.setting.grid.tensor_parallel_size[0] > 1:
        calls += sender.layers() + sender.ends() + sender.partial_gradients()
    return calls


@dataclass(frozen=True)
class Senders:
    """What the pipeline ranks of the first candidate share, computed once and when it is asked for."""

    setting: Setting

    @cached_property
    def groups(self) -> DataGroups:
        """The groups of the data-parallel axes."""
        return data_groups(self.setting)

    @cached_property
    def everyone(self) -> Group:
        """All devices."""
        devices = self.setting.grid.num_devices.astype(np.float64)
        return group(self.setting.net, size=devices, stride=np.ones(1), devices=devices)

    @property
    def cut(self) -> Cut:
        """How tensors are cut: by tensor parallelism and by sharding."""
        return Cut(self.setting.grid.tensor_parallel_size, self.setting.grid.shard_group_size)

    @cached_property
    def parts(self) -> ModelSizes:
        """Elements of the parts that stages are made of."""
        return model_sizes(self.setting.problem.model, self.setting.problem.runtime, self.cut)

    @cached_property
    def stages(self) -> Sizes:
        """Elements of everything in the virtual stages [V]."""
        contents, parts = self.setting.contents, self.parts
        embedding, head = contents.embedding.astype(np.int64), contents.head.astype(np.int64)
        counts = contents.by_kind[0].astype(np.int64)
        held = [part.times(counts[:, kind]) for kind, part in enumerate(parts.layers)]
        held += [parts.embedding.times(embedding), parts.head.times(head)]
        copied = int(self.setting.problem.model.tie_word_embeddings) * head * (1 - embedding)
        return reduce(Sizes.__add__, [*held, parts.token_embedding.times(copied)])


@dataclass(frozen=True)
class _Rank:
    """One pipeline rank, with the equations of the module."""

    senders: Senders
    rank: int

    @property
    def setting(self) -> Setting:
        return self.senders.setting

    @cached_property
    def stages(self) -> NDArray[np.int64]:
        """Virtual stages of the rank."""
        return np.asarray(self.setting.held[self.rank])

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Layers of every layer kind of the model."""
        layers = self.setting.contents.by_kind[0, self.stages].sum(axis=0)
        return tuple(int(count) for count in layers)

    @cached_property
    def fully_recomputed(self) -> int:
        return int(self.setting.contents.layers[0, self.stages].sum(axis=(0, 1))[-1])

    @cached_property
    def embedding(self) -> bool:
        return bool(self.setting.contents.embedding[self.stages].any())

    @cached_property
    def head(self) -> bool:
        return bool(self.setting.contents.head[self.stages].any())

    @cached_property
    def micro_batches(self) -> int:
        return int(self.setting.grid.num_micro_batches[0])

    @cached_property
    def tokens(self) -> int:
        return int(self.setting.batch.tokens[0])

    @cached_property
    def sequence_parallel(self) -> bool:
        return bool(self.setting.grid.sequence_parallel[0])

    @cached_property
    def size(self) -> int:
        """T."""
        return int(self.setting.grid.tensor_parallel_size[0])

    def bytes_of(self, use: str) -> int:
        """Bytes per element of one of the precision's formats."""
        return BYTES_PER_ELEMENT[getattr(self.setting.problem.training.precision, use)]

    @cached_property
    def block(self) -> int:
        """B."""
        return self.tokens * self.setting.problem.model.hidden_size * self.bytes_of("compute")

    def _tensor_call(self, op: str, count: int, payload: int) -> Call:
        return Call("tp", op, count, count * payload, self.setting.tensor_group)

    def layers(self) -> list[Call]:
        """Equation (1)."""
        plain, again = self.micro_batches * sum(self.kinds), self.micro_batches * self.fully_recomputed
        products = again * (2 if FAMILIES[self.setting.problem.model.family].ends_in_norm else 1)
        if not self.sequence_parallel:
            return [self._tensor_call("all_reduce", 4 * plain + products, self.block)]
        return [
            self._tensor_call("all_gather", 4 * plain + 2 * again, self.block),
            self._tensor_call("reduce_scatter", 4 * plain + products, self.block),
        ]

    def ends(self) -> list[Call]:
        """Equations (2) and (3)."""
        calls = self._embedding() if self.embedding else []
        if self.head:
            ops = ("all_gather", "reduce_scatter") if self.sequence_parallel else ("all_reduce",)
            calls += [self._tensor_call(op, self.micro_batches, self.block) for op in ops]
            calls += self._loss()
        return calls

    def _embedding(self) -> list[Call]:
        count, tied = self.micro_batches, self.setting.problem.model.tie_word_embeddings
        vocabulary = tied or self.setting.problem.runtime.embedding_tensor_parallel == "vocab"
        if not self.sequence_parallel:
            return [self._tensor_call("all_reduce" if vocabulary else "all_gather", count, self.block)]
        if vocabulary:
            return [self._tensor_call(op, count, self.block) for op in ("reduce_scatter", "all_gather")]
        if self.setting.net.gloo:
            return [self._tensor_call("all_gather", 2 * count, self.block)]
        return [self._tensor_call("all_to_all", 2 * count, self.block // self.size)]

    def _loss(self) -> list[Call]:
        chunks = self.setting.problem.training.loss_chunks
        losses = self.micro_batches * (2 if chunks > 1 else 1)  # chunks are made again in backward
        if self.setting.grid.loss_parallel[0]:
            count = _LOSS_REDUCTIONS * losses
            return [
                Call("tp", "all_reduce", count * chunks, count * _LOSS_BYTES * self.tokens, self.setting.tensor_group)
            ]
        columns = -(-self.setting.problem.model.padded_vocab_size // self.size) * self.size
        logits = losses * self.tokens * columns * self.bytes_of("compute")
        return [Call("tp", "all_gather", losses * chunks, logits, self.setting.tensor_group)]

    def partial_gradients(self) -> list[Call]:
        """Equation (4)."""
        tensors = list(self._tensors())
        norms = [each for each in tensors if each.name.endswith(_PER_HEAD_NORMS)]
        whole = [each for each in tensors if each.tensor_parallel_dim is None and each not in norms]
        cut = {each.name.removesuffix("weight") for each in tensors if each.tensor_parallel_dim is not None}
        partial = [each for each in whole if each.name.removesuffix("bias") not in cut]
        if not self.sequence_parallel:
            partial = []
        elements, shards = sum(each.num_elements for each in partial), int(self._cut(norms).own[0])
        if not self._wrapped:
            return [self._tensor_call("all_reduce", 1, (elements + shards) * self.bytes_of("gradient"))]
        times = self.micro_batches if reduces_every_micro_batch(self.setting.grid)[0] else 1
        payload = elements * self.bytes_of("reduce")
        calls = [Call("tp", "all_reduce", times * len(partial), times * payload, self.setting.tensor_group)]
        return [*calls, self._tensor_call("all_reduce", int(bool(norms)), shards * self.bytes_of("gradient"))]

    @cached_property
    def _wrapped(self) -> bool:
        return bool(is_wrapped(self.setting.grid, self.setting.problem.training)[0])

    def _tensors(self) -> list[ParameterTensor]:
        """Every tensor of the rank, with the name it has in the first layer of its kind."""
        model, tensors = self.setting.problem.model, list[ParameterTensor]()
        for count, kind in zip(self.kinds, layer_kinds(model), strict=True):
            tensors += count * list(layer_tensors(model, kind.first))
        tensors += embedding_tensors(model) if self.embedding else ()
        return tensors + list(head_tensors(model) if self.head else ())

    def _cut(self, tensors: list[ParameterTensor]) -> Sizes:
        return tensors_sizes(tensors, self.senders.cut)

    def data(self) -> list[Call]:
        """Equation (5)."""
        groups, often = self.senders.groups, self.setting.often
        sizes, calls = self.senders.stages.take(self.stages), self.setting.contents.calls[0, self.stages]
        pieces, repeated = int(calls.sum()), self.setting.regathers[0, self.stages].astype(np.int64)
        whole, shard, repeats = int(sizes.gathered.sum()), int(sizes.padded.sum()), int(repeated @ sizes.gathered)
        gathered, reduced = whole * self.bytes_of("compute"), whole * self.bytes_of("reduce")
        partitioned = self.setting.grid.hierarchical_partition_size[0] > 0
        forward = int(often.forward_gather[0] + often.first_gather[0])
        backward, replicas = int(often.backward_gather[0]), int(often.replicas[0])
        reduces = int(often.backward_reduce[0] + often.last_reduce[0])
        again = groups.partition if partitioned else groups.shard
        summed = shard * self.bytes_of("reduce")
        return [
            Call("dp_shard", "all_gather", forward * pieces, forward * gathered, groups.shard),
            Call("dp_shard", "all_gather", backward * pieces, backward * gathered, again),
            Call("dp_shard", "all_gather", int(repeated @ calls), repeats * self.bytes_of("compute"), groups.shard),
            Call("dp_shard", "reduce_scatter", reduces * pieces, reduces * reduced, groups.shard),
            Call("dp_replicate", "all_reduce", replicas * pieces, replicas * summed, groups.replicate),
        ]

    def tied(self) -> list[Call]:
        """Equation (6)."""
        if not (holds_tied_copy(self.setting) and self.setting.apart and self.rank in (0, self.setting.num_ranks - 1)):
            return []
        table = self.senders.parts.token_embedding
        return [
            Call("pp", "all_reduce", 1, int(table.own[0]) * self.bytes_of("gradient"), self.setting.pipeline_group())
        ]

    def world(self) -> list[Call]:
        """Equation (7)."""
        sizes = {
            "pp": self.setting.num_ranks,
            "dp_replicate": int(self.setting.grid.data_parallel_replicate_size[0]),
            "dp_shard": int(self.setting.grid.data_parallel_shard_size[0]),
            "cp": int(self.setting.grid.context_parallel_size[0]),
            "tp": self.size,
        }
        along = [axis for axis, size in sizes.items() if size > 1]
        axis = along[0] if len(along) == 1 else "world"
        return [Call(axis, "all_reduce", 1, _NORM_AND_LOSS_BYTES, self.senders.everyone)]
