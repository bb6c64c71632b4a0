"""What other predictors reach on the same published runs, as far as it is known.

The runs are those of ``benchmarks/data/published_runs``; a predictor is scored on rows that its own constants had not seen
unless its line says so. The predictors are the repositories' own code at the commit named; the figures were taken once and
are not computed here, unlike folklore's (`baseline`).
"""

from __future__ import annotations

from dataclasses import dataclass

DATASETS = frozenset(
    [
        "aleph",
        "amp",
        "bigscience_gpt2_v100",
        "bloom_prequel",
        "dgxc",
        "internevo",
        "megatron",
        "megatron_bridge",
        "more",
        "mosaic",
        "nanotron_bench",
        "nemo",
        "oneflow_dlperf",
        "papers",
        "simumax_b200",
        "torchtitan",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigures:
    """Errors of step time and memory of one predictor, as they were told; a dash where they are not known.

    ``seen``: whether its constants were made with these runs.
    """

    name: str
    rows: str
    seen: bool
    median: str = "-"
    mean: str = "-"
    pair_order: str = "-"
    oom_recall: str = "-"
    memory: str = "-"


_ALL = "published runs"
PEERS = (
    PeerFigures(
        name="calculon caa4b11", rows=_ALL, seen=False, median="22%", mean="25%", pair_order="82%", oom_recall="59%"
    ),
    PeerFigures(name="llm-analysis d841e40", rows=_ALL, seen=False, median="19%", pair_order="72%", oom_recall="65%"),
    PeerFigures(name="SimuMax 4dcaae5, its A100 efficiencies", rows=_ALL, seen=False, median="25%"),
    PeerFigures(name="calculon caa4b11", rows="arXiv 2205.05198, table 5 (8 runs)", seen=True, mean="3.65%"),
    PeerFigures(name="SimuMax 4dcaae5", rows="its own B200 table (43 runs)", seen=True, mean="5.6%", memory="0.46%"),
)
