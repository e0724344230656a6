"""The one fork server of a test process, ended where the next tests need another."""

from __future__ import annotations

from multiprocessing import forkserver

from headway.launch import forkserver as ours


def stop_fork_server() -> None:
    """The next fork starts a server anew, with the imports that are asked for then."""
    forkserver._forkserver._stop()  # pyright: ignore
    ours._folder = None
