"""Canonical JSON and the identity of a plan."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from costmodel.specs.plan import Plan

# Fields that specs gained after plans had been hashed, with the value that leaves no trace: what a plan said before they
# existed. Plans of older models keep their hashes.
_LATER_MODEL_FIELDS = {"use_parallel_residual": False, "final_logit_softcapping": None}
_LATER_ATTENTION_FIELDS = {"partial_rotary_factor": 1.0, "attn_logit_softcapping": None}


def canonical_json(plan: Plan) -> str:
    """JSON of the plan's identity: sorted keys, no white space, without hash, estimate, provenance and site."""
    content = plan.model_dump(mode="json", exclude={"plan_hash", "estimate", "provenance", "site"})
    _drop_unset(content["model"], _LATER_MODEL_FIELDS)
    for group in content["model"]["layers"]:
        _drop_unset(group["attention"], _LATER_ATTENTION_FIELDS)
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _drop_unset(fields: dict[str, Any], later: dict[str, Any]) -> None:
    """Remove from ``fields`` what has its value in ``later``, in place."""
    for name, unset in later.items():
        if fields[name] == unset:
            del fields[name]


def compute_plan_hash(plan: Plan) -> str:
    """Hexadecimal SHA-256 of `canonical_json`."""
    return hashlib.sha256(canonical_json(plan).encode()).hexdigest()


def with_hash(plan: Plan) -> Plan:
    """The plan with its ``plan_hash`` filled in."""
    return plan.model_copy(update={"plan_hash": compute_plan_hash(plan)})
