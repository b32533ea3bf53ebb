"""What all tests share: the repository's folder, short paths, silence, and a plain list of skips."""

import gc
import logging
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

# Collecting the tests makes millions of objects, and none of them is garbage.
gc.disable()

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Ignored in what a shell runs in the background, and so in all that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where workers share them, begin with the emulated machine, then with files of few tests.

    Those take long: at the end of a run one worker would be busy with such a file, and the others
    idle. And the folders are mixed by that: the tests of some mostly wait, and those of others
    mostly compute. Without workers the order is that in which they were asked for.
    """
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(item.path for item in items)
    items.sort(
        key=lambda item: (
            item.get_closest_marker("vm") is None,
            tests[item.path],
            item.path.name,
        )
    )


def pytest_collection_finish() -> None:
    """Look for garbage again from now on, but never among what the collection made."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of this checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is short: a unix socket's may have no more than 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Thousands of lines of the daemon's log would take longer than the stories."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what a green run must not hide: the tests that did not run, and those that had to be tried twice."""
    _tell_second_tries(terminalreporter)
    skipped = terminalreporter.getreports("skipped")
    if not skipped:
        terminalreporter.write_line("skipped: none")
        return
    terminalreporter.section("tests that did not run, and why")
    for report in skipped:
        # Usually (file, line, "Skipped: reason").
        told = report.longrepr
        reason = told[2] if isinstance(told, tuple) else str(told)
        terminalreporter.write_line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")


def _tell_second_tries(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.getreports("passed")
    twice = [(report, dict(report.user_properties).get("first_try")) for report in passed]
    if any(reason for _, reason in twice):
        terminalreporter.section("cases that failed at first and passed on a fresh machine")
    for report, reason in twice:
        if reason:
            terminalreporter.write_line(f"{report.nodeid}: {reason}")
