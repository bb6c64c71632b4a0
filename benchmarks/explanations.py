"""Explanations checked against the JSON they speak of: `python -m benchmarks.explanations [NAME ...] [--show]`.

For every scenario `meshwright plan --json` is run, its answer explained, and every sentence checked without any of the code
that wrote it: each path is followed in the JSON, each number worked out again by its formula, compared with what is printed in
its unit, and searched for in the sentence. What then remains of the sentence must hold no digit, `NAMES` excepted.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hardware_profiles.loader import load_cluster, save_cluster
from hardware_profiles.types import ClusterSpec

# Words with a digit that are names and no numbers.
NAMES = ("ZeRO-1", "ZeRO-3", "1f1b")
UNITS = {
    "": 1, "times": 1, "%": 1e-2, "s": 1, "ms": 1e-3, "us": 1e-6, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10,
    "GB": 1e9, "MB": 1e6, "KB": 1e3, "TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "KB/s": 1e3,
    "TFLOP/s": 1e12, "GFLOP/s": 1e9, "MFLOP/s": 1e6,
}  # fmt: skip
_PRINTED = re.compile(r"(-?[\d,]+(?:\.(\d+))?) ?(\D*)")
_WORD_OF_A_PLAN = re.compile(r"([a-z]+?)(\d+)(?:x(\d+))?")
_SIZES = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "mb": "micro_batch_size", "m": "num_micro_batches",
    "v": "num_model_chunks", "zero": "zero_stage", "hpz": "hierarchical_partition_size", "cp": "context_parallel_size",
}  # fmt: skip


def follow(document: Any, path: str) -> Any:
    """The value at a path such as ``best.estimate.terms[3].exposed_seconds``."""
    for word in re.findall(r"[^.\[\]]+", path):
        document = document[int(word)] if isinstance(document, list) else document[word]
    return document


def check_sentence(documents: dict[str, Any], explanation: dict[str, Any]) -> list[str]:
    """What is wrong with one sentence; ``documents``: the one explained under "", that of a search under "search:"."""
    problems, rest = [], explanation["sentence"]
    for figure in explanation["numbers"]:
        if figure["text"] not in rest:
            problems.append(f"{figure['text']!r} is not in the sentence")
        rest = rest.replace(figure["text"], "", 1)
        try:
            values = [_read(documents, path) for path in figure["paths"]]
        except (KeyError, IndexError, TypeError):
            problems.append(f"{figure['paths']} lead nowhere")
            continue
        problems += check_figure(figure, values)
    for name in NAMES:
        rest = rest.replace(name, "")
    if re.search(r"\d", rest):
        problems.append(f"a digit that no path accounts for: {rest!r}")
    return problems


def _read(documents: dict[str, Any], path: str) -> Any:
    inner = path.removeprefix("search:")
    return follow(documents["" if inner == path else "search:"], inner)


def check_figure(figure: dict[str, Any], values: list[Any]) -> list[str]:
    """What is wrong with one figure, given the values at its paths."""
    formula, text = figure["formula"], figure["text"]
    if formula == "summary(a)":
        return check_summary(text, values[0])
    if isinstance(values[0], str):
        return [] if formula == "a" and text == values[0] == figure["value"] else [f"{text!r} is not {values[0]!r}"]
    names = dict(zip("abcdefghijkl", values, strict=False))
    if not re.fullmatch(r"[a-l+\-*/() 1]+|len\(a\)", formula):
        return [f"formula {formula!r} is none"]
    value = eval(formula, {"__builtins__": {}, "len": len}, names)
    found = _PRINTED.fullmatch(text)
    if found is None or found[3] not in UNITS:
        return [f"{text!r} is no number with a known unit"]
    unit, step = UNITS[found[3]], 10.0 ** -len(found[2] or "")
    if abs(float(found[1].replace(",", "")) - value / unit) > step * 0.5000001:
        return [f"{text!r} is printed for {value!r}"]
    return (
        [] if abs(figure["value"] - value) <= 1e-12 * abs(value) else [f"{figure['value']!r} is stored for {value!r}"]
    )


def check_summary(text: str, plan: dict[str, Any]) -> list[str]:
    """A plan in short form has the plan's own sizes; layers and recomputed layers by stage are those of its stages."""
    sizes, problems = plan["parallel"], []
    head = re.split(r" recompute | layers ", text)[0].replace("1f1b", "")
    for name, one, two in _WORD_OF_A_PLAN.findall(head.replace("(", "").replace(")", "")):
        numbers = [int(number) for number in (one, two) if number]
        if name == "dp":
            needed = [sizes["data_parallel_replicate_size"], sizes["data_parallel_shard_size"]]
            agrees = numbers == needed if two else numbers[0] == needed[0] * needed[1]
        else:
            agrees = numbers == [sizes.get(_SIZES.get(name, ""))]
        if not agrees:
            problems.append(f"{name}{one} of {text!r} is not in the plan")
    return problems


