"""The report of a replay as Markdown: every figure comes from the rows, and every row is accounted for."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.validation import report_errors, report_evidence, report_memory
from meshwright.validation.calibration_record import CalibrationRecord
from meshwright.validation.results import Replay

MODELLED_NOT = (
    "other jobs on the network or the host, failures, restarts, data loading, evaluation and checkpoints",
    "devices of one job that differ, thermal throttling beyond the stated power limit",
    "mixtures of experts, LoRA, optimizers with 8-bit or low-rank state, offload to host or NVMe: such runs are `unsupported`",
    "kernels by their version: one curve stands for all GEMM shapes of an accelerator, one rate for all fused attention",
    "fragmentation: memory reserved beyond memory allocated is a share of it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContext:
    """What a report shows besides the rows.

    Attributes:
        command: how to make the report again; one line of shell.
        plot: where the plot lies, as a link from the report.
        record: errors on unseen data and constants; None: the report says that it was not given.
        notes: Markdown that is added as it is: what was tried, what is missing.
    """

    command: str
    plot: str
    record: CalibrationRecord | None = None
    notes: str = ""


def accuracy_report(answer: Replay, context: ReportContext) -> str:
    """The whole document."""
    parts = [
        _head(answer, context),
        report_errors.goal_section(answer, context.record),
        report_errors.time_sections(answer),
        report_errors.comparison_section(answer),
        report_errors.bad_rows_section(answer),
        report_memory.memory_section(answer),
        report_evidence.unseen_section(context.record),
        report_evidence.peers_section(answer),
        report_errors.accounting_section(answer),
        _not_modelled(),
        context.notes.strip(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(answer: Replay, context: ReportContext) -> str:
    summary, datasets = answer.summary, len(answer.summary.datasets)
    return f"""# Accuracy

Written by `meshwright replay`; change nothing here by hand. Again:

```
{context.command}
```

{summary.rows:,} runs of {len({row.dataset for row in answer.rows})} files were read, {summary.predicted:,} are predicted, \
{summary.pooled.rows:,} of {datasets} files are judged by their step time: complete, not doubtful, dense and supported. An
error is (predicted - measured) / measured. [docs/replay.md](replay.md) says how a run is read and defines every figure.

![Predicted against measured step times]({context.plot})

Each dot is a run; the dashed lines are errors of 20%."""


def _not_modelled() -> str:
    return "\n".join(["## What is not modelled", "", *(f"- {line[0].upper()}{line[1:]}." for line in MODELLED_NOT)])


BEGIN = "<!-- accuracy: written by meshwright replay --readme; begin -->"
END = "<!-- accuracy: end -->"


def readme_block(answer: Replay, *, report: str) -> str:
    """The small table for a README, between its markers; ``report`` links to the whole report."""
    return "\n".join(
        [BEGIN, "", report_errors.short_table(answer), "", f"[{report}]({report}) has every figure.", "", END]
    )


def replace_block(text: str, block: str) -> str | None:
    """The text with the block instead of the one that it holds; None where its markers are not there, once and in order."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        return None
    start, end = text.index(BEGIN), text.index(END)
    return None if end < start else text[:start] + block + text[end + len(END) :]
