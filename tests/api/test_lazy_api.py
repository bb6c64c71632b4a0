"""`import meshwright` costs nothing, and every public name is there."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import meshwright

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "numpy", "typer", "rich", "pydantic", "pulp", "highspy", "yaml")


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_after("import meshwright") & set(HEAVY)


def test_planning_loads_no_torch() -> None:
    code = "from meshwright.planning import plan; import planner.search, planner.space, meshwright.exporters"
    assert not loaded_after(code) & {"torch", "transformers", "pulp", "typer"}


@pytest.mark.parametrize("name", meshwright.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(meshwright, name) is not None
    assert name in dir(meshwright)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = meshwright.colour


def test_public_names_are_documented() -> None:
    for name in meshwright.__all__:
        if callable(getattr(meshwright, name)):
            assert (getattr(meshwright, name).__doc__ or "").strip(), name


def test_the_version_is_the_distribution_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert meshwright.__version__ == project["version"]


def test_every_package_is_marked_as_typed() -> None:
    for package in ("meshwright", "planner", "costmodel", "hardware_profiles", "executor"):
        assert (ROOT / package / "py.typed").exists()
