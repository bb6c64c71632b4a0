"""The plan file as YAML: what `meshwright run`, `explain` and `estimate` read."""

from __future__ import annotations

from costmodel.specs import AXIS_ORDERS, SCHEMA_VERSION
from meshwright.exporters.base import ALL_FIELDS, Exporter, Job
from meshwright.files import dump_document


def _render(job: Job) -> dict[str, str]:
    return {job.name: dump_document(job.plan.model_dump(mode="json"), suffix=".yaml")}


YAML = Exporter(
    name="yaml",
    target="plan file (YAML)",
    tested_versions=(f"schema {SCHEMA_VERSION}",),
    fields=ALL_FIELDS,
    runtimes=None,
    axis_orders=tuple(AXIS_ORDERS),
    suffix=".yaml",
    render=_render,
)
