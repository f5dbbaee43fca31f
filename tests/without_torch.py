"""Tests that need torch skip where it is not installed; a plugin of pytest that tests/conftest.py names."""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec

import pytest

WITHOUT_TORCH = find_spec("torch") is None
REASON = "needs torch: pip install torch"

#: Mark a test that needs torch in another process. A test that needs it in its own skips without a mark.
needs_torch = pytest.mark.skipif(WITHOUT_TORCH, reason=REASON)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module of tests that imports torch, itself or through a helper."""
    report = yield
    if WITHOUT_TORCH and report.failed and "ModuleNotFoundError: No module named 'torch'" in report.longreprtext:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: {REASON}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test, or what its fixtures prepare, that ends because torch can't be imported."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if WITHOUT_TORCH and isinstance(error, ModuleNotFoundError) and error.name == "torch":
        report.outcome, report.longrepr = "skipped", (str(item.path), (item.location[1] or 0) + 1, f"Skipped: {REASON}")
    return report
