"""One made-up but consistent document of every kind, with round numbers, for tests of text and files.

Nothing here is predicted: golden texts made from it change only when the text changes.
"""

from __future__ import annotations

from costmodel.build import build_plan
from costmodel.runtimes.grid import RecomputeKind
from costmodel.specs import (
    AttentionSpec,
    AxisValues,
    Certificate,
    ClusterSpec,
    Communication,
    Comparison,
    DeviceSpec,
    Estimate,
    FeedForwardSpec,
    FieldComparison,
    FlopCount,
    GemmCurve,
    Guide,
    GuideOption,
    GuideStep,
    HostSpec,
    Infeasible,
    Interval,
    LaunchCorrection,
    LayerGroup,
    LevelSpec,
    LinkSpec,
    Maximum,
    MemoryCorrection,
    MemoryTerm,
    MissTerm,
    ModelSpec,
    NearestMiss,
    Neighbour,
    Objective,
    OverlapCorrection,
    ParallelConfig,
    PeakMemory,
    Plan,
    PrecisionSpec,
    Provenance,
    RateCorrection,
    Recommendation,
    RejectionCount,
    RuntimeProfile,
    Scaling,
    ScalingPoint,
    SiteProfile,
    SiteRun,
    StageMemory,
    Term,
    TrainingDuration,
    TrainingSpec,
    Trial,
    with_hash,
)

GIB = 1024**3


def sample_model() -> ModelSpec:
    group = LayerGroup(
        count=80,
        attention=AttentionSpec(num_attention_heads=64, num_key_value_heads=8, head_dim=128),
        feed_forward=FeedForwardSpec(gated=True, intermediate_size=28672, activation="silu"),
    )
    return ModelSpec(
        name="sample-70b",
        family="llama",
        model_type="llama",
        hidden_size=8192,
        vocab_size=128256,
        padded_vocab_size=128256,
        max_position_embeddings=8192,
        learned_position_embeddings=False,
        norm="rmsnorm",
        tie_word_embeddings=False,
        layers=(group,),
        hf_config={"model_type": "llama", "rope_theta": 500000.0, "rms_norm_eps": 1e-05},
    )


def sample_cluster() -> ClusterSpec:
    link = LinkSpec(name="nvlink", nominal_bytes_per_second=450e9, efficiency=0.8, latency_seconds=3e-6)
    device = DeviceSpec(
        name="SAMPLE-80GB",
        kind="cuda",
        vendor="nvidia",
        architecture="hopper",
        peak_flops_per_second={"fp32": 60e12, "bf16": 990e12, "fp16": 990e12},
        memory_bytes=80 * GIB,
        memory_bandwidth_bytes_per_second=3.35e12,
        memory_fraction=0.9,
        gemm=GemmCurve(max_fraction=0.8, half_flops=1e10),
        attention_fraction=0.5,
        launch_seconds=5e-6,
        power_limit_watts=700,
        sources={"memory_bytes": "a data sheet"},
    )
    network = LinkSpec(name="ib-400", nominal_bytes_per_second=50e9, efficiency=0.85, latency_seconds=6e-6)
    host = HostSpec(
        memory_bytes=2048 * GIB,
        memory_bandwidth_bytes_per_second=300e9,
        flops_per_second=3e12,
        cores=112,
        pcie=LinkSpec(name="pcie5", nominal_bytes_per_second=64e9, efficiency=0.8, latency_seconds=1e-5),
    )
    levels = (
        LevelSpec(name="node", size=8, link=link),
        LevelSpec(name="cluster", size=8, link=network, ports=8),
    )
    return ClusterSpec(name="8x8xSAMPLE-80GB", device=device, levels=levels, host=host)


def sample_runtime(name: str = "torch") -> RuntimeProfile:
    precision = PrecisionSpec(compute="bf16", parameter="fp32", gradient="fp32", reduce="fp32", state="fp32")
    return RuntimeProfile(
        name=name,
        version="2.13",
        zero_stages=(0, 1, 2, 3),
        hybrid_shard=True,
        hierarchical_partition=True,
        memory_model="torch",
        kernel_fusion="none",
        flash_attention_version=2,
        unfused_softmax="eager",
        schedules=("none", "naive", "gpipe", "1f1b", "interleaved_1f1b"),
        recompute_kinds=("none", "core_attention", "full"),
        recompute_layers="per_stage",
        uneven_stages=True,
        interleaving_multiple="rounds",
        embedding_tensor_parallel="hidden",
        sharding="fsdp2",
        model_families=("llama", "gpt"),
        optimizers=("adamw", "sgd"),
        devices=("cuda", "cpu"),
        precisions={"bf16": precision},
        error_band=0.3,
        band_evidence="formula",
        context_bytes=4 * GIB,
        reserved_over_allocated=1.06,
        constants={},
    )


