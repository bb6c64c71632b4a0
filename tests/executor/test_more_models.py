"""A stage that holds a whole model computes what `transformers` computes, and starts as it would start."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from executor_plans import CONFIGS, make_model, make_plan
from transformers import AutoModelForCausalLM

from executor.hf_models import Stage, build_config
from executor.initialize import RandomWeights
from executor.recompute import softcapped_attention

NAMES = [name for name in CONFIGS if name.startswith(("gemma2", "phi3", "gpt-neox", "opt"))]
SAME_KERNELS = [name for name in NAMES if name != "gemma2-uncapped"]  # which transformers has no fused attention for


def plain_model(name: str) -> torch.nn.Module:
    attention = "eager" if name.startswith("gemma2") else "sdpa"
    config = build_config(make_model(name))
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).train()


@pytest.mark.parametrize("name", SAME_KERNELS)
def test_a_stage_equals_transformers_to_the_last_bit(name: str) -> None:
    """Loss and gradients in float32; gemma2's scores are capped by transformers' own attention."""
    torch.manual_seed(0)
    plan = make_plan(name, micro_batch_size=8, precision="fp32")
    stage, plain = Stage(plan, plan.stages[0]), plain_model(name)
    stage.materialise(torch.device("cpu"))
    ours, theirs = dict(stage.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() == theirs.keys()
    with torch.no_grad():
        for parameter_name, parameter in theirs.items():
            ours[parameter_name].copy_(parameter.normal_(0.0, 0.1))
    tokens = torch.randint(plan.model.vocab_size, (8, 17))
    loss = stage(tokens[:, :-1], tokens[:, 1:])
    logits = plain(input_ids=tokens[:, :-1], use_cache=False).logits
    wanted = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    wanted.backward()
    assert loss.item() == wanted.item()
    assert len(ours) > 25
    for parameter_name, parameter in theirs.items():
        assert torch.equal(ours[parameter_name].grad, parameter.grad), parameter_name


@pytest.mark.parametrize("name", NAMES)
def test_first_values_are_distributed_as_those_of_transformers(name: str) -> None:
    plain = plain_model(name)
    source = RandomWeights(3, build_config(make_model(name)))
    for parameter_name, parameter in plain.named_parameters():
        drawn = source.rows(parameter_name, tuple(parameter.shape), 0, parameter.shape[0])
        if parameter.dim() == 1:
            assert torch.equal(drawn, parameter.detach()), parameter_name
        else:
            assert drawn.std().item() == pytest.approx(0.1, rel=0.2)
            assert parameter.std().item() == pytest.approx(0.1, rel=0.2)


def test_capped_scores_by_hand() -> None:
    """Two tokens, one head: p = softmax(c tanh(s / c)) over the tokens that are seen."""
    query = torch.tensor([[[[1.0, 0.0], [2.0, 1.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[1.0, 1.0], [0.0, 3.0]]]], dtype=torch.float64)
    value = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]], dtype=torch.float64)
    output, _ = softcapped_attention(query, key, value, None, scaling=0.5, softcap=2.0)
    scores = 2.0 * torch.tanh(torch.tensor([3.0, 3.0], dtype=torch.float64) * 0.5 / 2.0)
    second = scores.exp() / scores.exp().sum()
    wanted = torch.stack([torch.tensor([1.0, 0.0], dtype=torch.float64), second]).view(1, 2, 1, 2)
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-15)
    window = torch.eye(2, dtype=torch.bool)[None, None]
    alone, _ = softcapped_attention(query, key, value, window, scaling=0.5, softcap=2.0)
    torch.testing.assert_close(alone, value.transpose(1, 2), rtol=0, atol=1e-15)
