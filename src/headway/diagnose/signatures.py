"""What failures look like in logs, what causes them, and what to do. The first that fits a line names it."""

from __future__ import annotations

import re

from headway.diagnose.outside import OUTSIDE
from headway.diagnose.patterns import Signature, sign

LESS_MEMORY = "train.micro_batch halved, then train.activation_checkpointing=true, then strategy=zero-3"
_DEBUG = "start again with launch.debug=true (NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL)"
_ARRIVE = (
    "find the rank that is missing from this collective and read its log above this line; a longer launch.timeout "
    "helps "
    f"only where it was merely slow. To see each rank's last collective {_DEBUG}"
)

SIGNATURES: tuple[Signature, ...] = (
    # --- memory ---
    sign(
        "cuda-out-of-memory",
        r"CUDA out of memory(?:\. Tried to allocate (?P<asked>[\d.]+ \w+))?"
        r"|torch(?:\.cuda)?\.OutOfMemoryError(?!.*CUDA out)|Cuda failure \d* ?'out of memory'"
        r"|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "the GPU's memory ran out (asked for: {asked})",
        LESS_MEMORY,
    ),
    sign(
        "locked-memory",
        r"ibv_(?:create_cq|create_qp|reg_mr\w*|alloc_pd)\b.*Cannot allocate memory"
        r"|Unable to register memory .*Cannot allocate",
        "the network card could not lock memory: the limit on locked memory (ulimit -l) is low for this process",
        "ulimit -l unlimited: memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity for slurmd and containerd, "
        "docker run --ulimit memlock=-1, Kubernetes: the IPC_LOCK capability",
    ),
    sign(
        "host-out-of-memory",
        r"DefaultCPUAllocator: (?:can't|not enough memory: you tried to) allocate(?: memory: you tried to allocate)? "
        r"(?P<asked>\d+ bytes)|^MemoryError\b|Cannot allocate memory|std::bad_alloc|oom-kill:|oom_reaper"
        r"|Out of memory: Killed process|Memory cgroup out of memory|\bOOMKilled\b|oom_kill event"
        r"|srun: error: \S+: tasks? [\d,-]+: Out Of Memory",
        "the host's memory ran out (asked for: {asked})",
        f"{LESS_MEMORY}; fewer data.workers; with offload: strategy.offload=null",
    ),
    # --- programs that are missing or do not fit ---
    sign(
        "missing-module",
        r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)'?",
        "the Python of this rank's host has no module {module}",
        "python -m pip install {module}, in the environment of every host; `headway doctor --hostfile FILE` compares "
        "them",
    ),
    sign(
        "missing-triton",
        r"Cannot find a working triton installation|TritonMissing\b",
        "torch.compile needs Triton, and this environment has none that works",
        "install the triton release that this torch names (`pip show torch`), and a C compiler; or do not compile: "
        "TORCH_COMPILE_DISABLE=1",
    ),
    sign(
        "no-kernel-image",
        r"no kernel image is available for execution on the device|is not compatible with the current PyTorch install",
        "this build of torch (or of an extension) has no kernels for this GPU's architecture",
        "install a torch built for a CUDA release that knows the GPU; rebuild extensions with TORCH_CUDA_ARCH_LIST set",
    ),
    sign(
        "driver",
        r"CUDA driver version is insufficient|Found no NVIDIA driver|NVIDIA driver on your system is too old"
        r"|Driver/library version mismatch|CUDA error: system not yet initialized",
        "the NVIDIA driver is absent, or older than the CUDA release that torch was built with",
        "update the driver (or restart after an update), or install a torch built for an older CUDA; see headway "
        "doctor",
    ),
    sign(
        "kernel-build",
        r"Error building extension '(?P<op>\w+)'|Ninja is required to load C\+\+ extensions|ninja: build stopped"
        r"|CUDA_HOME (?:does not exist|environment variable is not set)|MissingCUDAException|CUDAMismatchException"
        r"|Unable to JIT load the (?P<ext>\w+) op|subprocess\.CalledProcessError: Command '\['ninja'"
        r"|No such file or directory: '(?:\S*/)?(?:nvcc|ninja|[gc]\+\+)'",
        "a kernel that is compiled at first use could not be built: compiler, ninja or CUDA toolkit is missing or "
        "differs",
        "headway doctor names what is missing; headway doctor --build-ops builds ahead of the run",
    ),
    sign(
        "kernel-build",  # what follows where an op could not be loaded: the reason stands above, if anywhere
        r"'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'|module 'cpu_adam' has no attribute",
        "DeepSpeed's CPU Adam could not be loaded: it is compiled at first use, and was not, or for another torch",
        "headway doctor --build-ops CPUAdamBuilder shows the compiler's own words; remove an old build first: "
        "rm -r ~/.cache/torch_extensions",
        "weak",
    ),
    sign(
        "undefined-symbol",
        r"ImportError: (?P<file>\S+\.so\S*): undefined symbol|operator torchvision::nms does not exist"
        r"|GLIBCXX_\S+' not found|cannot open shared object file",
        "a compiled package was built for another torch, or its library is missing",
        "reinstall the package for the installed torch: pip install --force-reinstall --no-deps PACKAGE; torchvision "
        "can "
        "be removed: pip uninstall torchvision",
    ),
    # --- devices ---
    sign(
        "token-out-of-range",
        r"IndexError: index out of range in self|srcIndex < srcSelectDimSize|`t >= 0 && t < n_classes`"
        r"|vectorized_gather_kernel.*index out of bounds|Target \d+ is out of bounds",
        "a token id (or label) is larger than the embedding (or the output) has rows",
        "use the model's own tokenizer, or leave out model.config.vocab; headway plan --check-only compares the two",
    ),
    sign(
        "gpu-fault",
        r"uncorrectable (?:ECC|NVLink) error|GPU has fallen off the bus|\bXid\b.*: (?P<xid>\d+)"
        r"|CUDA error: (?:unspecified launch failure|an illegal memory access was encountered|misaligned address)"
        r"|device-side assert triggered",
        "the GPU stopped: a hardware fault, or a kernel that read outside its memory",
        "nvidia-smi -q -d ECC; with CUDA_LAUNCH_BLOCKING=1 the line that fails is the one that is named",
    ),
    sign(
        "invalid-device",
        r"CUDA error: invalid device ordinal|cuda runtime error \(\d+\) : invalid device ordinal"
        r"|error=\d+ : invalid device ordinal",
        "a rank chose a GPU that is not there: this host has more ranks than GPUs that they may see",
        "start as many ranks as GPUs (--nproc_per_node, --num_gpus); CUDA_VISIBLE_DEVICES renumbers them from 0",
    ),
    sign(
        "same-device",
        r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<two>\d+) both on CUDA device",
        "ranks {one} and {two} use one GPU: a rank does not choose its own device",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first collective; headway doctor --script '
        "FILE finds where the rank is read; or start no more ranks than GPUs",
    ),
    # --- the training script and its settings ---
    sign(
        "config-differs",
        r"DeepSpeed config values that mismatch TrainingArguments",
        "the DeepSpeed JSON and the training arguments say different values; the next lines name them",
        'write "auto" for these in the JSON, so that the arguments fill them in',
    ),
    sign(
        "module-order",
        r"pop from an empty deque.*__param_queue",
        "ZeRO-3 fetches weights ahead in the order of the step before, and the modules ran in another: generation "
        "between steps, a branch, or hooks that were taken off",
        "a newer DeepSpeed; the same modules in each step on every rank; stage3_prefetch_bucket_size=0 shows whether "
        "it is this",
    ),
    sign(
        "batch-sizes",
        r"Check batch related parameters|train_batch_size is not equal to|(?P<what>Micro batch size per gpu|"
        r"Train batch size|Gradient accumulation steps): 0 has to be greater",
        "the batch sizes of the DeepSpeed config do not fit the number of ranks: train_batch_size must be micro batch "
        "x accumulation x ranks",
        "give two of the three sizes only (headway plan --deepspeed-config ds.json --world-size N works them out); "
        "ranks: a world size of 1 means that the launcher's variables did not reach the script",
    ),
    sign(
        "no-gradient",
        r"element \d+ of tensors does not require grad",
        "nothing that the loss depends on is trained: every parameter is frozen, or activation checkpointing cut the "
        "gradient off before a frozen embedding",
        'model.enable_input_require_grads() before training, or gradient_checkpointing_kwargs={{"use_reentrant": '
        "False}}; print which parameters have requires_grad",
    ),
    sign(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "DDP waits for the gradients of parameters that this loss does not use",
        "let every parameter take part in the loss, or freeze those that do not; else DistributedDataParallel(..., "
        "find_unused_parameters=True), which costs time at each step; TORCH_DISTRIBUTED_DEBUG=DETAIL names them",
    ),
    sign(
        "used-twice",
        r"Expected to mark a variable ready only once|parameter \d+ has already been reduced",
        "a parameter's gradient was ready twice in one backward: activation checkpointing of the older kind under DDP "
        "or ZeRO, or a module that is used twice",
        "use_reentrant=False in activation checkpointing; DDP: static_graph=True",
    ),
    sign(
        "dtypes",
        r"(?:mat1 and mat2|self and mat2|m1 and m2) (?:must|to) have the same dtype|expected (?:m1|mat1) and m(?:at)?2 "
        r"to have the same dtype|expected scalar type \w+ but found \w+|Input type \(.+\) and (?:weight|bias) type"
        r"|Must flatten tensors with uniform dtype|Attempting to unscale FP16 gradients"
        r"|FlashAttention only supports? fp16 and bf16",
        "tensors of two precisions meet: a module (an adapter, a norm, a head) is kept in another dtype than the rest",
        "load the whole model in one dtype, or run the forward under torch.autocast; with adapters: "
        "model.to(torch.bfloat16) after they are added",
    ),
    sign(
        "quantized-storage",
        r"Cannot flatten integer dtype tensors",
        "FSDP cannot part weights that are kept in integers (4 or 8 bits)",
        "bnb_4bit_quant_storage=torch.bfloat16 in BitsAndBytesConfig, the dtype of everything else; 8 bits do not go "
        "with FSDP",
    ),
    sign(
        "gathered-twice",
        r"AssertionError: \{{?'id': \d+, 'status': '|ds_active_sub_modules|still has active sub modules",
        "ZeRO-3 let go of a weight that another module still used: a module is called inside another's forward "
        "(generate within training, a shared head), or an earlier error left the forward half done",
        "read what stands above it first; deepspeed.utils.set_z3_leaf_modules(model, [Block]), or ZeRO-2",
    ),
    sign(
        "gpu-library",
        r"CUBLAS_STATUS_(?!ALLOC_FAILED)[A-Z_]+|CUDNN_STATUS_[A-Z_]+|cuDNN error:|Could not load library libcudnn",
        "cuBLAS or cuDNN could not do its work: another release of it is found first, memory is short, or an index "
        "before it was out of range",
        "unset LD_LIBRARY_PATH (torch brings its own); CUDA_LAUNCH_BLOCKING=1 shows which operation; headway doctor "
        "compares releases",
    ),
    # --- disks and shared memory ---
    sign(
        "open-files",
        r"Too many open files|\[Errno 24\]|received 0 items of ancdata"
        r"|unable to open shared memory object <[^>]*> in read-write mode(?!: No space)",
        "this process may not open more files: each tensor that a data worker hands over is one",
        "ulimit -n 65536 in the shell (or the unit, or docker run --ulimit nofile=65536); or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    sign(
        "shared-memory",
        r"bus error|\bSIGBUS\b|shared memory \(shm\)|unable to (?:open|write to|allocate) shared memory|shm_open"
        r"|exitcode\s*: -7\b|return code = -7\b|/dev/shm\S*.*No space left|No space left.*(?:/dev/shm|SemLock)"
        r"|creating shared memory segment|failed to extend /dev/shm",
        "shared memory (/dev/shm) is too small",
        "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory at /dev/shm; or fewer "
        "DataLoader workers",
    ),
    sign(
        "disk-full",
        r"No space left on device|\[Errno 28\]|\bENOSPC\b|Disk quota exceeded|\[Errno 122\]|file write failed"
        r"|StorageFull|PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos"
        r"|\[Errno 27\] File too large|the disk of \S+ is full",
        "the disk (or the quota) is full",
        "free some space (df -h; df -i), checkpoint.keep=1, or runs=FOLDER on a larger disk; then headway resume",
    ),
    # --- checkpoints and weights ---
    sign(
        "unsafe-pickle",
        r"Weights only load failed|WeightsUnpickler error|Can't get local object|cannot pickle|Can't pickle",
        "the file holds (or would hold) Python objects, not only tensors",
        "save tensors and plain values only, as safetensors; torch.load(..., weights_only=False) only for files that "
        "you "
        "made yourself",
    ),
    sign(
        "torn-checkpoint",
        r"PytorchStreamReader failed|failed finding central directory|SafetensorError|incomplete metadata"
        r"|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer|pickle data was truncated|invalid load key"
        r"|EOFError: Ran out of input|unexpected EOF|not a complete checkpoint|has another size"
        r"|checksum (?:mismatch|error|failed|differs|does not match)|has checksum \w+, \w+ was written",
        "a checkpoint or weights file is cut short or damaged: its writing was interrupted, or a copy was",
        "headway resume takes the newest complete checkpoint by itself; for a downloaded file: delete it and fetch "
        "it again",
    ),
    sign(
        "empty-weights",
        r"copying a param with shape torch\.Size\(\[0\]\) from checkpoint",
        "the file holds no weights: it was saved under ZeRO-3 while each rank had only its slice",
        "take the checkpoint's own slices together (python zero_to_fp32.py . pytorch_model.bin in its folder), and "
        "save with stage3_gather_16bit_weights_on_model_save: true from now on",
    ),
    sign(
        "sharded-weights",
        r"shape in current model is torch\.Size\(\[0\]\)|'weight' must be 2-D|weight should have at least three "
        r"dimensions|consumed \d+ numels out of \d+",
        "weights are parted over the ranks (ZeRO-3), and something read or loaded them as if they were whole",
        "with deepspeed.zero.GatheredParameters(list(module.parameters()), modifier_rank=0) around it; load weights "
        "before deepspeed.initialize, with from_pretrained",
    ),
    sign(
        "other-world-size",
        r"checkpoint being loaded used a DP world size of (?P<saved>\d+) but the current world size is (?P<now>\d+)",
        "the checkpoint was written by {saved} ranks and is read by {now}: DeepSpeed's own cannot be parted anew",
        "start with {saved} ranks; or convert it (ds_to_universal.py), or take the weights alone (zero_to_fp32.py); "
        "Headway's own checkpoints resume on any number of ranks",
    ),
    sign(
        "missing-keys",
        r"(?:Missing|Unexpected) key\(s\) in state_dict: \""
        r"|Missing key in checkpoint state_dict: \S"
        r"|FSDP assumes \S+ is in the state_dict|KeyError: .*state_dict_metadata\[",
        "the names in the checkpoint are not the model's: a wrapper's prefix (module., _orig_mod., "
        "_fsdp_wrapped_module.), adapters on one side only, or another model",
        "build and wrap the model as it was when it was saved, before loading; or save without the wrapper "
        "(model.module.state_dict()) and cut the prefix off the file's names",
    ),
    sign(
        "size-mismatch",
        r"size mismatch for (?P<parameter>[\w.]+): copying a param with shape (?P<saved>.+?) from checkpoint, "
        r"the shape in "
        r"current model is (?P<model>.+?)\.?$",
        "the weights are another model's: {parameter} is {saved} in the file and {model} in the model",
        "build the model from the config beside the weights; after adding tokens: resize_token_embeddings before "
        "loading",
    ),
    sign(
        "missing-file",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '?(?P<file>[^']+)'?",
        "a file that the run needs is not on this rank's host: {file}",
        "ls -l it on every host: a path on one host's own disk, or a checkpoint of which only some parts were copied",
    ),
    sign(
        "no-permission",
        r"PermissionError: \[Errno 13\] Permission denied: '?(?P<file>[^']+)'?",
        "this rank may not read or write {file}",
        "ls -ld it as the user that the run has on that host (in a container, often another)",
    ),
    # --- networks ---
    sign(
        "address-in-use",
        r"EADDRINUSE|address already in use",
        "another process holds the rendezvous port, often a rank of an earlier run that is still alive",
        "another port (launch.port=null takes a free one; MASTER_PORT=29501 elsewhere); who holds it: ss -ltnp",
    ),
    sign(
        "mismatched-collectives",
        r"Detected mismatch between collectives on ranks|Mismatch between collective operation types"
        r"|collective.*mismatch.*rank",
        "the ranks called different collectives: a branch was taken by some of them only (such as `if rank == 0:`)",
        "move the call out of the test of the rank; headway doctor --script FILE finds it",
    ),
    sign(
        "connection-refused",
        r"connection refused|ConnectionRefusedError|client socket has (?:failed|timed out)|No route to host"
        r"|Name or service not known|Temporary failure in name resolution|getaddrinfo failed|Network is unreachable"
        r"|gloo connectFullMesh failed|connect\(\) timed out|RendezvousTimeoutError",
        "a rank could not reach the address of rank 0: it never started, the port is blocked, or the name leads "
        "elsewhere",
        "headway doctor --hostfile FILE tries names, routes and ports between all hosts, both ways",
        "weak",
    ),
    sign(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms for (?:recv|send) operation"
        r"|Rank \d+ failed to pass monitoredBarrier|collective operation timeout"
        r"|Application timeout caused pair closure"
        r"|wait timeout after \d+ ?ms|Socket Timeout|store.*timed? ?out",
        "a collective was not joined by every rank before the time-out",
        _ARRIVE,
        "weak",
    ),
    sign(
        "nccl-ranks",
        r"Invalid rank requested : (?P<rank>\d+)/(?P<size>\d+)|NCCL error in: \S+ invalid argument",
        "ranks and world size do not fit: two processes have one rank, or a rank is not below the world size "
        "(rank {rank} of {size})",
        "let the launcher set RANK and WORLD_SIZE; a script that sets them itself must count every process of every "
        "host",
    ),
    sign(
        "nccl-system",
        r"ncclSystemError|ncclUnhandledCudaError|unhandled (?:system|cuda) error|ncclInternalError|ncclInvalidUsage",
        "NCCL could not use the network or a device",
        f"set NCCL_SOCKET_IFNAME to the interface that routes to the other hosts; {_DEBUG}",
        "weak",
    ),
    # --- numbers ---
    sign(
        "not-finite",
        r"Current loss scale already at minimum|\bDiverged\b|loss or gradients? (?:stayed|were|are) (?:non-?"
        r"|not )finite"
        r"|non-finite (?:loss|gradient)|loss is (?:nan|inf)\b|\b(?:nan|inf)s? (?:in|detected)\b",
        "loss or gradients stayed NaN or infinite",
        "lower optimizer.lr or a longer optimizer.warmup; optimizer.clip=1.0; bf16 or fp32 in place of fp16 "
        "(train.precision); then headway resume from the last good checkpoint",
    ),
    *OUTSIDE,
)

