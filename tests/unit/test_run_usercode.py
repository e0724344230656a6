"""The user's own modules: found by reading, hashed, copied into the run, imported from there and from nowhere else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import ConfigError, PlanError
from headway.run.paths import RunDir
from headway.run.usercode import Named, copy_code, find_code, has_name, use_code

FILES = {
    "net_a.py": "import torch\nfrom parts_a import layer\nfrom pack_a.inner import thing\ndef make():\n    return 1\n",
    "parts_a.py": "from __future__ import annotations\nimport helper_a as other\nlayer = 1\n",
    "helper_a.py": "value = 1\n",
    "unused_a.py": "value = 2\n",
    "pack_a/__init__.py": "",
    "pack_a/inner.py": "from . import near\nfrom .near import near_thing\nthing = 3\n",
    "pack_a/near.py": "near_thing = 4\n",
    "pack_a/data.txt": "no module",
}


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "work"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before, modules = list(sys.path), set(sys.modules)
    yield folder
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def names(*paths: str) -> list[Named]:
    return [Named("model.factory", path) for path in paths]


def test_imports_are_followed_beneath_the_folder_and_nothing_is_imported(base: Path) -> None:
    (part,) = find_code(names("net_a:make"), base, search=[])
    assert set(part.files) == {
        *("net_a.py", "parts_a.py", "helper_a.py"),
        *("pack_a/__init__.py", "pack_a/inner.py", "pack_a/near.py"),
    }
    assert part.root == str(base.resolve())
    assert not part.installed
    assert "net_a" not in sys.modules


def test_the_run_files_folder_comes_before_the_search_path(base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "net_a.py").write_text("def make():\n    return 2\n")
    (other / "task_a.py").write_text("class Mine:\n    pass\n")
    first, second = find_code(names("net_a:make", "task_a:Mine"), base, search=[str(other)])
    assert (first.root, second.root) == (str(base.resolve()), str(other.resolve()))
    assert set(second.files) == {"task_a.py"}


def test_every_problem_is_named_at_once(base: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_code([*names("net_a:mke", "absent_a:make"), Named("task.kind", "__main__:Task")], base, search=[])
    said = [str(problem) for problem in caught.value.problems]
    assert len(said) == 3
    assert "did you mean make?" in said[0]
    assert f"no module absent_a in {base}" in said[1]
    assert "%%writefile" in said[2]


def test_a_file_that_is_not_python_is_named_with_its_line(base: Path) -> None:
    (base / "parts_a.py").write_text("x = 1\ndef (:\n")
    with pytest.raises(ConfigError, match=r"parts_a\.py:2"):
        find_code(names("net_a:make"), base, search=[])


def test_an_installed_package_is_recorded_and_not_imported_from_the_copy(tmp_path: Path) -> None:
    (part,) = find_code(names("colorsys:rgb_to_hsv"), tmp_path)
    assert part.installed
    assert list(part.files) == ["colorsys.py"]
    run = RunDir(tmp_path / "run")
    copy_code([part], run)
    assert (run.installed_code / "colorsys.py").is_file()
    before = list(sys.path)
    use_code([part], run)
    assert sys.path == before


def test_the_run_imports_its_own_copy_whatever_was_edited_since(base: Path, tmp_path: Path) -> None:
    code = find_code(names("net_a:make"), base, search=[])
    run = RunDir(tmp_path / "run")
    copy_code(code, run)
    (base / "helper_a.py").write_text("value = 1000\n")
    use_code(code, run)
    helper = importlib.import_module("helper_a")
    assert helper.value == 1
    assert helper.__file__ == str(run.code / "helper_a.py")
    assert importlib.import_module("unused_a").value == 2, "what was not found is imported from where it lies"
    assert has_name(code, "net_a", "make")
    assert not has_name(code, "net_a", "certify")


def test_an_edited_copy_is_refused(base: Path, tmp_path: Path) -> None:
    code = find_code(names("net_a:make"), base, search=[])
    run = RunDir(tmp_path / "run")
    copy_code(code, run)
    (run.code / "parts_a.py").write_text("layer = 7\n")
    with pytest.raises(PlanError, match=r"not what the plan was made with: parts_a\.py"):
        use_code(code, run)


def test_without_a_copy_the_folder_must_be_as_it_was(base: Path) -> None:
    code = find_code(names("net_a:make"), base, search=[])
    use_code(code, None)
    assert importlib.import_module("helper_a").value == 1
    (base / "helper_a.py").write_text("value = 1000\n")
    with pytest.raises(PlanError, match=r"helper_a\.py"):
        use_code(code, None)


def test_what_changes_while_it_is_copied_is_refused(base: Path, tmp_path: Path) -> None:
    code = find_code(names("net_a:make"), base, search=[])
    (base / "helper_a.py").write_text("value = 1000\n")
    with pytest.raises(PlanError, match="changed while"):
        copy_code(code, RunDir(tmp_path / "run"))


def test_another_runs_module_of_the_same_name_is_forgotten(base: Path, tmp_path: Path) -> None:
    code = find_code(names("helper_a:value"), base, search=[])
    first, second = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    copy_code(code, first)
    use_code(code, first)
    assert importlib.import_module("helper_a").value == 1
    (base / "helper_a.py").write_text("value = 5\n")
    changed = find_code(names("helper_a:value"), base, search=[])
    copy_code(changed, second)
    use_code(changed, second)
    assert importlib.import_module("helper_a").value == 5
