"""The base of every spec and the two exceptions a user meets.

Both live in the lowest room so that every other room can use them without importing upwards.
"""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Frozen data without logic: unknown keys, NaN and infinities are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class InputError(ValueError):
    """Wrong input by the user; the command line prints the message and exits with code 2.

    The message says what is wrong, the value found, the value needed and the valid alternatives.
    """


class ExecutionError(RuntimeError):
    """A run that was started and failed; the command line prints the message and exits with code 1.

    The message names the process (rank) and the cause.
    """
