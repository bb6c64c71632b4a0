"""plan.manifest.json: what a header says, beside files that have no room for comments."""

from __future__ import annotations

from typing import Any

from meshwright.exporters.base import Job
from meshwright.files import dump_document
from meshwright.version import __version__

NAME = "plan.manifest.json"


def manifest(job: Job, target: str) -> dict[str, str]:
    """The manifest of an export as name -> text.

    Args:
        job: the export.
        target: the exporter's name.
    """
    plan, made = job.plan, job.plan.estimate
    content: dict[str, Any] = {
        "target": target,
        "target_version": job.version,
        "meshwright_version": __version__,
        "plan_hash": plan.plan_hash,
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "prediction": None
        if made is None
        else {
            "step_time_seconds": made.step_time_seconds.model_dump(mode="json"),
            "peak_memory_bytes": made.peak_memory_bytes.model_dump(mode="json"),
            "memory_capacity_bytes": made.memory_capacity_bytes,
        },
        "plan_command": plan.provenance.command if plan.provenance else "",
        "command": job.command,
        "warnings": [{"field": loss.field, "message": loss.message} for loss in job.losses],
    }
    return {NAME: dump_document(content, suffix=".json")}
