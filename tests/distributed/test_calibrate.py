"""`headway calibrate` on this machine: two real ranks, small settings, a file that a plan then uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.api import calibrating
from headway.api.learning import promise
from headway.cli.main import main
from headway.facts.clusterfile import read_cluster

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

# hidden, layers, ffn, vocabulary, sequence, micro batch, accumulation
TINY = (
    (64, 2, 128, 512, 32, 2, 1),
    (64, 2, 128, 512, 32, 2, 2),
    (128, 2, 256, 512, 64, 2, 1),
    (64, 4, 128, 512, 32, 1, 1),
)


def test_a_measured_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrating, "_ON_CPU", TINY)
    monkeypatch.setattr(calibrating, "_SHARDED_ON_CPU", (0,))
    assert main(["calibrate", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "GFLOP/s" in out
    assert "headway plan run.yaml" in out
    file = read_cluster(Path(".headway/cluster.yaml"))
    rates = file.rates
    assert rates is not None
    # Any machine of the last twenty years, however loaded, lies between.
    assert 1e8 < rates.matmul_flops < 1e13
    assert 1e7 < rates.copy_bytes_per_second < 1e12
    assert rates.link_bytes_per_second is not None
    assert rates.link_bytes_per_second > 1e5
    assert any((rates.layer_flops, rates.stream_bytes_per_second, rates.layer_seconds))
    assert not list(Path().glob(".headway-rate-*"))
    plan = calibrating.setting_plan(file.facts(), TINY[0])
    assert promise(plan)["measured"] == file.measured
