"""Rules on a complete plan that no grid column shows: its stages and what they recompute, its device count, its axis order."""

from __future__ import annotations

from costmodel.runtimes.placement import V_SCHEDULES, place
from costmodel.runtimes.rules_core import listed
from costmodel.specs import AXIS_ORDERS, Plan, Rejection, RuntimeProfile


def _check_stage_shape(plan: Plan) -> list[Rejection]:
    """As many stages as pipeline ranks x chunks, in virtual-stage order."""
    ranks, chunks = plan.parallel.pipeline_parallel_size, plan.parallel.num_model_chunks
    found = [(stage.rank, stage.chunk) for stage in plan.stages]
    schedule = plan.parallel.pipeline_schedule
    needed = [place(schedule, index, ranks) for index in range(ranks * chunks)]
    if found == needed:
        return []
    return [
        Rejection(
            rule="plan_stage_order",
            message=f"the plan's stages (rank, chunk) are {listed(found)}; pipeline_parallel_size {ranks} x "
            f"num_model_chunks {chunks} under {schedule} needs {listed(needed)} in this order",
            numbers={"stages": len(found), "needed": len(needed)},
            fix="list one stage per pipeline rank and chunk; virtual stage k is chunk k // ranks of rank k % ranks"
            + (", odd chunks from the last rank to the first" if schedule in V_SCHEDULES else ""),
        )
    ]


def _check_stage_layers(plan: Plan) -> list[Rejection]:
    """Layer ranges are contiguous, not empty, and cover the model."""
    layers = plan.model.num_hidden_layers
    starts = [stage.start for stage in plan.stages]
    stops = [stage.stop for stage in plan.stages]
    contiguous = starts == [0, *stops[:-1]] and stops[-1] == layers
    if contiguous and all(stage.num_layers >= 1 for stage in plan.stages):
        return []
    ranges = listed(f"{start}-{stop}" for start, stop in zip(starts, stops, strict=True))
    return [
        Rejection(
            rule="plan_stage_layers",
            message=f"the plan's stages hold layers {ranges} (stop exclusive); they must be contiguous, hold at least "
            "one layer "
            f"each and cover 0-{layers} of {plan.model.name}",
            numbers={"num_hidden_layers": layers, "last_stop": stops[-1]},
            fix=f"give ranges that start at 0, follow each other and end at {layers}",
        )
    ]


def _check_stage_ends(plan: Plan) -> list[Rejection]:
    """The embedding is on the first stage, the head on the last, and nowhere else."""
    last = len(plan.stages) - 1
    wrong = [
        index
        for index, stage in enumerate(plan.stages)
        if stage.embedding != (index == 0) or stage.head != (index == last)
    ]
    if not wrong:
        return []
    return [
        Rejection(
            rule="plan_stage_ends",
            message=f"stages {listed(wrong)} misplace the embedding or the head: the embedding belongs to stage 0 and "
            "the head to "
            f"stage {last}, and to no other",
            numbers={"first_wrong_stage": wrong[0]},
            fix=f"set embedding only on stage 0 and head only on stage {last}",
        )
    ]


def _check_recomputed_layers(plan: Plan) -> list[Rejection]:
    """A stage recomputes at most the layers it has, and a number of them only where it recomputes."""
    wrong = [
        index
        for index, stage in enumerate(plan.stages)
        if (count := stage.recompute.num_layers) is not None
        and (stage.recompute.kind == "none" or count > stage.num_layers)
    ]
    if not wrong:
        return []
    stage = plan.stages[wrong[0]]
    found, layers = stage.recompute.num_layers or 0, stage.num_layers
    place = f"recompute.num_layers of stage {wrong[0]}"
    if stage.recompute.kind == "none":
        needs, fix = "no number with recompute none", f"set {place} to null, or its kind to full"
    else:
        needs, fix = f"at most {layers}", f"set {place} to null (all layers) or to 1 to {layers}"
    return [
        Rejection(
            rule="plan_recomputed_layers",
            message=f"stage {wrong[0]} recomputes ({stage.recompute.kind}) num_layers {found} of its {layers} layers; "
            f"needed is {needs}",
            numbers={"stage": wrong[0], "num_layers": found, "layers": layers},
            fix=fix,
        )
    ]


def _check_devices_used(plan: Plan) -> list[Rejection]:
    """The stated number of devices is the product of the sizes."""
    found, needed = plan.num_devices_used, plan.parallel.num_devices
    if found == needed:
        return []
    return [
        Rejection(
            rule="plan_devices_used",
            message=f"num_devices_used is {found}, but the sizes multiply to {needed}",
            numbers={"num_devices_used": found, "product": needed},
            fix=f"set num_devices_used to {needed}",
        )
    ]


def _check_axis_order(plan: Plan) -> list[Rejection]:
    """Only the named orders of mesh axes are modelled and executed."""
    if plan.axis_order in AXIS_ORDERS.values():
        return []
    valid = "; ".join(f"{listed(axes)} ({word})" for word, axes in AXIS_ORDERS.items())
    return [
        Rejection(
            rule="plan_axis_order",
            message=f"axis_order {listed(plan.axis_order)} is not supported; valid: {valid}",
            fix="set axis_order to one of these, or leave it out",
        )
    ]


def check_plan_invariants(plan: Plan) -> list[Rejection]:
    """All broken invariants of one plan, in a fixed order."""
    checks = (
        _check_stage_shape,
        _check_stage_layers,
        _check_stage_ends,
        _check_recomputed_layers,
        _check_devices_used,
        _check_axis_order,
    )
    return [rejection for one_check in checks for rejection in one_check(plan)]


def check_recompute_layers(plan: Plan, runtime: RuntimeProfile) -> list[Rejection]:
    """What the stages recompute must be one setting of the runtime, unless it takes one for every stage.

    A number of layers goes with kind full only (megatron-core: granularity selective takes none). One number for all stages
    is ``n`` such that every stage recomputes min(n, its layers).
    """
    kinds = {stage.recompute.kind for stage in plan.stages}
    counts = [stage.num_recomputed_layers for stage in plan.stages]
    layers = [stage.num_layers for stage in plan.stages]
    one_number = [min(max(counts), each) for each in layers]
    whole = kinds == {"none"} or counts == layers
    uniform = len(kinds) == 1 and (whole or (kinds == {"full"} and counts == one_number))
    found = {"per_stage": True, "uniform": uniform, "all": len(kinds) == 1 and whole}
    if found[runtime.recompute_layers]:
        return []
    words = ", ".join(stage.recompute.word for stage in plan.stages)
    number = ", or the same full:N for all stages" if runtime.recompute_layers == "uniform" else ""
    kinds_known = listed(runtime.recompute_kinds)
    return [
        Rejection(
            rule="runtime_recompute_layers",
            message=f"runtime {runtime.name} recomputes alike in all stages, found {words}; valid: one of {kinds_known} for all "
            f"layers of all stages{number}",
            numbers={"recompute": words, "valid": runtime.recompute_layers},
            fix=f"give every stage the same recompute, one of {kinds_known}{number}, or choose another runtime",
        )
    ]