def sample_stage_memory(rank: int) -> StageMemory:
    amounts = {
        "parameters": 4 * GIB,
        "gradients": 4 * GIB,
        "optimizer_state": 8 * GIB,
        "activations": (24 - 4 * rank) * GIB,
        "logits": 3 * GIB if rank == 3 else 0,
        "reserved": 2 * GIB,
        "context": 4 * GIB,
    }
    terms = tuple(
        MemoryTerm(name=name, bytes=amount, phase="forward_backward") for name, amount in amounts.items() if amount
    )
    return StageMemory(rank=rank, terms=terms, peak_bytes=sum(amounts.values()), peak_phase="forward_backward")


def sample_estimate(step_seconds: float = 8.0, *, fits: bool = True) -> Estimate:
    stages = tuple(sample_stage_memory(rank) for rank in range(4))
    peak = max(stage.peak_bytes for stage in stages)
    shares = {"gemm": 0.6, "attention": 0.125, "memory_bound": 0.0625, "tensor_parallel": 0.125, "bubble": 0.0875}
    terms = [
        Term(
            name=name,
            exposed_seconds=share * step_seconds,
            hidden_seconds=0,
            evidence="formula",
            formula=f"sum of {name}",
        )
        for name, share in shares.items()
    ]
    terms.append(
        Term(name="data_parallel", exposed_seconds=0, hidden_seconds=0.25, evidence="fitted", formula="2 (n - 1) / n")
    )
    return Estimate(
        step_time_seconds=Interval(value=step_seconds, low=0.8 * step_seconds, high=1.25 * step_seconds),
        tokens_per_second=8388608 / step_seconds,
        tokens_per_second_per_device=8388608 / step_seconds / 64,
        model_flops_utilization=0.4215,
        flops=FlopCount(model=3.6e18, hardware=3.6e18),
        terms=tuple(terms),
        memory=stages,
        peak_memory_bytes=PeakMemory(allocated=peak - 6 * GIB, reserved=peak - 4 * GIB, device=peak),
        peak_phase="forward_backward",
        memory_capacity_bytes=80 * GIB if fits else 40 * GIB,
        fits=fits,
        memory_ignored=not fits,
        host_memory_bytes=16 * GIB,
        communication=(
            Communication(axis="tp", op="reduce_scatter", count=2560, bytes_per_rank=150 * GIB, link="nvlink"),
            Communication(axis="dp_shard", op="reduce_scatter", count=1, bytes_per_rank=4 * GIB, link="ib-400"),
        ),
        bound_by="gemm",
        notes=("the optimizer step is not overlapped",),
    )


def sample_plan(
    step_seconds: float = 8.0, *, runtime: str = "torch", recompute: RecomputeKind = "core_attention", **sizes: object
) -> Plan:
    training = TrainingSpec(global_batch_size=1024, sequence_length=8192, precision=sample_runtime().precisions["bf16"])
    parallel = ParallelConfig.model_validate(
        {
            "tensor_parallel_size": 4,
            "sequence_parallel": True,
            "loss_parallel": True,
            "pipeline_parallel_size": 4,
            "pipeline_schedule": "1f1b",
            "data_parallel_shard_size": 4,
            "zero_stage": 1,
            "num_micro_batches": 256,
            **sizes,
        }
    )
    plan = build_plan(
        sample_model(), sample_cluster(), training, sample_runtime(runtime), parallel, recompute=recompute
    )
    provenance = Provenance(meshwright_version="0.1.0", command="meshwright plan ...", constants_version="1")
    return with_hash(plan.model_copy(update={"estimate": sample_estimate(step_seconds), "provenance": provenance}))


SPACE = (
    AxisValues(axis="tensor_parallel_size", values=("1", "2", "4", "8")),
    AxisValues(axis="pipeline_parallel_size", values=("1", "2", "4", "8")),
    AxisValues(axis="zero_stage", values=("0", "1", "2", "3")),
)
REJECTIONS = (
    RejectionCount(
        rule="batch_divides",
        count=1200,
        example="global_batch_size 1024 is not divisible by data_parallel_size 64 x micro_batch_size 32 = 2048",
        fix="a smaller micro batch",
    ),
    RejectionCount(rule="memory", count=345, example="needs 131 GiB, the device has 80 GiB", fix="more sharding"),
)


