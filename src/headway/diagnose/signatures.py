"""What failures look like in logs, what causes them, and what to do. The first that fits a line names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# strong: the failure itself; weak: healthy starts say it too (a connection tried again); echo: of another rank's end.
Strength = Literal["strong", "weak", "echo"]


@dataclass(frozen=True)
class Signature:
    """`cause` and `fix` may name the pattern's groups: {shape}."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    strength: Strength = "strong"
    hints: tuple[str, ...] = ()  # a line without any of them cannot fit; none: any line may

    def words(self, match: re.Match[str]) -> tuple[str, str]:
        """(cause, fix) with what the line says filled in."""
        groups = {name: value or "?" for name, value in match.groupdict().items()}
        unsaid = re.compile(r" \([^()]*\?\)")
        return unsaid.sub("", self.cause.format(**groups)), unsaid.sub("", self.fix.format(**groups))


def _sign(name: str, pattern: str, cause: str, fix: str, strength: Strength = "strong") -> Signature:
    return Signature(name, re.compile(pattern, re.IGNORECASE), cause, fix, strength, hints_of(pattern))


_TOKEN = re.compile(
    r"\\(?P<escaped>.)|(?P<opens>[(\[])|(?P<times>[?*+]|\{[\d,]+\})|(?P<any>[.^$])|(?P<bar>\|)|(?P<plain>.)"
)
_LEAST = 3  # characters: shorter texts stand in too many lines


def hints_of(pattern: str) -> tuple[str, ...]:
    """Of each alternative the longest text that it cannot do without, in lower case; () where one has none.

    To look for a text is a hundred times faster than to search by the pattern, and a log has a million lines.
    """
    best, run, found, at = "", "", list[str](), 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return ()
        at, kind = token.end(), token.lastgroup
        letter = token["plain"] or (token["escaped"] if token["escaped"] and not token["escaped"].isalnum() else "")
        if kind == "times":  # what is before it may be absent, or repeated
            run = run if token["times"] == "+" else run[:-1]
        best = max(best, run, key=len)
        run = run + letter if letter else ""
        if kind == "opens":
            at = _behind(pattern, token.start())
        elif kind == "bar":
            found.append(best)
            best = ""
    found.append(max(best, run, key=len))
    return tuple(text.lower() for text in found) if min(map(len, found)) >= _LEAST else ()


def _behind(pattern: str, start: int) -> int:
    """The place behind the group or class that opens at `start`."""
    depth, in_class, at = 0, False, start
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
        else:
            depth += {"(": 1, ")": -1}.get(letter, 0)
        at += 1
        if depth == 0 and not in_class:
            return at
    return at


LESS_MEMORY = "train.micro_batch halved, then train.activation_checkpointing=true, then strategy=zero-3"
_DEBUG = "start again with launch.debug=true (NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL)"
_ARRIVE = (
    "find the rank that is missing from this collective and read its log above this line; a longer launch.timeout "
    "helps "
    f"only where it was merely slow. To see each rank's last collective {_DEBUG}"
)

