"""A real MLflow tracking server on this machine: `mlflow server` with its accounts, its store and its artifacts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fakes.jobs import wait_for
from fakes.trackers import empty_store

# What mlflow-skinny leaves out of its own server: the extra dev brings it.
_NEEDED = ("aiohttp", "flask_wtf", "flask_cors", "cryptography", "pandas", "sqlalchemy", "alembic", "uvicorn")
_START_SECONDS = 120  # 5 s on an idle machine
_ACCOUNTS = """[mlflow]
default_permission = READ
database_uri = sqlite:///accounts.db
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 3600
"""


class MlflowServer:
    """Started when made; `kill` and `start` take it away and bring it back with what it holds.

    user, password: of its first account, who may do everything.
    """

    def __init__(self, folder: Path, shared: Path):
        missing = [name for name in ("mlflow", *_NEEDED) if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"no MLflow server here: not installed are {', '.join(missing)}")
        folder.mkdir(parents=True)
        self.folder, self.user, self.password = folder, "ada", secrets.token_urlsafe(24)
        shutil.copyfile(empty_store(shared), folder / "mlflow.db")
        # Each request's password would be hashed anew, a tenth of a second each.
        (folder / "accounts.ini").write_text(_ACCOUNTS)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """What a client's environment holds."""
        return {"MLFLOW_TRACKING_USERNAME": self.user, "MLFLOW_TRACKING_PASSWORD": self.password}

    def start(self) -> None:
        """Returns when it answers."""
        words = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        words += ["--workers", "1", "--app-name", "basic-auth"]
        words += ["--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}"]
        words += ["--artifacts-destination", str(self.folder / "artifacts")]
        own = {
            "MLFLOW_AUTH_ADMIN_USERNAME": self.user,
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.password,
            "MLFLOW_AUTH_CONFIG_PATH": str(self.folder / "accounts.ini"),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "of a test's server",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words,
                cwd=self.folder,  # where it keeps its accounts
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._answers, f"the MLflow server, see {self.folder / 'log'}", _START_SECONDS)

    def kill(self) -> None:
        """As a machine that goes away."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"the MLflow server ended: {(self.folder / 'log').read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
