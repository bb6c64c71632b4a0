"""Tables that remember their rows say what a table of all rows says, whatever was asked before."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from time_worlds import cluster, llama, training

from costmodel import pass_tables
from costmodel.layers import MicroBatch
from costmodel.memo import Content, Identical
from costmodel.pass_tables import PassTables, inner_groups
from costmodel.runtimes.loader import load_runtime
from costmodel.tables import PassTable, pass_table

MODEL, RUNTIME, CLUSTER = llama(), load_runtime("torch"), cluster()
TRAINING = training(RUNTIME, batch=64)


def micro_batch(rng: np.random.Generator, rows: int) -> MicroBatch:
    """Rows of few values, so that many are equal."""
    two, zero_or_one = (rng.choice(np.array(values), rows) for values in ((1.0, 2.0), (0.0, 1.0)))
    return MicroBatch(
        sequences=rng.choice(np.array([1.0, 2.0, 4.0]), rows), sequence_length=TRAINING.sequence_length,
        tensor_parallel=2.0 * two, sequence_parallel=zero_or_one, loss_parallel=zero_or_one, wrapped=np.ones(rows),
        forward_collectives=zero_or_one, backward_collectives=two, context_parallel=two,
        context_method=(two > 1).astype(np.int64), weight_casts=np.ones(rows),
    )  # fmt: skip


def at_once(tables: PassTables, batch: MicroBatch, devices: np.ndarray) -> PassTable:
    """The table of all rows, equal or not."""
    tensor, context = inner_groups(tables.net, tables.stack, batch, devices)
    return pass_table(
        MODEL, TRAINING, batch=batch, ceiling=tables.ceiling, tensor_group=tensor, context_group=context, stack=tables.stack
    )  # fmt: skip


def check_equal(found: PassTable, wanted: PassTable) -> None:
    for field in fields(PassTable):
        np.testing.assert_allclose(getattr(found, field.name), getattr(wanted, field.name), rtol=1e-13)


def test_rows_asked_for_in_pieces_are_those_of_one_table(monkeypatch):
    """Also after all were forgotten, which happens here with every other question."""
    monkeypatch.setattr(pass_tables, "_MOST_ROWS", 20)
    tables, rng = PassTables(MODEL, TRAINING, CLUSTER, RUNTIME), np.random.default_rng(0)
    for rows in (1, 7, 300, 2, 40):
        batch, devices = micro_batch(rng, rows), rng.choice(np.array([8.0, 16.0]), rows)
        check_equal(tables.of(batch, devices), at_once(tables, batch, devices))


def test_every_row_is_computed_once(monkeypatch):
    asked: list[int] = []

    def counted(*arguments, batch, **others):
        asked.append(len(batch.tokens))
        return pass_table(*arguments, batch=batch, **others)

    monkeypatch.setattr(pass_tables, "pass_table", counted)
    tables, rng = PassTables(MODEL, TRAINING, CLUSTER, RUNTIME), np.random.default_rng(1)
    batch, devices = micro_batch(rng, 500), np.full(500, 8.0)
    tables.of(batch, devices)
    tables.of(batch, devices)
    columns = [column for column in vars(batch).values() if isinstance(column, np.ndarray) and column.shape == (500,)]
    assert asked == [len(np.unique(np.stack(columns), axis=1).T)]


def test_keys_are_found_by_identity_and_by_content():
    other = MODEL.model_copy()
    assert Identical(MODEL) == Identical(MODEL) != Identical(other)
    ones = np.ones(4)
    assert Content(ones, 2 * ones) == Content(ones.copy(), ones + ones)
    assert hash(Content(ones)) == hash(Content(ones.copy()))
    for different in (
        Content(ones),
        Content(ones, ones),
        Content(ones.reshape(2, 2), 2 * ones),
        Content(ones, ones.astype(np.int64)),
    ):
        assert Content(ones, 2 * ones) != different
