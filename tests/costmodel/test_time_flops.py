"""FLOP identities of the published papers, to rounding."""

import pytest
from time_worlds import gpt, llama, setting, training, world

from costmodel.flops import hardware_flops, layer_model_flops, model_flops
from costmodel.layers import causal_scores
from costmodel.runtimes.loader import load_runtime

SHAPES = [(24, 2304, 24, 2048, 16), (96, 12288, 96, 2048, 1), (8, 1024, 16, 512, 2)]


@pytest.mark.parametrize(("layers", "hidden", "heads", "length", "micro"), SHAPES)
@pytest.mark.parametrize("tensor", [1, 8])
def test_full_recomputation_is_equation_3_of_2104_04473(layers, hidden, heads, length, micro, tensor):
    plan, runtime = world(
        model=gpt(layers=layers, hidden=hidden, heads=heads),
        recompute="full",
        attention="unfused",
        length=length,
        tensor_parallel_size=tensor,
        micro_batch_size=micro,
        num_micro_batches=3,
        data_parallel_replicate_size=2,
    )
    batch, vocab = plan.training.global_batch_size, 51200
    expected = 96 * batch * length * layers * hidden**2
    expected *= 1 + length / (6 * hidden) + vocab / (16 * layers * hidden)
    assert hardware_flops(setting(plan, runtime)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("layers", "hidden", "heads", "length", "micro"), SHAPES)
def test_without_recomputation_is_equation_7_of_2205_05198(layers, hidden, heads, length, micro):
    plan, runtime = world(
        model=gpt(layers=layers, hidden=hidden, heads=heads),
        attention="unfused",
        length=length,
        micro_batch_size=micro,
        num_micro_batches=2,
    )
    batch = plan.training.global_batch_size
    base = 72 * batch * layers * length * hidden**2
    scores, head = length / (6 * hidden), 51200 / (12 * hidden * layers)
    assert hardware_flops(setting(plan, runtime)) == pytest.approx(base * (1 + scores + head), rel=1e-12)
    # Model FLOP count the causal half of the scores only: s/6h becomes s/12h.
    assert model_flops(plan.model, plan.training) == pytest.approx(base * (1 + scores / 2 + head), rel=1e-12)


def test_selective_recomputation_repeats_the_attention_forward_only():
    sizes = {"micro_batch_size": 2, "num_micro_batches": 2}
    none, runtime = world(attention="unfused", **sizes)
    selective, _ = world(attention="unfused", recompute="core_attention", **sizes)
    length, hidden, layers = 1024, 1024, 8
    more = hardware_flops(setting(selective, runtime)) - hardware_flops(setting(none, runtime))
    assert more == pytest.approx(4 * none.training.global_batch_size * layers * length**2 * hidden, rel=1e-12)


def test_fused_attention_executes_the_causal_half_and_five_products_backward():
    plan, runtime = world(num_micro_batches=1)
    other, _ = world(num_micro_batches=1, attention="unfused")
    length, hidden, layers = 1024, 1024, 8
    full = 4 * length**2 * hidden * layers
    difference = hardware_flops(setting(other, runtime)) - hardware_flops(setting(plan, runtime))
    assert difference == pytest.approx(full * 3 - full / 2 * (1 + 2.5), rel=1e-12)


def test_a_window_leaves_a_band_of_scores():
    length = 64
    assert causal_scores(length, None) == causal_scores(length, 64) == causal_scores(length, 100) == length**2 / 2
    for window in (1, 7, 63):
        band = sum(min(position, window) for position in range(length))  # keys strictly before, at most `window`
        assert abs(causal_scores(length, window) - band) <= window
    assert layer_model_flops(llama(window=128), llama(window=128).layers[0], 1024) < layer_model_flops(
        llama(), llama().layers[0], 1024
    )


def test_six_flops_per_parameter_and_token_outside_attention():
    model, length = llama(hidden=2048, kv=16, vocab=32000), 1024
    runtime = load_runtime("megatron")
    attention = model.layers[0].attention
    weights = 8 * (2048 * 2048 * 4 + 3 * 2048 * 3 * 2048) + 2048 * 32000
    scores = 8 * 4 * attention.num_attention_heads * attention.head_dim * causal_scores(length, None) * 3
    assert model_flops(model, training(runtime, batch=1)) == pytest.approx(6 * weights * length + scores, rel=1e-12)
