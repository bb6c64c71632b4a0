"""The models that torchtitan 0.3.0 knows by name, and the config functions that start from them.

From torchtitan 0.3.0, models/llama3/__init__.py, models/qwen3/__init__.py and their config_registry.py; tests/frameworks asks
torchtitan itself whether every number here is its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.runtimes.grid import RecomputeKind
from costmodel.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """One size of a model. ``start``: the config function that starts from it in bf16, or one of its module to change."""

    module: str
    name: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_positions: int
    start: str

    def is_model(self, model: ModelSpec) -> bool:
        """Whether a model has these sizes, and layers of this kind."""
        group = model.layers[0]
        attention, feed_forward = group.attention, group.feed_forward
        return (
            len(model.layers) == 1
            and model.model_type == {"llama3": "llama", "qwen3": "qwen3"}[self.module]
            and not (attention.qkv_bias or attention.output_bias or feed_forward.bias or attention.window)
            and self.sizes
            == (
                model.num_hidden_layers, model.hidden_size, attention.num_attention_heads, attention.num_key_value_heads,
                attention.head_dim, feed_forward.intermediate_size, model.vocab_size, model.tie_word_embeddings,
            )
        )  # fmt: skip

    @property
    def sizes(self) -> tuple[int | bool, ...]:
        """Layers, hidden, heads, key-value heads, head, feed-forward, vocabulary, tied."""
        return (
            self.num_hidden_layers, self.hidden_size, self.num_attention_heads, self.num_key_value_heads,
            self.head_dim, self.intermediate_size, self.vocab_size, self.tie_word_embeddings,
        )  # fmt: skip


def _llama(
    name: str, layers: int, hidden: int, heads: int, ffn: int, *, start: str, tied: bool = False
) -> tuple[tuple[str, str], Flavor]:
    return ("llama3", name), Flavor(
        module="llama3", name=name, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=8, head_dim=hidden // heads, intermediate_size=ffn, vocab_size=128256,
        tie_word_embeddings=tied, max_positions=131072, start=start,
    )  # fmt: skip


def _qwen(
    name: str, layers: int, hidden: int, heads: int, ffn: int, *, start: str, tied: bool = False
) -> tuple[tuple[str, str], Flavor]:
    return ("qwen3", name), Flavor(
        module="qwen3", name=name, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=8, head_dim=128, intermediate_size=ffn, vocab_size=151936,
        tie_word_embeddings=tied, max_positions=40960, start=start,
    )  # fmt: skip


FLAVORS: dict[tuple[str, str], Flavor] = dict(
    (
        _llama("1B", 16, 2048, 32, 8192, start="llama3_8b", tied=True),
        _llama("3B", 28, 3072, 24, 8192, start="llama3_8b", tied=True),
        _llama("8B", 32, 4096, 32, 14336, start="llama3_8b"),
        _llama("70B", 80, 8192, 64, 28672, start="llama3_70b"),
        _llama("405B", 126, 16384, 128, 53248, start="llama3_70b"),
        _qwen("0.6B", 28, 1024, 16, 3072, start="qwen3_0_6b", tied=True),
        _qwen("1.7B", 28, 2048, 16, 6144, start="qwen3_1_7b", tied=True),
        _qwen("4B", 36, 2560, 32, 9728, start="qwen3_1_7b", tied=True),
        _qwen("8B", 36, 4096, 32, 12288, start="qwen3_14b"),
        _qwen("14B", 40, 5120, 40, 17408, start="qwen3_14b"),
        _qwen("32B", 64, 5120, 64, 25600, start="qwen3_32b"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What one config function sets: the values of flags that a command does not give."""

    flavor: str
    seq_len: int
    local_batch_size: int
    recompute: RecomputeKind
    tensor_parallel_degree: int = 1
    fp8: bool = False
    compiled: bool = False


PRESETS: dict[tuple[str, str], Preset] = {
    ("llama3", "llama3_8b"): Preset(flavor="8B", seq_len=8192, local_batch_size=1, recompute="op_policy"),
    ("llama3", "llama3_70b"): Preset(
        flavor="70B", seq_len=8192, local_batch_size=8, recompute="full", tensor_parallel_degree=8
    ),
    ("llama3", "llama3_405b"): Preset(
        flavor="405B",
        seq_len=8192,
        local_batch_size=2,
        recompute="full",
        tensor_parallel_degree=8,
        fp8=True,
        compiled=True,
    ),
    ("qwen3", "qwen3_0_6b"): Preset(flavor="0.6B", seq_len=4096, local_batch_size=4, recompute="op_policy"),
    ("qwen3", "qwen3_1_7b"): Preset(flavor="1.7B", seq_len=4096, local_batch_size=4, recompute="op_policy"),
    ("qwen3", "qwen3_14b"): Preset(flavor="14B", seq_len=4096, local_batch_size=4, recompute="full"),
    ("qwen3", "qwen3_32b"): Preset(flavor="32B", seq_len=4096, local_batch_size=2, recompute="full"),
}


def find_flavor(model: ModelSpec) -> Flavor | None:
    """Torchtitan's own name of a model, or None where it has none."""
    return next((flavor for flavor in FLAVORS.values() if flavor.is_model(model)), None)
