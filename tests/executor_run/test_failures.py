"""Many processes fail in one run; one is to blame."""

from pathlib import Path

import pytest

from costmodel.specs import ExecutionError, InputError
from executor.failures import Failure, describe, describe_agent, describe_exit, load, root_cause, save, to_exception
from executor.launch import describe_end

GLOO = "[/src/gloo/transport/tcp/pair.cc:144] Connection closed by peer [127.0.0.1]:3452"


def test_an_error_comes_before_the_connections_it_cost() -> None:
    lost = describe(RuntimeError(GLOO), rank=0)
    own = describe(ValueError("no space left"), rank=3)
    assert (lost.kind, own.kind) == ("peer", "failure")
    assert root_cause([lost, own]) == own
    assert str(own) == "rank 3: ValueError: no space left"


def test_a_killed_process_comes_before_lost_connections_and_stopped_ones() -> None:
    lost = describe(RuntimeError(GLOO), rank=0)
    stopped, killed = describe_exit(1, -15, 0.0), describe_exit(2, -9, 1.0)
    assert root_cause([stopped, lost, killed]) == killed
    assert str(killed).startswith("rank 2: the process was killed by SIGKILL")
    assert root_cause([stopped, lost]) == lost
    assert root_cause([]) is None


def test_a_lost_connection_is_told_without_the_library_s_source_place() -> None:
    assert str(describe(RuntimeError(GLOO), rank=0)) == (
        "rank 0: another process was lost or kept it waiting too long "
        "(RuntimeError: Connection closed by peer [127.0.0.1]:3452)"
    )


def test_only_the_first_line_is_told_and_the_traceback_is_kept() -> None:
    try:
        raise RuntimeError("first\n  second")
    except RuntimeError as error:
        failure = describe(error, rank=1)
    assert failure.cause == "RuntimeError: first"
    exception = to_exception(failure)
    assert isinstance(exception, ExecutionError)
    assert "test_failures.py" in exception.__notes__[0]


def test_bad_input_stays_bad_input_and_names_no_rank() -> None:
    failure = describe(InputError("vocab_size is 3"), rank=2)
    exception = to_exception(failure)
    assert isinstance(exception, InputError)
    assert str(exception) == "vocab_size is 3"


def test_nodes_that_never_met_are_told_without_a_rank() -> None:
    try:
        try:
            raise RuntimeError("The client socket has timed out after 600000ms\nframe #0: c10::Error")
        except RuntimeError as inner:
            raise ValueError("The connection to the store has failed. See inner exception") from inner
    except ValueError as error:
        failure = describe_agent(error)
    assert str(failure) == "the processes could not be started: The client socket has timed out after 600000ms"
    assert isinstance(to_exception(failure), ExecutionError)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-15, "the run was stopped by signal 15"),  # passed on by the launcher, before and after processes are there
        (143, "the run was stopped by signal 15"),
        (-9, "the process that starts the others was killed by signal 9"),
        (3, "the run ended with exit code 3"),
    ],
)
def test_how_the_agent_ended_is_told(code: int, said: str) -> None:
    assert describe_end(code) == said


def test_an_exit_code_is_told() -> None:
    assert str(describe_exit(4, 7, 0.0)) == "rank 4: the process ended with exit code 7"


def test_failures_survive_their_files_earliest_first(tmp_path: Path) -> None:
    late, early = Failure(0, "peer", "b", "trace", 2.0), Failure(1, "failure", "a", "", 1.0)
    save(late, tmp_path)
    save(early, tmp_path)
    assert load(tmp_path) == [early, late]


@pytest.mark.parametrize("code", [-9, -11, -6])
def test_every_signal_but_the_agent_s_own_is_a_cause(code: int) -> None:
    assert describe_exit(0, code, 0.0).kind == "killed"
