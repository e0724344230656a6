"""The checks of a machine, each against a fault that is planted; NVML and CUDA by fakes at their edge."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fakes.plans import A100_8, EXAMPLE, LAPTOP, SMALL, plan_of
from headway.check import environment, folder, gpus, host, machine, network, speed
from headway.check.building import build_ops
from headway.check.checks import MACHINE_CHECKS
from headway.check.doctor import _WITHOUT_A_PLAN
from headway.check.host import Machine, TorchBuild
from headway.check.importing import try_imports
from headway.check.report import Verdict
from headway.check.subject import Subject
from headway.cli.main import main
from headway.facts.nvml import GpuState, Nvml, read_nvml
from headway.plan.memory import used_bytes
from headway.plan.schema import Plan

GIB = 1024**3
H100 = GpuState(0, "NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB, temperature_celsius=40, uncorrected_errors=0)


def on(tmp_path: Path, *gpus: GpuState, several: bool = False, driver: str = "", **variables: str) -> Machine:
    """A machine with these GPUs and variables."""
    (tmp_path / "proc").mkdir(exist_ok=True)
    found = Nvml(driver or ("570.86.15" if gpus else ""), "12.8", gpus)
    given = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin"), **variables}
    return Machine(given, tmp_path, several, proc=tmp_path / "proc", sys=tmp_path / "sys", ask_nvml=lambda: found)


def with_torch(made: Machine, cuda: str) -> Machine:
    made.__dict__["torch"] = TorchBuild(f"2.13.0+{'cu' + cuda.replace('.', '') if cuda else 'cpu'}", cuda, Path())
    return made


def verdict(name: str, made: Machine) -> Verdict:
    return (MACHINE_CHECKS | _WITHOUT_A_PLAN)[name](name, made)


def several_gpus(*changes: dict[str, Any]) -> list[GpuState]:
    return [dataclasses.replace(H100, index=index, **change) for index, change in enumerate(changes)]


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_torchvision_of_another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    for name, needs in (("torchvision", "torch==2.4.1"), ("torchaudio", "torch==2.13.0")):
        info = site / f"{name}-0.19.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.19.1\nRequires-Dist: {needs}\n"
        )
    monkeypatch.syspath_prepend(str(site))
    found = verdict("pairs", on(tmp_path))
    assert found.level == "red"
    assert "torchvision 0.19.1 needs torch==2.4.1" in found.finding
    assert "torchaudio" not in found.finding
    assert found.fix == "pip uninstall -y torchvision"


def test_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", _absent)
    monkeypatch.setattr(host, "torch_build", lambda: None)
    assert verdict("pairs", on(tmp_path)).level == "red"
    assert verdict("cuda", on(tmp_path)).level == "red"


def _absent(package: str) -> str:
    raise metadata.PackageNotFoundError(package)


def test_torch_and_the_driver(tmp_path: Path) -> None:
    assert verdict("cuda", with_torch(on(tmp_path, H100), "")).level == "yellow"  # a CPU build beside a GPU
    assert verdict("cuda", with_torch(on(tmp_path), "")).level == "green"
    assert verdict("cuda", with_torch(on(tmp_path, H100), "12.8")).level == "green"
    old = verdict("cuda", with_torch(on(tmp_path, H100, driver="470.57.02"), "12.8"))
    assert old.level == "red"
    assert "525.60.13" in old.fix
    assert "driver 470.57.02" in old.evidence


def test_the_drivers_version_without_nvml(tmp_path: Path) -> None:
    made = dataclasses.replace(on(tmp_path), ask_nvml=lambda: Nvml(problem="the package nvidia-ml-py is not installed"))
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  450.51.05  Sun Jun 28\nGCC version: ..."
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert made.driver == "450.51.05"
    assert verdict("cuda", with_torch(made, "12.8")).level == "red"
    silent = verdict("gpu-health", made)
    assert (silent.level, silent.fix) == ("yellow", "pip install 'headway[gpu]'")


def test_nvcc_of_another_release(tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    made = with_torch(on(tmp_path, H100), "12.8")
    assert verdict("toolkit", made).level == "yellow"
    assert "no CUDA toolkit" in verdict("toolkit", made).finding
    nvcc = bin / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
    nvcc.chmod(0o755)
    found = verdict("toolkit", made)
    assert found.level == "red"
    assert "is 11.8, torch has 12.8" in found.evidence
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.6, V12.6.20'\n")
    assert verdict("toolkit", made).level == "green"
    assert "no bin/nvcc" in verdict("toolkit", with_torch(on(tmp_path, H100, CUDA_HOME="/none"), "12.8")).finding


def test_another_nccl_on_the_library_path(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnccl.so.2").touch()
    clean = with_torch(on(tmp_path, H100), "12.8")
    assert verdict("nccl", clean).level == "green"
    shadowed = with_torch(on(tmp_path, H100, LD_LIBRARY_PATH=f"/x:{tmp_path}/lib"), "12.8")
    assert verdict("nccl", shadowed).level == "yellow"
    assert verdict("nccl", shadowed).evidence == str(tmp_path / "lib" / "libnccl.so.2")


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.sys, "executable", str(tmp_path / "python"))
    found = verdict("build-tools", on(tmp_path))
    assert (found.level, found.fix) == ("yellow", "apt-get install -y g++ && pip install ninja")


def test_a_lock_that_a_killed_build_left(tmp_path: Path) -> None:
    made = on(tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "ext"))
    assert verdict("jit-lock", made).level == "green"
    lock = tmp_path / "ext" / "py311_cpu" / "shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert verdict("jit-lock", made).level == "yellow"  # a build that may have just begun
    os.utime(lock, (1, 1))
    found = verdict("jit-lock", made)
    assert (found.level, found.fix) == ("red", f"rm -f {lock}")
    assert verdict("jit-lock", dataclasses.replace(made, loads_ops=False)).level == "yellow"
    (lock.parent / "shm_comm.so").touch()
    assert "shm_comm" in verdict("jit-ops", made).finding


# --- limits -----------------------------------------------------------------------------------------------------------


def test_locked_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.resource, "getrlimit", lambda _: (65536, 65536))
    assert verdict("locked-memory", on(tmp_path)).level == "green"
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    found = verdict("locked-memory", on(tmp_path))
    assert found.level == "red"
    assert "mlx5_0" in found.finding


def test_inodes_clock_shm_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = on(tmp_path, several=True)
    assert verdict("inodes", made).level == "green"
    few = types.SimpleNamespace(f_files=1000, f_favail=12)
    monkeypatch.setattr(environment.os, "statvfs", lambda _: few)
    assert "only 12 more files" in verdict("inodes", made).finding
    monkeypatch.setattr(environment, "_clock_state", lambda: 5)
    assert verdict("clock", made).level == "yellow"
    assert verdict("clock", on(tmp_path)).level == "green"
    monkeypatch.setattr(environment.time, "time", lambda: 1.0)
    assert "before Headway's own installation" in verdict("clock", made).finding
    small = types.SimpleNamespace(total=32 * 1024**2, free=5 * 1024**2)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: small)
    assert verdict("shared-memory", made).level == "yellow"
    assert verdict("disk", made).level == "yellow"


def test_secrets_in_what_runs_wrote(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    (run / "logs").mkdir(parents=True)
    (run / "plan.json").write_text("{}")
    (run / "logs" / "rank-0.log").write_text("step 1\n")
    made = on(tmp_path, HF_TOKEN="a-value-that-is-secret")
    assert verdict("secrets", made).level == "green"
    (run / "logs" / "rank-0.log").write_text("loading with a-value-that-is-secret\n")
    assert verdict("secrets", made).level == "red"
    (run / "logs" / "rank-0.log").write_text("hf_" + "A1b2" * 8)
    found = verdict("secrets", on(tmp_path))
    assert (found.level, found.evidence) == ("red", str(run / "logs" / "rank-0.log"))
    assert "A1b2" not in str(found)


# --- network ----------------------------------------------------------------------------------------------------------


def test_the_hosts_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolves(address: str) -> Any:
        return lambda *_: [(2, 1, 6, "", (address, 0))]

    monkeypatch.setattr(network.socket, "getaddrinfo", resolves("127.0.1.1"))
    assert verdict("host-name", on(tmp_path)).level == "green"
    assert verdict("host-name", on(tmp_path, several=True)).level == "red"
    monkeypatch.setattr(network.socket, "getaddrinfo", resolves("10.0.0.7"))
    assert verdict("host-name", on(tmp_path, several=True)).level == "green"
    monkeypatch.setattr(network.socket, "gethostname", lambda: "no-such-host.invalid")
    monkeypatch.undo()
    monkeypatch.setattr(network.socket, "gethostname", lambda: "no-such-host.invalid")
    assert verdict("host-name", on(tmp_path)).level == "yellow"


def test_interfaces(tmp_path: Path) -> None:
    assert verdict("interface", on(tmp_path)).level == "green"
    assert "no network interface ib7" in verdict("interface", on(tmp_path, NCCL_SOCKET_IFNAME="ib7")).finding
    assert verdict("interface", on(tmp_path, NCCL_SOCKET_IFNAME="^docker0")).level == "green"
    assert verdict("interface", on(tmp_path, GLOO_SOCKET_IFNAME="lo")).level == "green"
    found = verdict("interface", on(tmp_path, several=True, GLOO_SOCKET_IFNAME="lo"))
    assert (found.level, found.finding) == ("red", "lo leads to no other host")


def test_lnc_11_a_port_that_is_taken_and_one_that_is_none(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        found = verdict("rendezvous-port", on(tmp_path, MASTER_PORT=str(port)))
    assert (found.level, f"pid {os.getpid()}" in found.evidence) == ("yellow", True)
    for wrong in ("70000", "0", "29500x"):
        found = verdict("rendezvous-port", on(tmp_path, MASTER_PORT=wrong))
        assert (found.level, "1 to 65535" in found.finding) == ("red", True)
    assert verdict("rendezvous-port", on(tmp_path, MASTER_PORT="80")).level == "yellow"


def test_lnc_13_a_world_size_that_counts_nodes(tmp_path: Path) -> None:
    given = json.loads((Path(__file__).parents[1] / "cases" / "lnc-13" / "env.json").read_text())
    place = network.node_place(given)
    assert place is not None
    assert (place.world_size, list(place.ranks)) == (8, [4, 5, 6, 7])
    found = verdict("rank-variables", on(tmp_path, **given))
    assert found.level == "yellow"
    assert "2 nodes of 4 processes are 8 ranks, and this node has 4 to 7" in found.finding
    assert "--nnodes=2 --node_rank=1 --nproc_per_node=4" in found.fix
    assert network.node_place(given | {"LOCAL_RANK": "0"}) is None
    assert verdict("rank-variables", on(tmp_path, WORLD_SIZE="8", RANK="3")).fix.startswith("unset")
    assert "without MPI" in verdict("rank-variables", on(tmp_path, OMPI_COMM_WORLD_SIZE="4")).finding


# --- GPUs, by a fake NVML ---------------------------------------------------------------------------------------------


def test_what_nvml_tells(tmp_path: Path) -> None:
    alike = on(tmp_path, *several_gpus({}, {}))
    assert {verdict(name, alike).level for name in ("gpu-health", "gpu-free", "gpu-models", "gpu-links")} == {"green"}
    ill = verdict("gpu-health", on(tmp_path, *several_gpus({}, {"uncorrected_errors": 3})))
    assert (ill.level, "GPU 1: 3 uncorrected ECC errors" in ill.evidence) == ("red", True)
    assert verdict("gpu-health", on(tmp_path, *several_gpus({"rows_pending": True}))).level == "red"
    slow = verdict("gpu-health", on(tmp_path, *several_gpus({"throttled": ("power brake",)}, {})))
    assert (slow.level, "GPU 0: power brake" in slow.evidence) == ("yellow", True)
    assert verdict("gpu-health", on(tmp_path, *several_gpus({"temperature_celsius": 95}))).level == "yellow"
    busy = verdict("gpu-free", on(tmp_path, *several_gpus({}, {"free_bytes": 20 * GIB, "processes": (4711,)})))
    assert (busy.level, busy.fix) == ("yellow", "export CUDA_VISIBLE_DEVICES=0")
    assert "pid 4711" in busy.evidence
    mixed = verdict("gpu-models", on(tmp_path, *several_gpus({}, {}, {"name": "NVIDIA A100"})))
    assert (mixed.level, mixed.fix) == ("yellow", "export CUDA_VISIBLE_DEVICES=0,1")
    links = several_gpus({"links": (True,) * 18}, {"links": (True,) * 17 + (False,)})
    assert verdict("gpu-links", on(tmp_path, *links)).level == "yellow"


def test_free_memory_against_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(EXAMPLE, A100_8, "launch.gpus=2")
    needed = used_bytes(plan.memory, plan.cluster)

    def look(*free: int) -> Verdict:
        state = Nvml(gpus=tuple(several_gpus(*({"free_bytes": each, "processes": (7,)} for each in free))))
        monkeypatch.setattr(gpus, "read_nvml", lambda: state)
        return gpus.free_memory("free-memory", Subject(plan, None, tmp_path))

    assert look(80 * GIB, 80 * GIB).level == "green"
    busy = look(needed - GIB, 80 * GIB, 80 * GIB)
    assert (busy.level, busy.fix) == ("yellow", "export CUDA_VISIBLE_DEVICES=1,2")
    full = look(needed - GIB, 80 * GIB)
    assert (full.level, "GPU 0 has less free, held by pid 7" in full.finding) == ("red", True)
    assert full.fix.endswith("launch.gpus=1")
    monkeypatch.setattr(gpus, "read_nvml", lambda: Nvml(problem="NVML does not start"))
    assert gpus.free_memory("free-memory", Subject(plan, None, tmp_path)).level == "green"


def test_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict("python", on(tmp_path)).level == "green"
    monkeypatch.setattr(environment.sys, "maxsize", 2**31 - 1)
    assert "32-bit" in verdict("python", on(tmp_path)).finding


def test_nvml_is_read_through_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("pynvml")

    class Lost(Exception):
        pass

    def unsupported(*_: object) -> None:
        raise Lost("not supported")

    for question in ("Init", "Shutdown"):
        setattr(fake, f"nvml{question}", lambda: None)
    fake.nvmlDeviceGetCount = lambda: 1
    fake.nvmlSystemGetDriverVersion = lambda: b"570.86.15"
    fake.nvmlSystemGetCudaDriverVersion = lambda: 12080
    fake.nvmlDeviceGetHandleByIndex = lambda index: index
    fake.nvmlDeviceGetName = lambda _: b"NVIDIA H100"
    fake.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(total=80 * GIB, free=70 * GIB)
    fake.nvmlDeviceGetComputeRunningProcesses = lambda _: [types.SimpleNamespace(pid=17)]
    fake.nvmlDeviceGetTotalEccErrors = unsupported
    fake.nvmlDeviceGetRemappedRows = lambda _: (0, 0, 1, 0)
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda _: 0x40 | 0x1
    fake.nvmlDeviceGetNvLinkState = lambda _, link: link < 1 if link < 2 else unsupported()
    fake.nvmlDeviceGetTemperature = lambda *_: 60
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    found = read_nvml()
    assert (found.driver, found.cuda, found.problem) == ("570.86.15", "12.8", "")
    state = GpuState(0, "NVIDIA H100", 80 * GIB, 70 * GIB, (17,), None, True, ("hardware thermal slowdown",), 60)
    assert found.gpus == (dataclasses.replace(state, links=(True, False)),)
    fake.nvmlInit = unsupported
    assert "not supported" in read_nvml().problem
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "not installed" in read_nvml().problem


def test_a_slow_device_is_named() -> None:
    assert speed.judge("gpu-speed", {0: 700.0, 1: 690.0}).level == "green"
    found = speed.judge("gpu-speed", {0: 700.0, 1: 310.0, 2: 705.0})
    assert (found.level, found.finding.startswith("GPU 1 computes slower")) == ("yellow", True)
    assert found.fix.startswith("export CUDA_VISIBLE_DEVICES=0,2")
    real = speed.matmul("gpu-speed", dict(os.environ), "print('{\"0\": 500.0}')")
    assert (real.level, real.evidence) == ("green", "GPU 0: 500 TFLOP/s")
    broken = speed.matmul("gpu-speed", dict(os.environ), "raise SystemExit('CUDA error: out of memory')")
    assert (broken.level, broken.evidence) == ("red", "CUDA error: out of memory")


# --- imports that may crash -------------------------------------------------------------------------------------------


def stub(folder: Path, **modules: str) -> dict[str, str]:
    """Stand-ins for the modules that are imported, so that no torch is loaded here."""
    for name, text in {"torch": "import torch_free", "transformers": "LlamaForCausalLM = 1", **modules}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "torch_free.py").write_text(
        "import sys, types\n"
        "me = sys.modules['torch']\n"
        "me.cuda = types.SimpleNamespace(is_available=lambda: False)\n"
        "d = me.distributed = types.SimpleNamespace()\n"
        "d.is_gloo_available = lambda: True\nd.is_mpi_available = lambda: False\nd.is_nccl_available = lambda: False\n"
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


def by_name(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {found.name: found for found in verdicts}


def test_lnc_15_an_engine_that_misses_cuda_home(tmp_path: Path) -> None:
    text = "raise RuntimeError('CUDA_HOME does not exist, unable to compile CUDA op(s)')"
    found = by_name(try_imports(stub(tmp_path, deepspeed=text)))
    assert found["import-deepspeed"].level == "red"
    assert (
        "the CUDA toolkit is missing; on a machine without GPUs training on the CPU works"
        in found["import-deepspeed"].finding
    )
    assert "export DS_ACCELERATOR=cpu" in found["import-deepspeed"].fix
    assert "Traceback" not in str(found)
    assert found["import-torch"].level == found["import-transformers"].level == "green"
    assert "built without MPI" in found["backends"].finding


def test_an_import_that_crashes_or_hangs(tmp_path: Path) -> None:
    crash = by_name(try_imports(stub(tmp_path, deepspeed="import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")))
    assert crash["import-deepspeed"].level == "red"
    assert "exit code -11" in crash["import-deepspeed"].finding
    slow = by_name(try_imports(stub(tmp_path, deepspeed="import time; time.sleep(60)"), seconds=1.5))
    assert slow["import-deepspeed"].level == "yellow"
    breaks = "def __getattr__(n): raise RuntimeError('operator torchvision::nms does not exist')"
    vision = stub(tmp_path, deepspeed="", transformers=breaks)
    assert by_name(try_imports(vision, seconds=10))["import-transformers"].fix == "pip uninstall -y torchvision"
    hides = (
        "def __getattr__(n):\n    try:\n        raise RuntimeError('operator torchvision::nms does not exist')\n"
        "    except RuntimeError as error:\n        raise ModuleNotFoundError('Could not import module') from error"
    )
    hidden = by_name(try_imports(stub(tmp_path, deepspeed="", transformers=hides), seconds=10))["import-transformers"]
    assert hidden.fix == "pip uninstall -y torchvision"
    assert hidden.evidence.startswith("ModuleNotFoundError: Could not import module <- RuntimeError: operator")


# --- a pretrained folder ----------------------------------------------------------------------------------------------


@pytest.fixture
def pretrained(tmp_path: Path) -> Plan:
    plan = plan_of(SMALL, LAPTOP, tokenizer=str(tmp_path))
    return plan.model_copy(update={"model": plan.model.model_copy(update={"path": str(tmp_path)})})


def test_code_and_pickles_in_a_folder(pretrained: Plan, tmp_path: Path) -> None:
    subject = Subject(pretrained, None, tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert folder.safety("safety", subject).level == "green"
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModel": "code.Model"}}')
    assert folder.safety("safety", subject).level == "yellow"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert folder.safety("safety", subject).level == "red"


def test_special_tokens_and_generation(pretrained: Plan, tmp_path: Path) -> None:
    subject = Subject(pretrained, None, tmp_path)
    settings = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "pad is the end token" in folder.special_tokens("special-tokens", subject).finding
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages }}")
    assert folder.special_tokens("special-tokens", subject).level == "yellow"
    config = {"do_sample": False, "temperature": 0.9, "top_p": 0.6}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    found = folder.generation("generation", subject)
    assert (found.level, "temperature 0.9, top_p 0.6" in found.finding) == ("yellow", True)
    (tmp_path / "generation_config.json").write_text(json.dumps(config | {"do_sample": True}))
    assert folder.generation("generation", subject).level == "green"


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_doctor_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in stub(tmp_path, deepspeed="__version__ = '0.19.8'").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "70000")
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == 2
    wrong = {found["name"]: found for found in said["verdicts"] if found["level"] == "red"}
    assert list(wrong) == ["rendezvous-port"]
    assert wrong["rendezvous-port"]["fix"] == "export MASTER_PORT=29500"
    monkeypatch.delenv("MASTER_PORT")
    assert main(["doctor"]) in (0, 1)
    assert "in order" in capsys.readouterr().out


def test_building_ops_ahead(tmp_path: Path) -> None:
    """A stand-in for DeepSpeed's builders: one op compiles, one fails as a missing header does."""
    package = tmp_path / "deepspeed"
    (package / "ops" / "op_builder").mkdir(parents=True)
    for name in ("", "ops"):
        (package / name / "__init__.py").write_text("")
    (package / "accelerator.py").write_text(
        "import types\nget_accelerator = lambda: types.SimpleNamespace(device_name=lambda: 'cpu')\n"
    )
    (package / "ops" / "op_builder" / "__init__.py").write_text("")
    (package / "ops" / "op_builder" / "all_ops.py").write_text(
        "class Good:\n    def load(self, verbose):\n        print('[1/3] c++ -c cpu_adam.cpp', flush=True)\n"
        "class Bad:\n    def load(self, verbose):\n        print('[1/2] c++ -c aio.cpp')\n"
        "        print('aio.h:1:10: fatal error: libaio.h: No such file or directory')\n"
        "        raise RuntimeError(\"Error building extension 'async_io'\")\n"
        "ALL_OPS = {'cpu_adam': Good(), 'async_io': Bad()}\n"
    )
    given = {**os.environ, "PYTHONPATH": str(tmp_path)}
    report = build_ops(["cpu_adam", "async_io", "fused"], lambda text: None, given)
    assert [(v.name, v.level) for v in report.verdicts] == [
        ("op-cpu_adam", "green"),
        ("op-async_io", "red"),
        ("op-fused", "red"),
    ]
    assert "libaio.h: No such file" in report.verdicts[1].evidence
    assert "async_io, cpu_adam" in report.verdicts[2].fix
    assert [v.name for v in build_ops([], lambda text: None, given).verdicts] == ["op-cpu_adam"]
    (package / "accelerator.py").write_text("raise RuntimeError('CUDA_HOME does not exist')")
    assert "CUDA_HOME" in build_ops([], lambda text: None, given).verdicts[0].evidence
