"""Write the JSON Schemas of the documents that leave the program: ``python -m costmodel.specs.write_schemas``.

They are committed beside this module, so that a change of a contract shows in review.
"""

from __future__ import annotations

import json
from pathlib import Path

from costmodel.specs import (
    SCHEMA_VERSION,
    Comparison,
    Estimate,
    Infeasible,
    Observation,
    Plan,
    Recommendation,
    Scaling,
    SiteProfile,
    Spec,
)

FOLDER = Path(__file__).parent / "schemas"
DOCUMENTS: dict[str, type[Spec]] = {
    "comparison": Comparison,
    "estimate": Estimate,
    "infeasible": Infeasible,
    "observation": Observation,
    "plan": Plan,
    "recommendation": Recommendation,
    "scaling": Scaling,
    "site": SiteProfile,
}


def render_schemas() -> dict[str, str]:
    """JSON Schema (2020-12) of each document that ``--json`` and plan files hold, by file name."""
    schemas = {}
    for name, kind in DOCUMENTS.items():
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"urn:meshwright:schema:{SCHEMA_VERSION}:{name}",
            **kind.model_json_schema(),
        }
        schemas[f"{name}.schema.json"] = json.dumps(schema, indent=2, sort_keys=True) + "\n"
    return schemas


def main() -> None:
    """Write every schema file."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in render_schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
