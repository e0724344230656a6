"""Hostfiles, Slurm's node lists, and commands that arrive on another host as they were meant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.plans import LAPTOP, SMALL, plan_of, run_of
from headway.cli.main import main
from headway.errors import ConfigError, UserError
from headway.launch.commands import rank_environment
from headway.launch.hostfile import Host, parse_host, parse_hostfile, read_hostfile
from headway.launch.nodelist import expand_nodelist
from headway.launch.remote import remote_command, ssh_command
from headway.launch.seam import JobSpec

CASES = Path(__file__).parents[1] / "cases"


def test_lnc_01_a_bad_line_is_shown_with_its_text() -> None:
    with pytest.raises(ConfigError) as caught:
        read_hostfile(CASES / "lnc-01" / "hostfile")
    said = str(caught.value)
    assert "hostfile:2: hostfile = 'gpu-b lots=4': 'lots=4' is not slots=N" in said
    assert "{" not in said


def test_lnc_03_layout_is_nothing() -> None:
    assert [str(host) for host in read_hostfile(CASES / "lnc-03" / "hostfile")] == ["gpu-a:2", "gpu-b:4", "gpu-c:1"]


def test_lnc_05_a_hostfile_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never a start on this machine alone."""
    assert main(["doctor", "--hostfile", f"{tmp_path}/sub/../hosts.txt"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/sub/../hosts.txt" in said
    assert "there is no such file" in said


def test_every_line_that_is_wrong_is_named_at_once() -> None:
    text = (
        "a slots=2\nb\nc slots=two\nd slots=4x\na slots=2\ne slots=1 max=2\n-f slots=1\ng:0 slots=1\nh slots=0\ni "
        "xslots=4"
    )
    with pytest.raises(ConfigError) as caught:
        parse_hostfile(text, "hosts")
    lines = [problem.where for problem in caught.value.problems]
    assert lines == [f"hosts:{number}" for number in range(2, 11)]
    assert "a stands on line 1 already" in str(caught.value)
    with pytest.raises(ConfigError, match="names no host"):
        parse_hostfile("# nobody\n\n", "hosts")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "::1"),
        ("10.0.0.7", "[::ffff:10.0.0.7]"),
        ("[2001:db8::7]", "2001:0db8:0::7"),
        ("gpu-a.", "GPU-A"),
    ],
)
def test_one_host_by_two_writings(first: str, second: str) -> None:
    with pytest.raises(ConfigError, match="stands on line 1 already"):
        parse_hostfile(f"{first} slots=1\n{second} slots=1", "hosts")


def test_this_machine_among_several_hosts_by_a_name_that_means_each() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_hostfile("gpu-a slots=1\nlocalhost slots=1", "hosts")
    assert [problem.where for problem in caught.value.problems] == ["hosts:2"]
    assert [host.name for host in parse_hostfile("localhost slots=2", "hosts")] == ["localhost"]


@pytest.mark.parametrize("text", ["a[1-2],a[2-3]", "n[1-99999]x[1-99999]", "n[\u0661-\u0663]"])
def test_node_lists_that_name_a_host_twice_or_too_many(text: str) -> None:
    with pytest.raises(UserError):
        expand_nodelist(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node1", Host("node1")),
        ("me@node1.example.org:2222", Host("node1.example.org", 1, "me", 2222)),
        ("10.0.0.7", Host("10.0.0.7")),
        ("fe80::1%eth0", Host("fe80::1%eth0")),
        ("me@[2001:db8::7]:22", Host("2001:db8::7", 1, "me", 22)),
        ("[2001:db8::7]", Host("2001:db8::7")),
    ],
)
def test_users_ports_and_addresses(text: str, host: Host) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        *("", "a b@c", "node1:", "node1:70000", "[node1]:22", "$(reboot)", "-oProxyCommand=x", "a/b"),
        *("12345::1", "999.1.1.1", "1.2.3", "fe80::1%$(reboot)", "a..b", "node1:\u00b2", "::::", "a" * 64),
    ],
)
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|no IPv6"):
        parse_host(text)