def sample_guide() -> Guide:
    return Guide(
        branch="several nodes, fast network",
        steps=(
            GuideStep(
                question="Does the model fit one device?",
                answer="no",
                numbers={"needed_bytes": 1130 * GIB, "capacity_bytes": 80 * GIB},
                source="transformers docs, perf_train_gpu_many",
            ),
            GuideStep(
                question="Is the network between nodes fast?",
                answer="yes",
                numbers={"crossover_bytes_per_second": 12.5e9, "link_bytes_per_second": 400e9},
                source="transformers docs, perf_train_gpu_many",
            ),
        ),
        options=(
            GuideOption(
                rank=1,
                strategy="ZeRO",
                reason="it needs almost no change to the model",
                model_code_change="none",
                step_time_seconds=9.5,
                plan_summary="zero3 dp64",
            ),
            GuideOption(
                rank=2,
                strategy="PP + TP + DP",
                reason="less communication",
                model_code_change="massive",
                step_time_seconds=8.0,
                plan_summary="tp4 pp4 dp4",
            ),
        ),
        agrees=False,
        disagreement="the guide puts ZeRO first (9.5 s); the search found 8 s with PP + TP + DP",
    )


def sample_recommendation() -> Recommendation:
    certificate = Certificate(
        space=SPACE,
        candidates=2000,
        rejected_by_rule=1200,
        rejected_by_memory=345,
        pruned_by_bound=400,
        evaluated=55,
        upper_seconds=8.0,
        lower_seconds=7.6,
        gap=0.05,
        search_seconds=0.42,
        statement="optimal over the declared space under this cost model, gap 5.0%",
    )
    best = sample_plan()
    return Recommendation(
        best=best,
        alternatives=(
            sample_plan(8.4, tensor_parallel_size=8, pipeline_parallel_size=2),
            sample_plan(9.5, data_parallel_shard_size=4, num_model_chunks=2, pipeline_schedule="interleaved_1f1b"),
        ),
        ties=("tp4 pp4 dp4",),
        rejections=REJECTIONS,
        certificate=certificate,
        guide=sample_guide(),
        neighbours=(
            Neighbour(axis="tensor_parallel_size", value="8", step_time_seconds=8.4, slowdown=0.05),
            Neighbour(axis="tensor_parallel_size", value="2", rejection="needs 131 GiB, the device has 80 GiB"),
        ),
        warnings=("dropout 0.1 of the model is set to 0",),
        duration=TrainingDuration(
            total_tokens=300_000_000_000, num_steps=35763, seconds=35763 * 8.0, device_hours=35763 * 8.0 * 64 / 3600
        ),
    )


def sample_infeasible() -> Infeasible:
    return Infeasible(
        rejections=REJECTIONS,
        nearest_miss=NearestMiss(
            plan_summary="tp8 pp8 dp1",
            needed_bytes=131 * GIB,
            capacity_bytes=80 * GIB,
            terms=(MissTerm(name="parameters", bytes=60 * GIB), MissTerm(name="optimizer_state", bytes=71 * GIB)),
            fixes=("use at least 2 times as many devices", "use the optimizer sgd"),
        ),
        space=SPACE,
        guide=sample_guide(),
    )


def sample_comparison() -> Comparison:
    return Comparison(
        source="measured run",
        fields=(
            FieldComparison(
                name="step_time_seconds",
                predicted=8.0,
                observed=10.0,
                relative_error=-0.2,
                tolerance=0.5,
                passed=True,
                evidence="formula",
            ),
            FieldComparison(
                name="peak_memory_bytes",
                predicted=40 * GIB,
                observed=38 * GIB,
                relative_error=0.0526,
                tolerance=0.1,
                passed=True,
            ),
        ),
        passed=True,
    )


def sample_site() -> SiteProfile:
    return SiteProfile(
        device="A100-SXM-80GB",
        runtime="megatron",
        num_devices=16,
        num_nodes=2,
        efficiency=RateCorrection(value=0.8, uncertainty=0.03),
        launch=LaunchCorrection(value=1.5, uncertainty=0.4),
        overlap=OverlapCorrection(value=-0.25, uncertainty=0.1),
        memory_margin=MemoryCorrection(value=1.1, uncertainty=0.05),
        scatter=0.04,
        error_band=0.06,
        runs=(
            SiteRun(id="run-1", measured_seconds=10.0, error_before=-0.2, error_after=-0.02),
            SiteRun(id="run-2", measured_seconds=12.0, error_before=-0.18, error_after=0.01),
        ),
        created="2026-01-31",
        constants_version="0123456789ab",
        meshwright_version="0.1.0",
    )


