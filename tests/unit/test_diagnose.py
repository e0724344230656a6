"""From logs to one diagnosis: logs that only GPUs write, in their own format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.diagnose.judge import Diagnosis, diagnose, diagnose_logs, diagnose_run
from headway.diagnose.patterns import hints_of
from headway.diagnose.signatures import SIGNATURES
from headway.diagnose.streams import parse
from headway.errors import Diverged, UserError
from headway.train.health import DISCARDS_IN_A_ROW, Guard


def of(text: str, file: str = "job.log") -> Diagnosis:
    found = diagnose([parse(line, file, n) for n, line in enumerate(text.strip("\n").splitlines(), start=1)])
    assert found is not None
    return found


# Written by hand in the formats of torch 2.x, NCCL, DeepSpeed and torchrun.
CUDA_OOM = """
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 88, in <module>
[rank1]:     loss.backward()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 1 has a total capacity \
of 79.11 GiB of \
which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use.
[rank0]:[E1130 10:02:11.123456789 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process \
group watchdog \
thread terminated with exception: NCCL communicator was aborted on rank 0.
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited \
or there was a \
network error, NCCL version 2.27.3
"""
WATCHDOG = """
[rank{a}]:[E626 06:24:44.90388 ProcessGroupNCCL.cpp:616] [Rank {a}] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum={na}, OpType={ka}, NumelIn={ea}, NumelOut={ea}, Timeout(ms)=600000) ran for 600020 milliseconds before \
timing out.
[rank{b}]:[E626 06:24:45.15993 ProcessGroupNCCL.cpp:616] [Rank {b}] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum={nb}, OpType={kb}, NumelIn={eb}, NumelOut={eb}, Timeout(ms)=600000) ran for 600030 milliseconds before \
timing out.
"""
ELASTIC = """
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_15:43:03
  host      : node7
  rank      : 3 (local_rank: 3)
  exitcode  : {code} (pid: 14750)
  error_file: <N/A>
  traceback : Signal {signal} received by PID 14750
============================================================
"""


def test_a_gpu_out_of_memory_before_its_echo() -> None:
    found = of(CUDA_OOM)
    assert (found.name, found.rank) == ("cuda-out-of-memory", 1)
    assert found.cause == "the GPU's memory ran out (asked for: 2.32 GiB)"
    assert "train.micro_batch" in found.fix


def test_a_watchdog_that_waits_names_who_is_missing() -> None:
    text = WATCHDOG.format(a=0, b=1, na=9, nb=9, ka="ALLREDUCE", kb="ALLREDUCE", ea=1, eb=1) + "\n[rank2]: step 8 done"
    assert (of(text).name, of(text).rank) == ("collective-timeout", 2)
    assert "rank 2 never came to it" in of(text).cause


def test_ranks_in_different_collectives() -> None:
    found = of(WATCHDOG.format(a=0, b=1, na=10, nb=9, ka="ALLREDUCE", kb="_ALLGATHER_BASE", ea=1, eb=4096))
    assert (found.name, found.rank) == ("mismatched-collectives", 1)
    assert (
        "rank 0: ALLREDUCE of 1 elements, number 10; rank 1: _ALLGATHER_BASE of 4096 elements, number 9" in found.cause
    )
    dog = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType={}, NumelIn=8, NumelOut=8)"
    alone = "\n".join(dog.format(r, k) for r, k in ((1, "ALLREDUCE"), (2, "ALLREDUCE"), (3, "BROADCAST")))
    assert of(alone).rank == 3  # at one place, it is the rank that does what no other does
    detail = "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: BARRIER"
    assert of(detail).name == "mismatched-collectives"


def test_torchruns_table_names_the_rank_and_its_signal() -> None:
    killed = of(ELASTIC.format(code=-9, signal="9 (SIGKILL)"))
    assert (killed.name, killed.rank) == ("killed", 3)
    bus = of(ELASTIC.format(code=-7, signal="7 (SIGBUS)"))
    assert (bus.name, bus.rank) == ("shared-memory", 3)


OF_TWO_TORCHRUNS = """
0: Epoch 1, step 10
1: Traceback (most recent call last):
1:   File "train.py", line 60, in main
1: RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 4; 39.59 GiB total capacity)
1: ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 4 (pid: 885) of binary: python
"""
THEIR_TABLE = """
1: Root Cause (first observed failure):
1: [0]:
1:   host      : gpu-2
1:   rank      : 12 (local_rank: 4)
1:   exitcode  : 1 (pid: 885)
srun: error: gpu-2: task 1: Exited with exit code 1
"""


def test_where_srun_starts_torchrun_a_task_is_a_host_and_no_rank() -> None:
    found = of(OF_TWO_TORCHRUNS + THEIR_TABLE)
    assert (found.name, found.rank, found.host) == ("cuda-out-of-memory", 12, "gpu-2")
    assert of(OF_TWO_TORCHRUNS).rank is None
    assert of("1: [E ProcessGroupNCCL.cpp:1] [Rank 12] NCCL watchdog: CUDA error: misaligned address").rank == 12
    last = OF_TWO_TORCHRUNS.strip().splitlines()[-1]
    assert (of(last).rank, of(last.removeprefix("1: ")).rank) == (None, 4)


def test_where_srun_starts_the_ranks_a_task_is_a_rank() -> None:
    of_ranks = "".join(OF_TWO_TORCHRUNS.splitlines(keepends=True)[:-1])
    assert of(of_ranks).rank == 1
    recorded = '1:   File "/x/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 346, in wrapper\n'
    assert of(recorded + of_ranks).rank == 1  # @record around a rank's own main


def test_the_rank_of_a_spawned_process() -> None:
    text = """
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 3 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 9, in work
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
    assert (of(text).name, of(text).rank) == ("cuda-out-of-memory", 3)


