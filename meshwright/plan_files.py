"""Plans and recommendations as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from costmodel.specs import (
    SCHEMA_VERSION,
    Infeasible,
    InputError,
    Plan,
    Recommendation,
    Spec,
    compute_plan_hash,
    with_hash,
)
from hardware_profiles.errors import explain_validation_error, show_value
from meshwright.files import DOCUMENT_SUFFIXES, check_output, dump_document, read_document, write_text

_MAX_INTEGER = 2**63
_Spec = TypeVar("_Spec", bound=Spec)

# What else a user may hold in hand: a field that only this document has, and its name.
_OTHER_DOCUMENTS = (
    ("nearest_miss", "the answer that no plan is feasible"),
    ("peak_memory_bytes", "an estimate"),
    ("losses", "an observation"),
    ("passed", "a comparison"),
    ("hf_config", "a model"),
    ("model_type", "a model's config.json"),
    ("levels", "a cluster"),
)


def load_plan(source: Plan | Recommendation | str | Path, *, accept_edits: bool = False) -> Plan:
    """The plan of a plan file, or the best plan of a recommendation.

    Args:
        source: a plan or recommendation, or a JSON or YAML file of either.
        accept_edits: take a plan whose content no longer agrees with its hash, and give it a new hash and
            no estimate. Without it such a plan is refused, because its estimate is of another plan.

    Raises:
        InputError: when the file is not a plan, of another schema version, or edited by hand.
    """
    answer = load_answer(source, accept_edits=accept_edits)
    return answer.best if isinstance(answer, Recommendation) else answer


def load_answer(source: Plan | Recommendation | str | Path, *, accept_edits: bool = False) -> Plan | Recommendation:
    """The plan or the whole recommendation that a file holds.

    Raises:
        InputError: as `load_plan`.
    """
    if isinstance(source, Plan | Recommendation):
        return source
    return _answer(read_document(source, what="plan file"), source, accept_edits=accept_edits)


def load_explained(source: Plan | Recommendation | Infeasible | str | Path) -> Plan | Recommendation | Infeasible:
    """Whatever can be explained: a plan, a recommendation, or the answer that no plan is feasible.

    Raises:
        InputError: as `load_plan`.
    """
    if isinstance(source, Plan | Recommendation | Infeasible):
        return source
    content = read_document(source, what="plan file")
    if "nearest_miss" in content:
        _check_integers(content, "", source)
        return _validate(Infeasible, content, source)
    return _answer(content, source, accept_edits=False)


def _answer(content: dict[str, Any], source: str | Path, *, accept_edits: bool) -> Plan | Recommendation:
    """The plan or the recommendation of a document that was read."""
    _check_integers(content, "", source)
    if "best" in content:
        _check_schema_version(content["best"], source)
        recommendation = _validate(Recommendation, content, source)
        best = _check_hash(recommendation.best, source, accept_edits=accept_edits)
        for other in () if accept_edits else recommendation.alternatives:
            _check_hash(other, source, accept_edits=False)
        return recommendation.model_copy(update={"best": best})
    _check_schema_version(content, source)
    return _check_hash(_validate(Plan, content, source), source, accept_edits=accept_edits)


def save_plan(plan: Plan, path: str | Path, *, force: bool = False) -> Path:
    """Write a plan as JSON or YAML, by the suffix of ``path``.

    Raises:
        InputError: when the suffix is neither, or the file exists and ``force`` is not given.
    """
    path = check_output(path, force=force, suffixes=DOCUMENT_SUFFIXES)
    return write_text(path, dump_document(plan.model_dump(mode="json"), suffix=path.suffix), force=force)


def _check_schema_version(content: object, source: str | Path) -> None:
    if not isinstance(content, dict):
        raise InputError(f"{source} is not a plan file: 'best' holds no plan")
    if "schema_version" not in content:
        name = next((name for field, name in _OTHER_DOCUMENTS if field in content), "something else")
        raise InputError(
            f"{source} is not a plan file: it holds {name} (no 'schema_version'); "
            "needed a plan (meshwright plan -o FILE) or a recommendation (meshwright plan --json)"
        )
    found = content["schema_version"]
    if type(found) is not int or found != SCHEMA_VERSION:
        raise InputError(
            f"{source}: found plan schema_version {show_value(found)}; this version of meshwright reads {SCHEMA_VERSION}; "
            "make the plan again with this version"
        )


def _check_integers(content: object, path: str, source: str | Path) -> None:
    """Sizes beyond 64 bits mean nothing to anybody, and arithmetic on columns could not hold them."""
    if isinstance(content, dict):
        for key, value in content.items():
            _check_integers(value, f"{path}.{key}", source)
    elif isinstance(content, list):
        for index, value in enumerate(content):
            _check_integers(value, f"{path}.{index}", source)
    elif isinstance(content, int) and abs(content) >= _MAX_INTEGER:
        raise InputError(
            f"plan file {source}: {path[1:]}: found {show_value(content)}; needed a whole number below {_MAX_INTEGER:.1e}"
        )


def _validate(kind: type[_Spec], content: dict[str, Any], source: str | Path) -> _Spec:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, f"plan file {source}", kind)) from None


def _check_hash(plan: Plan, source: str | Path, *, accept_edits: bool) -> Plan:
    needed = compute_plan_hash(plan)
    if plan.plan_hash == needed:
        return plan
    if accept_edits:
        from costmodel.models.agreement import check_agreement

        check_agreement(plan.model)
        devices = plan.parallel.num_devices
        return with_hash(plan.model_copy(update={"estimate": None, "num_devices_used": devices}))
    found = plan.plan_hash or "none"
    raise InputError(
        f"{source} was edited: found plan_hash {found[:16]}, but its content has {needed[:16]}, so its estimate is of "
        f"another plan; to keep the edits and estimate again: meshwright estimate {source} --accept-edits -o NEW.json"
    )
