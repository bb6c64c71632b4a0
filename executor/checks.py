"""What is asked of a plan before anything is started. No torch here: the launcher asks first."""

from __future__ import annotations

from pathlib import Path

from costmodel.runtimes.rules import check
from costmodel.specs import InputError, Plan, Rejection
from executor.data import GlobalBatches, Tokens
from executor.token_files import is_token_file
from executor.tokenize import load_tokens, read_documents

_DROPOUT_FIELDS = (
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "attention_dropout",
    "hidden_dropout",
    "dropout",
    "layerdrop",
)


def find_lack(plan: Plan) -> Rejection | None:
    """What this executor lacks for a plan that keeps every rule of its runtime, or None."""
    if plan.training.precision.compute == "fp16":
        return Rejection(
            rule="executor_fp16",
            message="fp16 training needs dynamic loss scaling, which does not exist yet",
            numbers={"precision": "fp16"},
            fix="use bf16 or fp32",
        )
    if (size := plan.parallel.context_parallel_size) > 1:
        return Rejection(
            rule="executor_context_parallel",
            message=f"context parallelism (context_parallel_size {size}) is predicted, but cannot be run yet",
            numbers={"context_parallel_size": size},
            fix="set context_parallel_size to 1",
        )
    if (chunks := plan.training.loss_chunks) > 1:
        return Rejection(
            rule="executor_loss_chunks",
            message=f"a loss over chunks of the sequence (loss_chunks {chunks}) is predicted, but cannot be run yet",
            numbers={"loss_chunks": chunks},
            fix="set loss_chunks to 1",
        )
    if (recipe := plan.training.precision.fp8_recipe) is not None:
        return Rejection(
            rule="executor_fp8",
            message=f"fp8 training ({recipe} scaling) is predicted, but cannot be run yet",
            numbers={"fp8_recipe": recipe},
            fix="use bf16 or fp32",
        )
    return None


def check_runnable(plan: Plan) -> None:
    """Make sure that this executor can run the plan.

    Raises:
        InputError: when the plan is another framework's, needs what the executor lacks, or breaks a rule.
    """
    if plan.runtime.name != "torch":
        raise InputError(
            f"the plan is for the runtime {plan.runtime.name!r}; only plans for 'torch' can be run here: "
            "plan again with --runtime torch, or export this plan"
        )
    if (lack := find_lack(plan)) is not None:
        raise InputError(f"{lack.message}: {lack.fix}")
    rejections = check(plan)
    if rejections:
        reasons = (f"{each.rule}: {each.message}{'; ' + each.fix if each.fix else ''}" for each in rejections)
        raise InputError("the plan cannot be run: " + " | ".join(reasons))


def check_data(plan: Plan, path: Path | None) -> None:
    """Make sure that the data are readable and, where no tokenizer has to be loaded, that they fill a batch.

    Raises:
        InputError: see `read_documents`, `load_tokens` and `GlobalBatches`.
    """
    token_file = path is not None and is_token_file(path)
    if (
        plan.model.tokenizer_path is not None and not token_file
    ):  # loading it takes seconds; the processes check its tokens
        read_documents(path)
        return
    make_batches(plan, load_tokens(plan.model, path), plan.training.seed)


def make_batches(plan: Plan, tokens: Tokens, seed: int) -> GlobalBatches:
    """The global batches of a plan's training; errors as `GlobalBatches`."""
    training, vocab_size = plan.training, plan.model.vocab_size
    return GlobalBatches(tokens, training.sequence_length, training.global_batch_size, seed, vocab_size)


def notices(plan: Plan) -> tuple[str, ...]:
    """What the user should know about how the plan is run, one sentence each."""
    dropout = [name for name in _DROPOUT_FIELDS if plan.model.hf_config.get(name)]
    if not dropout:
        return ()
    found = ", ".join(f"{name} {plan.model.hf_config[name]}" for name in dropout)
    return (f"dropout is not supported yet: {plan.model.name} is trained with 0 instead of {found}",)