# A last line of a traceback that fits nothing above. Launchers' own words are no error of a rank.
EXCEPTION = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failed|Warning|Diverged)): ?(?P<text>.*)"
)
LAUNCHERS_OWN = re.compile(
    r"ChildFailedError|CalledProcessError|torch\.distributed\.elastic|SignalException|ProcessRaisedException"
)
# Where no line names an error, one that begins so is one.
SAID_ALOUD = re.compile(r"^\W{0,3}(?:RUNTIME ERROR|FATAL|CRITICAL|Fatal(?: Python)? error|ERROR)\b(?::|\]| )", re.ASCII)


def is_no_error(text: str) -> bool:
    return "Warning:" in text or "SystemExit" in text or text.startswith("KeyboardInterrupt")


def possible(text: str) -> tuple[Signature, ...]:
    """The signatures that may fit a line of this text: of a healthy log, few."""
    plain = text.lower()
    return tuple(one for one in SIGNATURES if not one.hints or any(hint in plain for hint in one.hints))


def recognise(line: str, among: tuple[Signature, ...] = SIGNATURES) -> tuple[Signature, re.Match[str]] | None:
    """The first signature that fits a line."""
    plain = line.lower()
    for signature in among:
        if signature.hints and not any(hint in plain for hint in signature.hints):
            continue
        if match := signature.pattern.search(line):
            return signature, match
    return None
