"""One fork server for all tests of the claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.fork_server import stop_fork_server
from headway.launch.local import warm_up
from tests.certify.faults import Certifier


@pytest.fixture(scope="session")
def certifier(tmp_path_factory: pytest.TempPathFactory) -> Certifier:
    stop_fork_server()  # another test's may have nothing imported
    warm_up("cpu")
    return Certifier(tmp_path_factory.mktemp("certify"))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks find `tests.certify.plants` from the folder that they are started in."""
    monkeypatch.chdir(Path(__file__).parents[2])
