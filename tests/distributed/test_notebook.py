"""The notebook in examples/ is executed, cell by cell, in a kernel."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headway.run.paths import list_runs
from headway.run.summary import summarise

ROOT = Path(__file__).parents[2]
ABSENT = [name for name in ("nbclient", "ipykernel") if find_spec(name) is None]
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(ABSENT), reason=f"needs the packages {', '.join(ABSENT)} (extra dev)"),
]

# In a process of its own: a kernel's client keeps sockets and threads. Whatever kernels are installed, this Python.
EXECUTE = """
import sys, nbclient, nbformat
from jupyter_client.manager import KernelManager

manager = KernelManager()
manager.kernel_spec.argv[0] = sys.executable
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, km=manager, timeout=240).execute()
nbformat.write(notebook, "executed.ipynb")
"""


def executed(folder: Path, notebook: Path) -> list[dict[str, Any]]:
    """The code cells with their outputs."""
    command = [sys.executable, "-c", EXECUTE, str(notebook)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    cells = json.loads((folder / "executed.ipynb").read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def result(cell: dict[str, Any]) -> Any:
    """The value that the cell shows."""
    shown = ["".join(o["data"]["text/plain"]) for o in cell["outputs"] if o["output_type"] == "execute_result"]
    return ast.literal_eval("".join(shown))


def test_the_notebook_trains_goes_on_and_exports(tmp_path: Path) -> None:
    _, planned, trained, state, resumed, loaded = executed(tmp_path, ROOT / "examples" / "notebook.ipynb")
    assert "step" in "".join("".join(part.get("text", "")) for part in trained["outputs"])
    assert result(state) == ("done", 30)
    assert result(resumed) == 40
    [run] = list_runs(tmp_path / "runs")
    assert summarise(run).state == "done"
    assert result(loaded) == result(planned)[0]
