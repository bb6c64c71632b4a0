"""What differs between a given plan and a better one."""

from __future__ import annotations

from meshwright.improving import Change, changes
from meshwright.planning import make_plan


def test_an_order_of_mesh_axes_alone_is_a_difference() -> None:
    sizes = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "micro_batch_size": 1}
    given, better = (
        make_plan(
            "llama-3-8b", "2x8xH100-SXM", global_batch_size=64, sequence_length=4096, runtime="megatron", sizes=sizes,
            axis_order=order,
        )
        for order in ("pipeline_outermost", "data_outermost")
    )  # fmt: skip
    assert changes(given, better) == (Change(field="axis_order", given="pipeline_outermost", better="data_outermost"),)
    assert changes(given, given) == ()