SIGNATURES: tuple[Signature, ...] = (
    # --- memory ---
    _sign(
        "cuda-out-of-memory",
        r"CUDA out of memory(?:\. Tried to allocate (?P<asked>[\d.]+ \w+))?"
        r"|torch(?:\.cuda)?\.OutOfMemoryError(?!.*CUDA out)"
        r"|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "the GPU's memory ran out (asked for: {asked})",
        LESS_MEMORY,
    ),
    _sign(
        "host-out-of-memory",
        r"DefaultCPUAllocator: (?:can't|not enough memory: you tried to) allocate(?: memory: you tried to allocate)? "
        r"(?P<asked>\d+ bytes)|^MemoryError\b|Cannot allocate memory|std::bad_alloc|oom-kill:|oom_reaper"
        r"|Out of memory: Killed process|Memory cgroup out of memory|\bOOMKilled\b|oom_kill event",
        "the host's memory ran out (asked for: {asked})",
        f"{LESS_MEMORY}; fewer data.workers; with offload: strategy.offload=null",
    ),
    # --- programs that are missing or do not fit ---
    _sign(
        "missing-module",
        r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)'?",
        "the Python of this rank's host has no module {module}",
        "python -m pip install {module}, in the environment of every host; `headway doctor --hostfile FILE` compares "
        "them",
    ),
    _sign(
        "no-kernel-image",
        r"no kernel image is available for execution on the device|is not compatible with the current PyTorch install",
        "this build of torch (or of an extension) has no kernels for this GPU's architecture",
        "install a torch built for a CUDA release that knows the GPU; rebuild extensions with TORCH_CUDA_ARCH_LIST set",
    ),
    _sign(
        "driver",
        r"CUDA driver version is insufficient|Found no NVIDIA driver|NVIDIA driver on your system is too old"
        r"|Driver/library version mismatch|CUDA error: system not yet initialized",
        "the NVIDIA driver is absent, or older than the CUDA release that torch was built with",
        "update the driver (or restart after an update), or install a torch built for an older CUDA; see headway "
        "doctor",
    ),
    _sign(
        "kernel-build",
        r"Error building extension '(?P<op>\w+)'|Ninja is required to load C\+\+ extensions|ninja: build stopped"
        r"|CUDA_HOME (?:does not exist|environment variable is not set)|MissingCUDAException|CUDAMismatchException"
        r"|Unable to JIT load the (?P<ext>\w+) op|subprocess\.CalledProcessError: Command '\['ninja'",
        "a kernel that is compiled at first use could not be built: compiler, ninja or CUDA toolkit is missing or "
        "differs",
        "headway doctor names what is missing; headway doctor --build-ops builds ahead of the run",
    ),
    _sign(
        "undefined-symbol",
        r"ImportError: (?P<file>\S+\.so\S*): undefined symbol|operator torchvision::nms does not exist"
        r"|GLIBCXX_\S+' not found|cannot open shared object file",
        "a compiled package was built for another torch, or its library is missing",
        "reinstall the package for the installed torch: pip install --force-reinstall --no-deps PACKAGE; torchvision "
        "can "
        "be removed: pip uninstall torchvision",
    ),
    # --- devices ---
    _sign(
        "token-out-of-range",
        r"IndexError: index out of range in self|srcIndex < srcSelectDimSize|`t >= 0 && t < n_classes`"
        r"|vectorized_gather_kernel.*index out of bounds|Target \d+ is out of bounds",
        "a token id (or label) is larger than the embedding (or the output) has rows",
        "use the model's own tokenizer, or leave out model.config.vocab; headway plan --check-only compares the two",
    ),
    _sign(
        "gpu-fault",
        r"uncorrectable ECC error|GPU has fallen off the bus|\bXid\b.*: (?P<xid>\d+)|CUDA error: (?:unspecified launch"
        r" failure|an illegal memory access was encountered|misaligned address)|device-side assert triggered",
        "the GPU stopped: a hardware fault, or a kernel that read outside its memory",
        "nvidia-smi -q -d ECC; with CUDA_LAUNCH_BLOCKING=1 the line that fails is the one that is named",
    ),
    # --- disks and shared memory ---
    _sign(
        "shared-memory",
        r"bus error|\bSIGBUS\b|shared memory \(shm\)|unable to (?:open|write to|allocate) shared memory|shm_open"
        r"|exitcode\s*: -7\b|return code = -7\b|/dev/shm\S*.*No space left|No space left.*/dev/shm",
        "shared memory (/dev/shm) is too small",
        "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory at /dev/shm; or fewer "
        "DataLoader workers",
    ),
    _sign(
        "disk-full",
        r"No space left on device|\[Errno 28\]|\bENOSPC\b|Disk quota exceeded|\[Errno 122\]|file write failed"
        r"|StorageFull|PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos"
        r"|\[Errno 27\] File too large|the disk of \S+ is full",
        "the disk (or the quota) is full",
        "free some space (df -h; df -i), checkpoint.keep=1, or runs=FOLDER on a larger disk; then headway resume",
    ),
    # --- checkpoints and weights ---
    _sign(
        "unsafe-pickle",
        r"Weights only load failed|WeightsUnpickler error|Can't get local object|cannot pickle|Can't pickle",
        "the file holds (or would hold) Python objects, not only tensors",
        "save tensors and plain values only, as safetensors; torch.load(..., weights_only=False) only for files that "
        "you "
        "made yourself",
    ),
    _sign(
        "torn-checkpoint",
        r"PytorchStreamReader failed|failed finding central directory|SafetensorError|incomplete metadata"
        r"|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer|pickle data was truncated|invalid load key"
        r"|EOFError: Ran out of input|unexpected EOF|not a complete checkpoint|has another size"
        r"|checksum (?:mismatch|error|failed|differs|does not match)|has checksum \w+, \w+ was written",
        "a checkpoint or weights file is cut short or damaged: its writing was interrupted, or a copy was",
        "headway resume takes the newest complete checkpoint by itself; for a downloaded file: delete it and fetch "
        "it again",
    ),
    _sign(
        "size-mismatch",
        r"size mismatch for (?P<parameter>[\w.]+): copying a param with shape (?P<saved>.+?) from checkpoint, "
        r"the shape in "
        r"current model is (?P<model>.+?)\.?$",
        "the weights are another model's: {parameter} is {saved} in the file and {model} in the model",
        "build the model from the config beside the weights; after adding tokens: resize_token_embeddings before "
        "loading",
    ),
    # --- networks ---
    _sign(
        "address-in-use",
        r"EADDRINUSE|address already in use",
        "another process holds the rendezvous port, often a rank of an earlier run that is still alive",
        "another port (launch.port=null takes a free one; MASTER_PORT=29501 elsewhere); who holds it: ss -ltnp",
    ),
    _sign(
        "mismatched-collectives",
        r"Detected mismatch between collectives on ranks|Mismatch between collective operation types"
        r"|collective.*mismatch.*rank",
        "the ranks called different collectives: a branch was taken by some of them only (such as `if rank == 0:`)",
        "move the call out of the test of the rank; headway doctor --script FILE finds it",
    ),
    _sign(
        "connection-refused",
        r"connection refused|ConnectionRefusedError|client socket has (?:failed|timed out)|No route to host"
        r"|Name or service not known|Temporary failure in name resolution|getaddrinfo failed|Network is unreachable"
        r"|gloo connectFullMesh failed",
        "a rank could not reach the address of rank 0: it never started, the port is blocked, or the name leads "
        "elsewhere",
        "headway doctor --hostfile FILE tries names, routes and ports between all hosts, both ways",
        "weak",
    ),
    _sign(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms for (?:recv|send) operation"
        r"|Rank \d+ failed to pass monitoredBarrier|collective operation timeout"
        r"|Application timeout caused pair closure"
        r"|wait timeout after \d+ ?ms|Socket Timeout|store.*timed? ?out",
        "a collective was not joined by every rank before the time-out",
        _ARRIVE,
        "weak",
    ),
    _sign(
        "nccl-system",
        r"ncclSystemError|ncclUnhandledCudaError|unhandled (?:system|cuda) error|ncclInternalError|ncclInvalidUsage",
        "NCCL could not use the network or a device",
        f"set NCCL_SOCKET_IFNAME to the interface that routes to the other hosts; {_DEBUG}",
        "weak",
    ),
    # --- numbers ---
    _sign(
        "not-finite",
        r"Current loss scale already at minimum|\bDiverged\b|loss or gradients? (?:stayed|were|are) (?:non-?"
        r"|not )finite"
        r"|non-finite (?:loss|gradient)|loss is (?:nan|inf)\b|\b(?:nan|inf)s? (?:in|detected)\b",
        "loss or gradients stayed NaN or infinite",
        "lower optimizer.lr or a longer optimizer.warmup; optimizer.clip=1.0; bf16 or fp32 in place of fp16 "
        "(train.precision); then headway resume from the last good checkpoint",
    ),
    # --- the rest of the outside world ---
    _sign(
        "hub-access",
        r"GatedRepoError|RepositoryNotFoundError|401 Client Error|403 Client Error|LocalEntryNotFoundError"
        r"|We couldn't connect to 'https://huggingface",
        "the model hub refused, or could not be reached",
        "set HF_TOKEN and accept the model's licence, or name a local folder: model.from=./folder",
    ),
    _sign(
        "worker-lost",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly|is killed by signal: (?P<signal>\w+))",
        "a process that reads data ended (signal: {signal}): memory, most often",
        "fewer data.workers, or more memory; dmesg -T | grep -i 'killed process'",
    ),
    _sign(
        "time-limit",
        r"DUE TO TIME LIMIT|\bDeadlineExceeded\b|activeDeadlineSeconds",
        "the scheduler's time limit ended the job",
        "headway resume goes on from the last checkpoint; train.stop_after a little below the limit saves before it",
    ),
    _sign(
        "preempted",
        r"DUE TO PREEMPTION|\bPreempting\b|reason: Preempted|\bPreemptionByScheduler\b|spot instance \w* ?interruption",
        "the job was preempted: its machines went to another",
        "headway resume goes on from the last checkpoint; let the scheduler requeue it, with notice before the end",
    ),
    _sign(
        "node-failed",
        r"DUE TO NODE FAILURE|\bNODE_FAIL\b|NodeNotReady|node .{1,80} (?:is|became) unreachable",
        "a host failed under the job",
        "leave that host out (sbatch --exclude=HOST), see headway doctor --hostfile FILE, then headway resume",
    ),
    _sign(
        "killed",
        r"exits with return code = -9\b|exitcode\s*: -9\b|exitcode: -9\b|Signal 9 \(SIGKILL\)|killed by SIGKILL"
        r"|^(?:\S+: line \d+:\s+\d+ Killed\b|Killed(?:\s+\S*python.*)?$)|return code 137|exit code:? 137",
        "the rank was killed from outside (SIGKILL): the kernel does so where the host's memory runs out",
        "dmesg -T | grep -i 'killed process' says whether it was memory; if so: fewer data.workers, no offload, a "
        "smaller "
        "train.micro_batch",
    ),
    _sign(
        "segfault",
        r"Segmentation fault|\bSIGSEGV\b|exitcode\s*: -11\b|return code = -11\b",
        "compiled code crashed: packages built for different torch or CUDA releases, most often",
        "headway doctor compares the versions; PYTHONFAULTHANDLER=1 shows the line",
    ),
    _sign(
        "peer-lost",
        r"connection (?:was )?(?:closed|reset|aborted)|broken pipe\b|recvvalue failed|sendBytes failed"
        r"|remote process exited"
        r"|NCCL communicator was aborted|ncclRemoteError|peer closed|Connection closed by|heartbeat monitor",
        "another rank ended first; this is only its echo",
        "read the logs of the other ranks, and of their hosts",
        "echo",
    ),
)

# A last line of a traceback that fits nothing above. Launchers' own words are no error of a rank.
EXCEPTION = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failed|Warning|Diverged)): ?(?P<text>.*)"
)
LAUNCHERS_OWN = re.compile(
    r"ChildFailedError|CalledProcessError|torch\.distributed\.elastic|SignalException|ProcessRaisedException"
    r"|^KeyboardInterrupt|Warning:|SystemExit"
)


def recognise(line: str) -> tuple[Signature, re.Match[str]] | None:
    """The first signature that fits a line."""
    plain = line.lower()
    for signature in SIGNATURES:
        if signature.hints and not any(hint in plain for hint in signature.hints):
            continue
        if match := signature.pattern.search(line):
            return signature, match
    return None
