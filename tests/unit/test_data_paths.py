"""From paths of a run file to files: globs, folders, links, the standard library, and what is said of absent ones."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from headway.data.paths import expand, glob_pattern, locate
from headway.errors import DataError


@pytest.fixture
def base(tmp_path: Path) -> Path:
    names = ["corpus/b.txt", "corpus/a.txt", "corpus/deep/er/c.txt", "corpus/deep/d.md", "corpus/.hidden/e.txt"]
    for name in [*names, "corpus/.f.txt", "corpus/__pycache__/g.txt", "other/a[1].txt", "top.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def names(base: Path, *patterns: str, exclude: tuple[str, ...] = ()) -> list[str]:
    return [file.name for file in expand(patterns, base, exclude, "data.train")]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["corpus/**/*.txt"], ["corpus/a.txt", "corpus/b.txt", "corpus/deep/er/c.txt"]),
        (["corpus/*.txt"], ["corpus/a.txt", "corpus/b.txt"]),
        (["corpus"], ["corpus/a.txt", "corpus/b.txt", "corpus/deep/d.md", "corpus/deep/er/c.txt"]),
        (["corpus/"], ["corpus/a.txt", "corpus/b.txt", "corpus/deep/d.md", "corpus/deep/er/c.txt"]),
        (["**/*.md"], ["corpus/deep/d.md"]),
        (["*.txt"], ["top.txt"]),
        (["corpus/?.txt", "corpus/a.txt"], ["corpus/a.txt", "corpus/b.txt"]),
        (["corpus/[!a].txt"], ["corpus/b.txt"]),
        (["*/deep/*/*.txt"], ["corpus/deep/er/c.txt"]),
        (["other/a[1].txt"], ["other/a[1].txt"]),
        (["corpus/.f.txt"], ["corpus/.f.txt"]),
        (["corpus/.hidden/*"], ["corpus/.hidden/e.txt"]),
        (["./corpus/a.txt"], ["./corpus/a.txt"]),
    ],
)
def test_patterns(base: Path, patterns: list[str], expected: list[str]) -> None:
    assert names(base, *patterns) == expected


def test_order_does_not_depend_on_the_order_of_patterns(base: Path) -> None:
    one = names(base, "corpus/**/*.txt", "top.txt", "corpus/deep/*.md")
    assert one == names(base, "corpus/deep/*.md", "top.txt", "corpus/**/*.txt") == sorted(one)


def test_exclude_by_last_part_or_whole_name(base: Path) -> None:
    assert names(base, "corpus", exclude=("*.md",)) == ["corpus/a.txt", "corpus/b.txt", "corpus/deep/er/c.txt"]
    assert names(base, "corpus", exclude=("**/deep/**",)) == ["corpus/a.txt", "corpus/b.txt"]


def test_absolute_paths_and_parents(base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("else")
    assert names(elsewhere, f"{base}/corpus/*.txt") == [f"{base}/corpus/a.txt", f"{base}/corpus/b.txt"]
    assert names(base / "other", "../corpus/*.txt") == ["../corpus/a.txt", "../corpus/b.txt"]


def test_a_loop_of_links_ends_and_a_file_is_read_once(base: Path) -> None:
    (base / "corpus/deep/loop").symlink_to(base / "corpus")
    (base / "corpus/again.txt").symlink_to(base / "corpus/a.txt")
    os.link(base / "corpus/b.txt", base / "corpus/hard.txt")
    assert names(base, "corpus/**/*.txt") == ["corpus/a.txt", "corpus/b.txt", "corpus/deep/er/c.txt"]


def test_the_standard_library() -> None:
    found = names(Path("/"), "${stdlib}/*.py", "${stdlib}/json/*.py")
    assert {"${stdlib}/os.py", "${stdlib}/json/decoder.py"} <= set(found)
    assert locate("${stdlib}/os.py", Path("/nowhere")) == Path(sysconfig.get_paths()["stdlib"], "os.py")
    everything = names(Path("/"), "${stdlib}/**/*.py")
    assert not [name for name in everything if "site-packages" in name or "dist-packages" in name]


def problems(base: Path, *patterns: str) -> list[str]:
    with pytest.raises(DataError) as caught:
        expand(patterns, base, (), "data.train")
    return [str(problem) for problem in caught.value.problems]


def test_absent_paths_name_what_is_near_and_all_at_once(base: Path) -> None:
    first, second, third = problems(base, "corpsu/a.txt", "corpus/**/*.json", "corpus/aa.txt")
    assert "there is no 'corpsu'" in first
    assert "did you mean 'corpus'?" in first
    assert "names no file" in second
    assert "3 .txt, 1 .md" in second
    assert "did you mean 'a.txt'" in third


def test_an_absent_path_with_nothing_near_lists_the_folder(base: Path) -> None:
    (only,) = problems(base, "zzzz/**/*.txt")
    assert "relative to the run file's folder" in only
    assert "corpus, other, top.txt" in only


def test_an_empty_folder_says_so(base: Path) -> None:
    (base / "empty").mkdir()
    (only,) = problems(base, "empty")
    assert "holds no files" in only


@pytest.mark.parametrize(
    ("pattern", "matches", "misses"),
    [
        ("**/*.txt", ["a.txt", "x/a.txt", "x/y/a.txt"], ["a.txt.gz", "x/a.md"]),
        ("*.t[xy]t", ["a.txt", "a.tyt"], ["a.tzt", "x/a.txt"]),
        ("a.b", ["a.b"], ["aXb"]),
        ("x/**", ["x/a", "x/y/z"], ["y/a"]),
        ("[", ["["], ["a"]),
    ],
)
def test_globs(pattern: str, matches: list[str], misses: list[str]) -> None:
    compiled = glob_pattern(pattern)
    assert all(compiled.fullmatch(name) for name in matches)
    assert not any(compiled.fullmatch(name) for name in misses)


def test_a_home_that_nobody_has_is_an_absent_folder(base: Path) -> None:
    assert locate("~nobody-here/a.txt", base) == base / "~nobody-here/a.txt"
    with pytest.raises(DataError, match="there is no '~nobody-here'"):
        names(base, "~nobody-here/a.txt")


def test_what_is_there_but_is_no_file_is_not_called_absent(base: Path) -> None:
    os.mkfifo(base / "pipe")
    (base / "link").symlink_to("gone")
    for name, said in (
        ("pipe", "a device or a pipe"),
        ("/dev/zero", "a device or a pipe"),
        ("link", "a link to a file"),
    ):
        with pytest.raises(DataError, match=said):
            names(base, name)


def test_an_empty_path_is_not_the_whole_file_system(base: Path) -> None:
    with pytest.raises(DataError, match="names no file"):
        names(base, "")


def test_a_link_to_itself_is_passed_over(base: Path) -> None:
    (base / "corpus" / "loop").symlink_to("loop")
    assert "corpus/a.txt" in names(base, "corpus")
    with pytest.raises(DataError, match="is a link to a file that is not there"):
        names(base, "corpus/loop")
