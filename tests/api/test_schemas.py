"""The committed JSON Schemas are those of the code, and real documents satisfy them."""

import json

import jsonschema
import pytest
from sample_documents import (
    sample_comparison,
    sample_infeasible,
    sample_plan,
    sample_recommendation,
    sample_scaling,
    sample_site,
)

from costmodel.specs import Observation, Spec
from costmodel.specs.write_schemas import DOCUMENTS, FOLDER, render_schemas


@pytest.mark.parametrize("name", sorted(f"{name}.schema.json" for name in DOCUMENTS))
def test_committed_schemas_are_up_to_date(name: str) -> None:
    committed = json.loads((FOLDER / name).read_text())
    assert committed == json.loads(render_schemas()[name]), "run python -m costmodel.specs.write_schemas"


def test_there_is_no_other_schema() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(render_schemas())


def sample_documents() -> dict[str, Spec]:
    plan = sample_plan()
    assert plan.estimate is not None
    return {
        "plan": plan,
        "estimate": plan.estimate,
        "recommendation": sample_recommendation(),
        "infeasible": sample_infeasible(),
        "comparison": sample_comparison(),
        "scaling": sample_scaling(),
        "site": sample_site(),
        "observation": Observation(source="a run", losses=(2.5, 2.25), step_time_seconds=0.5),
    }


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_documents_satisfy_their_schema(name: str) -> None:
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads(sample_documents()[name].model_dump_json())
    jsonschema.validate(document, schema)


def test_the_schema_refuses_what_the_code_refuses() -> None:
    schema = json.loads((FOLDER / "plan.schema.json").read_text())
    document = json.loads(sample_plan().model_dump_json())
    for path, value in (("schema_version", 2), ("num_devices_used", 0), ("colour", 1), ("stages", [])):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document, path: value}, schema)
