"""A complete run to vary: Llama-2-7B's shape on two nodes of A100."""

import copy
import json
from pathlib import Path
from typing import Any

ROW: dict[str, Any] = {
    "id": "run-1",
    "dataset": "ours",
    "runtime": "megatron",
    "model": {
        "name": "llama 7B", "n_layers": 32, "hidden": 4096, "ffn_hidden": 11008, "n_heads": 32, "n_kv_heads": 32,
        "vocab": 32000, "seq_len": 4096, "gated_mlp": True, "tied_embeddings": False, "moe": None,
    },
    "hardware": {"gpu": "A100-80GB", "n_gpus": 16, "gpus_per_node": 8},
    "parallel": {
        "tp": 2, "pp": 2, "dp": 4, "zero_stage": 1, "micro_batch": 1, "global_batch": 64, "recompute": "none",
        "dtype": "bf16", "flash_attention": True,
    },
    "measured": {"step_time_s": 10.0, "oom": False},
    "rank_group": "7B on 16",
}  # fmt: skip


def vary(**changes: Any) -> dict[str, Any]:
    """The row with dotted fields changed: ``vary(parallel__tp=4)``; ``...`` removes a field."""
    row = copy.deepcopy(ROW)
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = row
        for parent in parents:
            place = place[parent]
        if value is ...:
            del place[name]
        else:
            place[name] = value
    return row


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    """A runs file; text is written as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
