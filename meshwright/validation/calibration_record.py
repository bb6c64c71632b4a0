"""What a calibration leaves behind: constants, and errors on data that their fit had not seen.

``benchmarks/calibrate_constants.py`` writes the file and the report of `replay` prints it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt, ValidationError

from costmodel.specs import InputError
from hardware_profiles.errors import explain_validation_error
from meshwright.files import read_document


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class FoldErrors(_Part):
    """Relative errors of the step times of some rows; None where there is none.

    ``runtime_known``: whether most rows are of runtimes that the fit had seen in other datasets; None of all datasets
    together.
    """

    rows: NonNegativeInt
    median: float | None = None
    mean: float | None = None
    bias: float | None = None
    within_20_percent: float | None = None
    runtime_known: bool | None = None


class Constant(_Part):
    """One fitted number: what it belongs to (an accelerator family or a runtime; nothing: all), bounds, prior, uncertainty."""

    name: str
    owner: str | None = None
    value: float
    prior: float | None = None
    low: float | None = None
    high: float | None = None
    uncertainty: float | None = None


class CalibrationRecord(_Part):
    """Errors by dataset and of ``all``, and constants. ``bands``: where the intervals come from, one mapping a line."""

    date: str
    in_sample: dict[str, FoldErrors] = {}
    leave_one_dataset_out: dict[str, FoldErrors] = {}
    five_fold: dict[str, FoldErrors] = {}
    constants: tuple[Constant, ...] = ()
    bands: tuple[dict[str, JsonValue], ...] = ()


def load_calibration_record(path: str | Path) -> CalibrationRecord:
    """The record that a file holds.

    Raises:
        InputError: when the file cannot be read or is no such record.
    """
    content = read_document(path, what="calibration record")
    try:
        return CalibrationRecord.model_validate(content)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, f"calibration record {path}", CalibrationRecord)) from error