def check(document: Any, explanations: Iterable[dict[str, Any]], search: Any = None) -> list[str]:
    """All problems of an explanation, as lines."""
    documents = {"": document, "search:": search}
    return [
        f"{explanation['section']}: {problem} ({explanation['sentence']})"
        for explanation in explanations
        for problem in check_sentence(documents, explanation)
    ]


def ten_gigabit() -> ClusterSpec:
    """Four nodes of eight A100 joined by one port of 10-gigabit Ethernet each."""
    fast, slow = load_cluster("4x8xA100-SXM-80GB"), load_cluster("2x8xRTX-3090").levels[1].link
    link = slow.model_copy(update={"name": "Ethernet 10G", "nominal_bytes_per_second": 1.25e9, "latency_seconds": 5e-5})
    level = fast.levels[1].model_copy(update={"link": link, "ports": 1})
    return fast.model_copy(update={"name": "4x8xA100 on 10 GbE", "levels": (fast.levels[0], level)})


def scenario(
    model: str, cluster: str | ClusterSpec, batch: int, sequence: int, *rest: str
) -> tuple[str | ClusterSpec, list[str]]:
    """A cluster and what `plan` is told beside it."""
    return cluster, ["--model", model, "--global-batch-size", str(batch), "--sequence-length", str(sequence), *rest]


SCENARIOS = {
    "single GPU": scenario("qwen2.5-1.5b", "1xA100-SXM-80GB", 32, 2048),
    "single node": scenario("llama-3-8b", "8xA100-SXM-80GB", 64, 4096),
    "several nodes": scenario("llama-3-70b", "8x8xH100-SXM", 512, 4096),
    "10 GbE nodes": scenario("llama-2-13b", ten_gigabit(), 128, 4096),
    "PCIe box": scenario("llama-2-7b", "8xRTX-4090", 64, 2048),
    "7B on 24 GB": scenario("llama-2-7b", "1xRTX-4090", 16, 2048),
    "60 GPUs": scenario("llama-2-13b", "15x4xA100-SXM-80GB", 240, 4096),
    "tied embeddings": scenario("gemma-2-9b", "2x8xA100-SXM-80GB", 64, 4096),
    "tiny model": scenario("llama-tiny-demo", "4xcpu", 32, 128),
    "128k tokens": scenario("llama-3-8b", "4x8xH100-SXM", 8, 131072),
    "128k tokens, cut": scenario("llama-3-8b", "4x8xH100-SXM", 8, 131072, "--runtime", "megatron"),
}


def run(cluster: str | ClusterSpec, words: list[str]) -> tuple[Any, Any]:
    """The JSON of `plan` and of `explain` for one scenario, through the command line."""
    with tempfile.TemporaryDirectory() as folder:
        place, answer = str(cluster), Path(folder, "answer.json")
        if isinstance(cluster, ClusterSpec):
            place = str(Path(folder, "cluster.yaml"))
            save_cluster(cluster, Path(place))
        answer.write_text(_meshwright("plan", "--cluster", place, *words, "--json"), encoding="utf-8")
        told = _meshwright("explain", str(answer), "--json")
        return json.loads(answer.read_text(encoding="utf-8")), json.loads(told)


def _meshwright(*words: str) -> str:
    """What a command prints; 3, no plan fits, is an answer too."""
    done = subprocess.run(
        [sys.executable, "-m", "meshwright.cli.app", *words], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        raise RuntimeError(f"meshwright {' '.join(words)}: {done.stderr}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Check every scenario, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--show", action="store_true", help="print the sentences too")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.names or SCENARIOS:
        document, explanations = run(*SCENARIOS[name])
        problems = check(document, explanations)
        failed += bool(problems)
        numbers = sum(len(explanation["numbers"]) for explanation in explanations)
        print(f"{name}: {len(explanations)} sentences, {numbers} numbers and names, {len(problems)} problems")
        lines = [f"{one['section']}: {one['sentence']}" for one in explanations] if options.show else []
        print("".join(f"  {line}\n" for line in [*lines, *problems]), end="")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
