"""The import contracts name every module they must: a new physics module is not forgotten."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_executor_is_kept_from_every_physics_module() -> None:
    contracts = CONFIG["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if each.get("source_modules") == ["executor"]]
    physics = {f"costmodel.{path.stem}" for path in (ROOT / "costmodel").glob("*.py") if path.stem != "__init__"}
    assert set(contract["forbidden_modules"]) == physics | {"costmodel.models"}


def test_the_wheel_lists_its_packages() -> None:
    packages = CONFIG["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(packages) == ["costmodel", "executor", "hardware_profiles", "meshwright", "planner"]
