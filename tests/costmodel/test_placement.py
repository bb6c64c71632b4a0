"""Which rank holds which virtual stage, against torch's own mapping."""

import numpy as np
import pytest
from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping, generate_stage_to_rank_mapping

from costmodel.runtimes.placement import place, stages_of_ranks, virtual_stage
from costmodel.stages import make_stages


@pytest.mark.parametrize(("schedule", "style"), [("interleaved_1f1b", "loop"), ("zbv_zero_bubble", "v")])
@pytest.mark.parametrize(("ranks", "chunks"), [(1, 2), (2, 2), (3, 2), (4, 2), (4, 1), (3, 4)])
def test_stages_lie_where_torch_puts_them(schedule, style, ranks, chunks):
    mapping = generate_stage_to_rank_mapping(ranks, ranks * chunks, style)
    assert {stage: place(schedule, stage, ranks)[0] for stage in range(ranks * chunks)} == mapping
    held = generate_rank_to_stage_mapping(ranks, ranks * chunks, style)
    assert {rank: stages.tolist() for rank, stages in enumerate(stages_of_ranks(schedule, ranks, chunks))} == held


@pytest.mark.parametrize("schedule", ["looped_bfs", "dualpipe_v"])
def test_a_place_leads_back_to_its_stage(schedule):
    shape = np.array(int(schedule == "dualpipe_v"))
    for stage in range(12):
        rank, chunk = place(schedule, stage, 6)
        assert virtual_stage(np.array(rank), chunk, np.array(6), v_shaped=shape) == stage


def test_both_ends_of_a_v_are_on_the_first_rank():
    stages = make_stages(10, 2, 2, schedule="dualpipe_v", layers_per_stage=(1, 2, 3, 4))
    assert [(stage.rank, stage.chunk, stage.start, stage.stop) for stage in stages] == [
        (0, 0, 0, 1), (1, 0, 1, 3), (1, 1, 3, 6), (0, 1, 6, 10),
    ]  # fmt: skip
    assert (stages[0].embedding, stages[-1].head) == (True, True)