def test_rays_account_gives_way_to_a_workers_own_words() -> None:
    own = "(WorkerDict pid=9) RuntimeError: CUDA error: an illegal memory access was encountered"
    account = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    assert of(account).name == "ray-worker"
    assert of(f"{account}\n{own}").name == of(f"{own}\n{account}").name == "gpu-fault"


def test_what_a_compiler_backend_raised_is_the_error() -> None:
    text = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nTypeError: 'NoneType' has no len()"
    assert of(text).error == "TypeError: 'NoneType' has no len()"


def test_a_command_that_deepspeed_quotes_names_no_rank() -> None:
    """It is the last rank's command, whichever failed (deepspeed/launcher/launch.py, sigkill_handler)."""
    text = """
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:20891
[2026-11-30 15:26:04,169] [ERROR] [launch.py:259:sigkill_handler] ['python', '--local_rank=1'] exits with \
return code = -9
"""
    assert (of(text).name, of(text).rank) == ("killed", None)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("[2026-11-30 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -9",
         "killed"),
        ("RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's "
         "workers are out of shared memory.", "shared-memory"),
        ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
         "shared-memory"),
        ("RuntimeError: DataLoader worker (pid(s) 325) exited unexpectedly", "worker-lost"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "no-kernel-image"),
        ("RuntimeError: Error building extension 'fused_adam'", "kernel-build"),
        ("deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA "
        "op(s)",
         "kernel-build"),
        ("ImportError: flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c104impl",
         "undefined-symbol"),
        ("RuntimeError: operator torchvision::nms does not exist", "undefined-symbol"),
        ("../aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [0,0,0], thread: [0,0,0] "
        "Assertion "
         "`srcIndex < srcSelectDimSize` failed.", "token-out-of-range"),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "not-finite"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "driver"),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:121, unhandled system error (run with "
         "NCCL_DEBUG=INFO for details), NCCL version 2.27.3 ncclSystemError: System call failed", "nccl-system"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
         "host-out-of-memory"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", "gpu-fault"),
        ("OSError: [Errno 122] Disk quota exceeded: 'out/model.safetensors'", "disk-full"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T10:00:00 DUE TO TIME LIMIT ***", "time-limit"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T10:00:00 DUE TO PREEMPTION ***", "preempted"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T10:00:00 DUE TO NODE FAILURE ***", "node-failed"),
        ("train.sh: line 5:  1234 Killed                  python train.py", "killed"),
        ("subprocess.CalledProcessError: Command '['python', '--local_rank=7']' died with <Signals.SIGKILL: 9>.",
         "killed"),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 20) of binary: "
         "python", "killed"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL", "killed"),
        ("srun: error: n7: task 3: Out Of Memory", "host-out-of-memory"),
        ("[rank1]: Cuda failure 2 'out of memory'", "cuda-out-of-memory"),
        ("RuntimeError: CUDA error: invalid device ordinal", "invalid-device"),
        ("Duplicate GPU detected : rank 5 and rank 4 both on CUDA device b7000", "same-device"),
        ("AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
         "gradient_acc_step * world_size 32 != 4 * 1 * 1", "batch-sizes"),
        ("AssertionError: Micro batch size per gpu: 0 has to be greater than 0", "batch-sizes"),
        ("RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn", "no-gradient"),
        ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
         "unused-parameters"),
        ("RuntimeError: Expected to mark a variable ready only once. This error is caused by", "used-twice"),
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float", "dtypes"),
        ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "dtypes"),
        ("ValueError: Must flatten tensors with uniform dtype but got torch.float32 and torch.bfloat16", "dtypes"),
        ("ValueError: Cannot flatten integer dtype tensors", "quantized-storage"),
        ("AssertionError: {'id': 7, 'status': 'INFLIGHT', 'numel': 0, 'ds_numel': 9}", "gathered-twice"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`", "gpu-library"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
         "cuda-out-of-memory"),
        ("OSError: [Errno 24] Too many open files", "open-files"),
        ("Message:        The node was low on resource: ephemeral-storage.", "evicted"),
        ("      Exit Code:    137", "killed"),
        ("n2:40:46 [7] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
         "locked-memory"),
        ("n2:40:46 [5] NCCL WARN NET/OFI Unable to register memory (type = 1). RC: 12, Error: Cannot allocate memory",
         "locked-memory"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: Cannot allocate memory",
         "host-out-of-memory"),
        ("n2:96:96 [3] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x",
         "shared-memory"),
        ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
         "RuntimeError: Cannot find a working triton installation.", "missing-triton"),
        ("ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
         "- ds fp16.enabled=True vs hf fp16=False", "config-differs"),
        ("Traceback (most recent call last):\n  File \"c.py\", line 9, in fetch_sub_module\n"
         "    ahead.append(self.__param_queue.popleft())\nIndexError: pop from an empty deque", "module-order"),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Segmentation fault", "worker-crashed"),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.", "worker-lost"),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Terminated.", "worker-told-to-end"),
        ('RuntimeError: Error(s) in loading state_dict for N:\n        Missing key(s) in state_dict: "module.l".',
         "missing-keys"),
        ("RuntimeError: Missing key in checkpoint state_dict: optimizer.state.exp_avg.l.weight.", "missing-keys"),
        ("AssertionError: FSDP assumes l.lora_B.weight is in the state_dict but the state_dict only has odict_keys([])",
         "missing-keys"),
        ("Traceback (most recent call last): (RANK 3)\n  File \"p.py\", line 9, in plan\n"
         "    md = metadata.state_dict_metadata[fqn]\nKeyError: 'emb'", "missing-keys"),
        ("Traceback (most recent call last):\n  File \"t.py\", line 9, in f\n    x = d[k]\nKeyError: 'emb'", "other"),
        ("Traceback (most recent call last):\n  File \"s.py\", line 57, in __init__\n"
         "    sl = self._semlock = _multiprocessing.SemLock(\nOSError: [Errno 28] No space left on device",
         "shared-memory"),
        ("Traceback (most recent call last):\n  File \"s.py\", line 57, in save\n"
         "    f.write(text)\nOSError: [Errno 28] No space left on device", "disk-full"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "ray-worker"),
        ("(raylet) A worker died or was killed while executing a task by an unexpected system error. There are some "
         "potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (3) The "
         "worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.", "ray-worker"),
        ("/x/train.sh: line 84: 2324 Aborted                 (core dumped) python train.py", "aborted"),
        ("slurmstepd: error: *** STEP 6.0 ON n1 CANCELLED AT 2030-08-12T02:06:12 DUE TO JOB REQUEUE ***\n"
         "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused", "preempted"),
        ("srun: error: Timed out waiting for job step to complete", "no-words"),
        ("Message:  Usage of EmptyDir volume \"cache\" exceeds the limit \"9Gi\".\nReason:   Evicted", "evicted"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "gpu-fault"),
        ("RuntimeError: unable to open shared memory object </torch_9_1> in read-write mode: Too many open files (24)",
         "open-files"),
        ("RuntimeError: unable to open shared memory object </torch_9_1> in read-write mode: No space left on device "
         "(28)", "shared-memory"),
        ("\tsize mismatch for head.weight: copying a param with shape torch.Size([0]) from checkpoint, the shape in "
         "current model is torch.Size([9, 4]).", "empty-weights"),
        ("\tsize mismatch for head.weight: copying a param with shape torch.Size([9, 4]) from checkpoint, the shape in "
         "current model is torch.Size([0]).", "sharded-weights"),
        ("deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 4 but "
         "the current world size is 6.", "other-world-size"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a b.bin'", "missing-file"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'", "kernel-build"),
        ("PermissionError: [Errno 13] Permission denied: '/out'", "no-permission"),
        ("OSError: Can't load tokenizer for './mine'. If you were trying to load it from", "model-files"),
        ("OSError: ./mine does not appear to have a file named config.json.", "model-files"),
        ("AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'", "kernel-build"),
        ("n1:27:27 [0] init.cc:981 NCCL WARN Invalid rank requested : 4/4", "nccl-ranks"),
        ("RuntimeError: connect() timed out. Original timeout was 60000 ms.", "connection-refused"),
        ("(Actor pid=52, ip=10.0.0.8) torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The "
         "connection to the C10d store has failed.", "rendezvous-lost"),
        ("srun: error: Task launch for 36.0 failed on node n9: Job credential expired", "scheduler-start"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 8 got signal: 1", "told-to-end"),
        ("RUNTIME ERROR: the cluster's module is not loaded", "other"),
    ],
)  # fmt: skip
def test_single_lines(line: str, name: str) -> None:
    assert of(line).name == name


@pytest.mark.parametrize(
    ("text", "name", "rank", "host"),
    [
        (ELASTIC.format(code=1, signal="x"), "no-words", 3, "node7"),
        (ELASTIC.format(code=-6, signal="6 (SIGABRT)"), "aborted", 3, "node7"),
        ("E1106 04:43:02.651000 26021 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
         "local_rank: 2 (pid: 26) of binary: python", "no-words", 2, ""),
        ("[2026-11-30 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 't.py', '--local_rank=7'] "
         "exits with return code = 1", "no-words", None, ""),
        ("srun: error: gpu-7: tasks 2-7: Exited with exit code 1", "no-words", 2, "gpu-7"),
        ("srun: error: gpu-7: task 9: Killed", "killed", 9, "gpu-7"),
        ("mpirun noticed that process rank 5 with PID 0 on node gpu04 exited on signal 9 (Killed).", "killed", 5,
         "gpu04"),
        ("worker-1: ssh exited with exit code 255", "no-words", None, ""),
    ],
)  # fmt: skip
def test_a_launcher_that_does_not_know_why(text: str, name: str, rank: int | None, host: str) -> None:
    found = of(text)
    assert (found.name, found.rank, found.host) == (name, rank, host)
    with_words = of(f"{text}\n[rank1]: KeyError: 'input_ids'")
    assert (with_words.error, with_words.rank) == ("KeyError: 'input_ids'", 1) or name == "killed"


def test_torchruns_table_with_the_error_inside() -> None:
    inside = """Traceback (most recent call last):
    File "/w/train.py", line 162, in main
      build()
  mine.NoSuchLayer"""
    text = ELASTIC.format(code=1, signal="x").replace("Signal x received by PID 14750", inside)
    assert (of(text).error, of(text).rank, of(text).host) == ("mine.NoSuchLayer", 3, "node7")


def test_who_is_silent_among_ranks_that_wait() -> None:
    line = (
        "[E ProcessGroupNCCL.cpp:457] [Rank {}] Watchdog caught collective operation timeout: "
        "WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1808499 milliseconds before timing out."
    )
    found = of("\n".join(line.format(rank) for rank in (3, 1, 2)))
    assert (found.name, found.rank) == ("collective-timeout", 0)
    assert of(line.format(3)).rank == 3  # one rank's own log says nothing of the others


def test_an_exception_that_python_ignored_is_an_echo() -> None:
    text = """
Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f7c7ad5bd30>
Traceback (most recent call last):
  File "cpu_adam.py", line 110, in __del__
AttributeError: 'Adam' object has no attribute 'opt_id'
Traceback (most recent call last):
  File "train.py", line 9, in <module>
ValueError: lr must be positive
"""
    assert of(text).error == "ValueError: lr must be positive"


@pytest.mark.parametrize(
    "line",
    [
        "2026-02-05 05:32:39 [job-7-worker-1, unknown_ip] {}",
        "[2026-10-12 10:11:20] [INFO] {}",
        "【2026-07-09 22:14:41】{}",
        "2026-07-09 22:14:41,123 {}",
    ],
)
def test_a_time_before_each_line(line: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "t.py", line 3, in f', "    g()", "mine.BadRow: 7"]
    text = "\n".join(line.format(one) for one in lines[:3]) + "\n" + line.format("ValueError: row 7")
    assert of(text).error == "ValueError: row 7"


def test_a_log_that_was_pasted_indented(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"    step 1\n    [rank3]: {OOM}\n")
    found = diagnose_logs([tmp_path / "train.log"])
    assert found is not None
    assert (found.name, found.rank) == ("cuda-out-of-memory", 3)


def test_a_heading_is_not_the_error_and_an_echo_below_it_is_no_body() -> None:
    error = "mine.errors.StateException: written by 8 ranks"
    assert of(f"{error}\nNCCL INFO [Service thread] Connection closed by localRank 7").error == error


def test_a_device_side_assert_is_its_first_line_not_the_last() -> None:
    text = """
Indexing.cu:1284: block: [0,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
Traceback (most recent call last):
RuntimeError: CUDA error: device-side assert triggered
"""
    assert of(text).name == "token-out-of-range"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("line", "rank", "host"),
    [
        (f"2026-11-30T10:00:05.123456789Z stderr F [rank3]: {OOM}", 3, ""),
        (f"2026-11-30T10:00:05.1+01:00 {OOM}", None, ""),
        (f"Nov  3 10:00:05 gpu-7 python3[123]: [rank3]: {OOM}", 3, "gpu-7"),
        (f"[pod/job-worker-1/trainer] [rank3]: {OOM}", 3, "job-worker-1"),
        (f"worker-1  | [rank3]: {OOM}", 3, "worker-1"),
        (f"[1,3]<stderr>:{OOM}", 3, ""),
        (f"2024-09-26 07:59:39.732000: [rank2]: {OOM}", 2, ""),
        (f"[default0]:[rank12]: {OOM}", 12, ""),
        (f"10.0.0.2: {OOM.removeprefix('torch.')}", None, "10.0.0.2"),
        (f"\x1b[31m[rank3]: {OOM}\x1b[0m", 3, ""),
    ],
)
def test_what_containers_schedulers_and_terminals_put_before_a_line(line: str, rank: int | None, host: str) -> None:
    found = of(line)
    assert (found.name, found.rank, found.host) == ("cuda-out-of-memory", rank, host)
    assert found.error in (OOM, OOM.removeprefix("torch."))


@pytest.mark.parametrize("last", ["AssertionError", "StopIteration", "mine.errors.BadBatch: row 7", "KeyError: 'a'"])
def test_an_exception_of_any_name_closes_its_traceback(last: str) -> None:
    found = of(f'step 1\nTraceback (most recent call last):\n  File "t.py", line 1\n    f()\n{last}\nbye')
    assert (found.name, found.error) == ("other", last)


def test_healthy_lines_name_no_error() -> None:
    healthy = "checksum ok\nKilled 0 processes\nthe broken pipeline is mended\nRoman in Rome\nBadBatch: none so far"
    assert diagnose([parse(line, "job.log", n) for n, line in enumerate(healthy.splitlines())]) is None


@pytest.mark.parametrize(
    ("pattern", "hints"),
    [
        (r"out of memory", ("out of memory",)),
        (r"CUDA error: out|CUBLAS_[A-Z]+_FAILED", ("cuda error: out", "cublas_")),
        (r"killed by (?:a|b(?:c|d)) signals?\b|exitcode\s*: -9", ("killed by ", "exitcode")),
        (r"`t >= 0 && t < n`|a\.b\(c\)", ("`t >= 0 && t < n`", "a.b(c)")),
        (r"long enough|(?:nan|inf)s? i", ()),  # the second has no text of its own
        (r"abcdx?yz|[(|)]wxyz+", ("abcd", "wxyz")),
        (r"worker \(pid(?:\(s\))? \d+\) exited", ("worker (pid",)),
    ],
)
def test_the_texts_that_a_pattern_cannot_do_without(pattern: str, hints: tuple[str, ...]) -> None:
    assert hints_of(pattern) == hints


def test_most_signatures_are_told_by_a_text() -> None:
    assert sum(bool(signature.hints) for signature in SIGNATURES) > len(SIGNATURES) * 2 // 3


@pytest.mark.timeout(20)
def test_a_line_of_a_megabyte_is_read_by_its_ends() -> None:
    found = of(f"{OOM} {'x' * 10**6}\n{'y' * 10**6}\n{'z' * 10**6} bus error")
    assert (found.name, len(found.error) < 5000) == ("cuda-out-of-memory", True)
    assert of(f"{'z' * 10**6} bus error").name == "shared-memory"


def test_a_log_of_powershell(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(f"step 1\r\n[rank3]: {OOM}\r\n".encode("utf-16"))
    found = diagnose_logs([tmp_path / "train.log"])
    assert found is not None
    assert (found.name, found.rank, found.error) == ("cuda-out-of-memory", 3, OOM)


def test_loops_of_skipped_steps() -> None:
    line = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"
    falling = [line.format(2**n, 2 ** (n - 1)) for n in range(32, 0, -1)]
    assert diagnose([parse(text, "job.log", n) for n, text in enumerate(falling)]) is None  # it finds its place
    old = "[logging.py:60:log_dist] [Rank 0] Overflow detected. Skipping step. Attempted loss scale: 1, reducing to 1"
    for stuck in (line.format(1, 1), line.format("1.0", "1.0"), old):
        found = of("\n".join(falling + [stuck] * 12))
        assert (found.name, "12 lines say so" in found.cause) == ("not-finite", True)
    assert of("\n".join([*falling, OOM])).name == "cuda-out-of-memory"


def test_headways_own_errors_keep_their_own_fix() -> None:
    guard = Guard(discards_in_a_row=DISCARDS_IN_A_ROW - 1)
    with pytest.raises(Diverged) as caught:
        guard.after(77, applied=False)
    found = diagnose_run(f"Diverged: {caught.value}", 0, [])
    assert found is not None
    assert found.name == "not-finite"
    unknown = diagnose_run("DataError: row 3 has no text\n    fix: remove it", 1, [])
    assert unknown is not None
    assert (unknown.name, unknown.rank, unknown.fix) == ("other", 1, "remove it")


def test_a_module_that_one_host_lacks() -> None:
    lines = ("0: step 1", "2: Traceback", "2: ModuleNotFoundError: No module named 'flash_attn'", "1: step 1")
    found = of("\n".join(lines))
    assert (found.name, found.rank) == ("missing-module", 2)
    assert "while rank 0, 1 found it" in found.cause
    pdsh = of("node1: step 1\nnode2: ModuleNotFoundError: No module named 'flash_attn'")
    assert pdsh.host == "node2"


def test_retries_of_a_start_are_no_failure() -> None:
    text = """
[W1130 10:00:00.000000001 socket.cpp:752] [c10d] The client socket has failed to connect to [node1]:29500 \
(errno: 111 - \
Connection refused).
[rank0]: KeyError: 'input_ids'
"""
    assert of(text).error == "KeyError: 'input_ids'"
    quoted = "Traceback\n  File \"a.py\", line 3\n    raise OSError('No space left on device')\nKeyError: 'x'"
    assert of(quoted).error == "KeyError: 'x'"


def test_of_chained_exceptions_the_known_one_counts() -> None:
    text = """
Traceback (most recent call last):
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
RuntimeError: the writer's thread ended
"""
    assert of(text).name == "disk-full"


def test_only_the_last_start_of_a_log_counts(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("MemoryError\n======== started again 2026-11-30 10:00:00 ========\nstep 1\n")
    assert diagnose_logs([log]) is None
    log.write_text(log.read_text() + "KeyError: 'x'\n")
    assert diagnose_logs([log]) == diagnose_logs([tmp_path])


def test_of_a_run_the_launchers_word_comes_first(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    log.write_text("step 3\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n")
    found = diagnose_run("killed by SIGKILL (out of memory? the kernel's log says so)", 1, [log])
    assert found is not None
    assert found.name == "cuda-out-of-memory"  # the log knows more
    silent = diagnose_run("killed by SIGKILL (out of memory? the kernel's log says so)", 1, [])
    assert silent is not None
    assert (silent.name, silent.rank) == ("killed", 1)
    plain = diagnose_run("no error was written (exit code 3)", 0, [])
    assert plain is not None
    assert (plain.name, plain.error) == ("other", "no error was written (exit code 3)")
    assert diagnose_run("", None, []) is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "slurm-7.out"
    log.write_text("0: OSError: [Errno 28] No space left on device\n")
    assert main(["doctor", "--log", str(log)]) == 2
    said = capsys.readouterr().out
    assert "diagnosis: disk-full" in said
    assert "first  rank 0" in said
    assert main(["doctor", "--log", str(log), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["diagnosis"]["name"] == "disk-full"
    log.write_text("step 1\n")
    assert main(["doctor", "--log", str(log)]) == 0
    with pytest.raises(UserError, match="cannot be read"):
        diagnose_logs([tmp_path / "absent.log"])
