"""Canonical JSON and the identity of a plan."""

from __future__ import annotations

import hashlib
import json

from costmodel.specs.plan import Plan


def canonical_json(plan: Plan) -> str:
    """JSON of the plan's identity: sorted keys, no white space, without hash, estimate, provenance and site."""
    content = plan.model_dump(mode="json", exclude={"plan_hash", "estimate", "provenance", "site"})
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def compute_plan_hash(plan: Plan) -> str:
    """Hexadecimal SHA-256 of `canonical_json`."""
    return hashlib.sha256(canonical_json(plan).encode()).hexdigest()


def with_hash(plan: Plan) -> Plan:
    """The plan with its ``plan_hash`` filled in."""
    return plan.model_copy(update={"plan_hash": compute_plan_hash(plan)})