def sample_objective() -> Objective:
    miss = NearestMiss(
        plan_summary="tp4 pp2 dp1 mb1 m128 1f1b full",
        needed_bytes=96 * GIB,
        capacity_bytes=80 * GIB,
        terms=(MissTerm(name="activations", bytes=96 * GIB),),
        fixes=("use 16 devices",),
    )
    return Objective(
        name="devices",
        value=16,
        bound=16,
        gap=0.0,
        statement="16 devices of 16: none of the 2 smaller numbers tried holds a plan that fits; among plans on 16 the fastest, "
        "gap 5.00%",
        trials=(
            Trial(value=4, candidates=20, fits=False, reason="no sizes of the space multiply to it"),
            Trial(value=8, candidates=200, fits=False, plan_summary=miss.plan_summary, needed_bytes=miss.needed_bytes),
            Trial(
                value=16,
                candidates=2000,
                fits=True,
                lower_seconds=7.6,
                step_time_seconds=8.0,
                plan_summary="tp4 pp4 dp1 mb1 m128 1f1b full",
                needed_bytes=64 * GIB,
            ),
        ),
        nearest_miss=miss,
    )


def sample_maximum() -> Maximum:
    miss = NearestMiss(
        plan_summary="tp8+sp pp2 dp1 mb1 m128 1f1b full",
        needed_bytes=81 * GIB,
        capacity_bytes=80 * GIB,
        terms=(MissTerm(name="activations", bytes=81 * GIB),),
        fixes=("set sequence_length to 8192",),
    )
    return Maximum(
        quantity="sequence_length",
        value=8192,
        next_value=9216,
        statement="8,192 tokens, in steps of 1024: 9,216 does not fit (12 lengths tried; longer ones need more memory)",
        trials=(
            Trial(
                value=8192, candidates=2000, fits=True, lower_seconds=7.6, step_time_seconds=8.0, needed_bytes=72 * GIB
            ),
            Trial(
                value=9216, candidates=2000, fits=False, plan_summary=miss.plan_summary, needed_bytes=miss.needed_bytes
            ),
        ),
        granularity=1024,
        nearest_miss=miss,
    )


def sample_scaling(price: float | None = 2.5) -> Scaling:
    """Twice and four times the devices at 80% and 50% efficiency; nothing fits on one node."""
    rates = {2: 100_000.0, 4: 160_000.0, 8: 200_000.0}
    miss = sample_objective().nearest_miss
    points = [
        ScalingPoint(num_nodes=1, num_devices=8, global_batch_size=1024, reason="no plan fits", nearest_miss=miss)
    ]
    for nodes, rate in rates.items():
        devices, before = 8 * nodes, rates.get(nodes // 2)
        cost = None if price is None else price * devices * 1e9 / rate / 3600
        points.append(
            ScalingPoint(
                num_nodes=nodes,
                num_devices=devices,
                global_batch_size=1024,
                best=sample_plan(),
                plan_summary=f"tp8+sp pp1 dp{nodes} (zero1) mb2 m{512 // nodes} full",
                step_time_seconds=1024 * 8192 / rate,
                lower_seconds=1024 * 8192 / rate,
                tokens_per_second=rate,
                tokens_per_second_per_device=rate / devices,
                efficiency=rate / devices / 6250,
                marginal_efficiency=None if before is None else (rate - before) / (devices / 2) / 6250,
                cost_per_billion_tokens=cost,
                cost=None if cost is None else 300 * cost,
                training_seconds=300e9 / rate,
            )
        )
    return Scaling(
        batch="fixed",
        points=tuple(points),
        marginal_efficiency_wanted=0.5,
        stops_paying_at=8,
        cheapest=2,
        price_per_device_hour=price,
        total_tokens=300 * 10**9,
        statement="more nodes stop paying at 8: the nodes added there bring 20% of their ideal tokens/s, less than the 50% "
        "wanted; the lowest cost per token is on 2 nodes",
        warnings=("on 2, 4, 8 nodes: only nominal rates of InfiniBand NDR 400G are known",),
    )
