"""Golden texts: `golden(name, text)` compares with a committed file; `--update-golden` writes it.

Property-based tests draw the same examples in every run and may be slow, so that a verdict follows from the code alone;
`--hypothesis-profile default` draws others.
"""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    # Shells start background jobs with Ctrl-C ignored; tests of Ctrl-C hold there too.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with `golden/NAME` beside the test; trailing blanks of lines do not count."""
    folder = Path(request.path).parent / "golden"
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        text = re.sub(r"\b[0-9a-f]{12,64}\b", "<hash>", text)  # changes with every addition to a contract
        clean = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
        path = folder / name
        if update:
            folder.mkdir(exist_ok=True)
            path.write_text(clean, encoding="utf-8")
        assert path.exists(), f"{path} is missing; write it with --update-golden and read it"
        assert clean == path.read_text(encoding="utf-8"), f"{name} changed; look at it with --update-golden"

    return compare
