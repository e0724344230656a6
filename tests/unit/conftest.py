"""What unit tests share."""

from __future__ import annotations

import pytest


@pytest.fixture
def probe_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are probed in this process, which has torch imported already."""
    from fakes.probing import IN_THIS_PROCESS

    monkeypatch.setattr("headway.facts.shape.subprocess", IN_THIS_PROCESS)