@pytest.mark.parametrize(
    "text",
    [
        "n1 slots=1\nN1 slots=1",
        "n1 slots=1\nme@n1.:22 slots=1",
        "fe80::1 slots=1\n[FE80:0::1] slots=1",
        "n1 slots=\u0664",  # a digit, though none that DeepSpeed or ssh reads
        "n1 slots=99999999999999999999",
        "n1\tslots=4 max_slots=8",
    ],
)
def test_one_host_in_two_writings_and_numbers_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_hostfile(text, "hosts")
    assert [problem.where for problem in caught.value.problems] == [f"hosts:{text.count(chr(10)) + 1}"]


def test_lnc_09_node_lists() -> None:
    for text, names in json.loads((CASES / "lnc-09" / "nodelists.json").read_text()).items():
        assert expand_nodelist(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a[1-2]b[3-4],c", ["a1b3", "a1b4", "a2b3", "a2b4", "c"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1,3-4]-ib", ["n1-ib", "n3-ib", "n4-ib"]),
    ],
)
def test_more_node_lists(text: str, names: list[str]) -> None:
    assert expand_nodelist(text) == names


@pytest.mark.parametrize("text", ["", "n[1-", "n]1[", "n[4-2]", "n[a]", "n[[1]]", "n[0-9999999]"])
def test_what_is_no_node_list(text: str) -> None:
    with pytest.raises(UserError, match="nodelist"):
        expand_nodelist(text)


def test_lnc_07_variables_arrive_byte_for_byte() -> None:
    given = json.loads((CASES / "lnc-07" / "env.json").read_text())
    given |= {"QUOTES": "a'b\"c`d", "LINES": "one\ntwo\t$HOME \\ *", "EMPTY": "", "UNICODE": "näh 中"}
    show = "import json, os, sys; print(json.dumps([{k: os.environ[k] for k in sys.argv[2:]}, sys.argv[1]]))"
    line = remote_command([sys.executable, "-c", show, "a 'word' $X", *given], given)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [given, "a 'word' $X"]
    with pytest.raises(ValueError, match="cannot be passed"):
        remote_command(["true"], {"A B": "x"})


def test_the_words_of_ssh() -> None:
    words = ssh_command(Host("2001:db8::7", 1, "me", 2222), "true", ["-F", "cfg"])
    assert words[-6:] == ["cfg", "-p", "2222", "--", "me@2001:db8::7", "true"]
    assert "BatchMode=yes" in words  # never a question for a password in the middle of a check


def test_lnc_11_a_port_that_is_none_is_refused_in_the_run_file() -> None:
    with pytest.raises(ConfigError, match=r"launch\.port") as caught:
        run_of(SMALL, "launch.port=70000")
    assert "65535" in str(caught.value)


def test_debugging_and_grace_reach_the_ranks() -> None:
    plan = plan_of(SMALL, LAPTOP, "launch.debug=true", "launch.grace=90 s")
    assert plan.launch.grace_seconds == 90
    variables = rank_environment(JobSpec(Path("run"), plan.launch), 0, 29500)
    assert (variables["NCCL_DEBUG"], variables["TORCH_DISTRIBUTED_DEBUG"]) == ("INFO", "DETAIL")
    quiet = rank_environment(JobSpec(Path("run"), plan_of(SMALL, LAPTOP).launch), 0, 29500)
    assert not {"NCCL_DEBUG", "TORCH_DISTRIBUTED_DEBUG"} & set(quiet)


def test_words_that_would_be_left_unread(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--all-reduce"]) == 2
    assert "--all-reduce: of which hosts?" in capsys.readouterr().err
    assert main(["doctor", "--script", "train.py", "--hosts", "a,b"]) == 2
    assert "--script and --hosts are looked at one by one" in capsys.readouterr().err
    assert main(["doctor", "--hosts", "a,b", "--port", "70000"]) == 2
    assert "1 to 65535" in capsys.readouterr().err
    assert main(["doctor", "--hosts", "a,-b"]) == 2
    assert "'-b' is no host's name" in capsys.readouterr().err
