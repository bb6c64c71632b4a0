"""Plans survive their files, and files that are no plans are refused."""

import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_documents import sample_plan, sample_recommendation

from costmodel.specs import InputError, canonical_json, compute_plan_hash, with_hash
from meshwright import load_plan, make_plan, save_plan
from meshwright.files import check_output, dump_document, write_text
from meshwright.plan_files import load_answer


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml", "plan.yml"])
def test_a_plan_survives_its_file(name: str, tmp_path: Path) -> None:
    plan = sample_plan()
    save_plan(plan, tmp_path / name)
    assert load_plan(tmp_path / name) == plan


def test_json_and_yaml_hold_the_same(tmp_path: Path) -> None:
    plan = sample_plan()
    content = [
        json.loads(save_plan(plan, tmp_path / "plan.json").read_text()),
        yaml.safe_load(save_plan(plan, tmp_path / "plan.yaml").read_text()),
        plan.model_dump(mode="json"),
    ]
    assert content[0] == content[1] == content[2]


# YAML 1.1 reads 1e-5 without a dot, and 1.0 without a sign in the exponent, as text: every float must survive exactly.
@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_survives_yaml_and_json(value: float) -> None:
    for suffix, load in ((".yaml", yaml.safe_load), (".json", json.loads)):
        found = load(dump_document({"value": value}, suffix=suffix))["value"]
        assert isinstance(found, float)
        assert found == value
        assert math.copysign(1, found) == math.copysign(1, value)


@given(st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_every_text_survives_yaml(value: str) -> None:
    encodable = value.encode("utf-8", "ignore").decode()
    assert yaml.safe_load(dump_document({"value": encodable}, suffix=".yaml"))["value"] == encodable


def test_a_file_without_suffix_may_hold_either(tmp_path: Path) -> None:
    plan = sample_plan()
    for number, suffix in enumerate((".json", ".yaml")):
        path = tmp_path / f"plan{number}"
        path.write_text(dump_document(plan.model_dump(mode="json"), suffix=suffix))
        assert load_plan(path) == plan


def test_a_recommendation_gives_its_best_plan(tmp_path: Path) -> None:
    answer = sample_recommendation()
    path = tmp_path / "answer.json"
    path.write_text(answer.model_dump_json())
    assert load_plan(path) == answer.best
    assert load_answer(path) == answer


def test_an_edited_plan_is_refused_unless_accepted(tmp_path: Path) -> None:
    plan = make_plan("llama-tiny-demo", "cpu", global_batch_size=8, sequence_length=32)
    content = plan.model_dump(mode="json")
    content["parallel"] |= {"micro_batch_size": 2, "num_micro_batches": 4}
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"found plan_hash {plan.plan_hash[:16]}.*--accept-edits"):
        load_plan(path)
    accepted = load_plan(path, accept_edits=True)
    assert accepted.parallel.micro_batch_size == 2
    assert accepted.plan_hash == compute_plan_hash(accepted) != plan.plan_hash
    assert accepted.estimate is None  # it was the estimate of another plan


def test_estimate_and_provenance_are_not_the_identity(tmp_path: Path) -> None:
    plan = sample_plan().model_copy(update={"estimate": None, "provenance": None})
    assert load_plan(save_plan(plan, tmp_path / "plan.json")).plan_hash == sample_plan().plan_hash


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0])
def test_other_schema_versions_are_refused(version: object, tmp_path: Path) -> None:
    content = {**sample_plan().model_dump(mode="json"), "schema_version": version}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="schema_version"):
        load_plan(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"schema_version": 1}', "missing"),
        ("{" * 5, "not valid JSON"),
        ('{"a":' * 100_000, "plan file"),
        ('{"a": ' + "9" * 5000 + "}", "plan file"),
        ("\ufeff{}", "something else"),
        ("null", "found null; needed an object"),
        ("[]", "found a list; needed an object"),
        ('{"a": 1', "the text ends in the middle"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"schema_version": 1, "a": [1, 1' + "0" * 30 + "]}", "a.1: found 1000.*needed a whole number below 9.2e"),
        ('{"best": 5}', "holds no plan"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_plan(path)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as stream:
        stream.truncate(10**10)  # sparse: no disk is used
    with pytest.raises(InputError, match="10,000,000,000 bytes"):
        load_plan(path)


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("precious")
    with pytest.raises(InputError, match="--force"):
        save_plan(sample_plan(), path)
    assert path.read_text() == "precious"
    save_plan(sample_plan(), path, force=True)
    assert load_plan(path) == sample_plan()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]  # no temporary file stays


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("precious")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new", force=True)
    assert path.read_text() == "precious"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_check_output_names_the_suffixes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.json, \.yaml"):
        check_output(tmp_path / "plan.toml", force=False, suffixes=(".json", ".yaml"))


def test_the_sample_is_hashed() -> None:
    assert with_hash(sample_plan()) == sample_plan()


def test_fields_that_came_later_leave_no_trace_in_older_hashes() -> None:
    """What plans of older models never said is not in their identity; what gemma2 and gpt_neox say is."""
    later: dict[str, set[str]] = {
        "llama-3-8b": set(),
        "gemma-2-2b": {"attn_logit_softcapping", "final_logit_softcapping"},
        "pythia-1b": {"partial_rotary_factor", "use_parallel_residual"},
    }
    names = set.union(*later.values())
    for model, wanted in later.items():
        plan = make_plan(model, "1xH100-SXM", global_batch_size=8, sequence_length=32)
        fields = json.loads(canonical_json(plan))["model"]
        assert names & {*fields, *fields["layers"][0]["attention"]} == wanted
