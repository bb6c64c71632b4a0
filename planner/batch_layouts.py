"""Layouts that take a whole batch at once: of each, as many micro-batches as fill its pipeline (equation (3) of maximize.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd

from costmodel.runtimes.rules import RuleContext, divisors
from planner.context_values import context_sizes
from planner.inquiry import Inquiry
from planner.space import Space


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """One (tensor, context, pipeline) of equation (3) on ``devices``; a batch is ``unit`` sequences times the micro batch."""

    devices: int
    tensor: int
    cut: int
    pipeline: int
    micro_batches: int

    @property
    def unit(self) -> int:
        """Sequences of a step with micro batches of one."""
        return self.micro_batches * self.devices // (self.tensor * self.cut * self.pipeline)

    @property
    def cut_words(self) -> str:
        """Its context-parallel size as part of a sentence, empty for 1."""
        return f", context_parallel_size {self.cut}" if self.cut > 1 else ""

    def space(self, inquiry: Inquiry, micro_batch: int) -> Space:
        """Its candidates with one micro batch; the global batch follows."""
        training = inquiry.training.model_copy(update={"global_batch_size": self.unit * micro_batch})
        return inquiry.changed(training=training).narrowed(
            num_devices_used=self.devices,
            tensor_parallel_size=self.tensor,
            context_parallel_size=self.cut,
            pipeline_parallel_size=self.pipeline,
            micro_batch_size=micro_batch,
            num_micro_batches=self.micro_batches,
        )


def bare_context(inquiry: Inquiry) -> RuleContext:
    """What rules ask about, without anything that is stated of axes."""
    return RuleContext(model=inquiry.model, cluster=inquiry.cluster, training=inquiry.training, runtime=inquiry.runtime)


def batch_layouts(inquiry: Inquiry) -> Iterator[BatchLayout]:
    """Every tensor, context and pipeline size that multiplies to the devices, within what is stated, what the length is cut into
    and what a model has layers for.
    """
    tensors, pipelines = inquiry.stated("tensor_parallel_size"), inquiry.stated("pipeline_parallel_size")
    counts, cuts = inquiry.stated("num_micro_batches"), _cuts(inquiry)
    for devices in inquiry.stated("num_devices_used") or (inquiry.cluster.num_devices,):
        inside = gcd(devices, inquiry.cluster.devices_per_node)
        for tensor, cut in product(tensors or divisors(inside), cuts):
            if devices % (tensor * cut):
                continue
            rest, layers = devices // (tensor * cut), inquiry.model.num_hidden_layers
            for pipeline in [size for size in pipelines or divisors(rest) if rest % size == 0 and size <= layers]:
                for count in counts or (pipeline,):
                    yield BatchLayout(devices, tensor, cut, pipeline, count)


def _cuts(inquiry: Inquiry) -> tuple[int, ...]:
    return context_sizes(
        bare_context(inquiry), inquiry.stated("context_parallel_size"), inquiry.stated("context_parallel_method")
    )
