"""What ends a rank from outside: signals, schedulers, machines; and the accounts of launchers that do not know why."""

from __future__ import annotations

from headway.diagnose.patterns import Signature, sign

_OWN_LOGS = (
    "give the ranks' own logs: headway doctor --log FOLDER. To have them: torchrun --log-dir=logs --tee=3, deepspeed "
    "--enable_each_rank_log=logs, srun --output=rank-%t.log; of a NCCL time-out, NCCL_DEBUG=INFO as well"
)

OUTSIDE: tuple[Signature, ...] = (
    sign(
        "hub-access",
        r"GatedRepoError|RepositoryNotFoundError|401 Client Error|403 Client Error|LocalEntryNotFoundError"
        r"|We couldn't connect to 'https://huggingface",
        "the model hub refused, or could not be reached",
        "set HF_TOKEN and accept the model's licence, or name a local folder: model.from=./folder",
    ),
    sign(
        "model-files",
        r"Can't load (?:the )?(?:tokenizer|model|configuration|config|feature extractor|image processor) (?:for|of) "
        r"'(?P<name>[^']+)'|(?P<folder>\S+) does not appear to have a file named (?P<file>\S+)",
        "transformers found no complete model under that name: a folder that lacks a file, a name that is mistyped, "
        "or a hub that cannot be reached from this host",
        "ls the folder on every host (config.json, tokenizer files, weights); after training save the tokenizer with "
        "the model; without a network: download once, then HF_HUB_OFFLINE=1",
    ),
    sign(
        "worker-crashed",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: (?P<signal>Segmentation fault|Aborted"
        r"|Floating point exception|Illegal instruction)",
        "compiled code crashed in a process that reads data ({signal}): a decoder, or a library that was used before "
        "the fork",
        "PYTHONFAULTHANDLER=1 and 0 workers show the line; multiprocessing_context='spawn', or one thread in the "
        "library (cv2.setNumThreads(0), OMP_NUM_THREADS=1)",
    ),
    sign(
        "worker-told-to-end",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: (?:Terminated|Interrupt|Hangup)",
        "a process that reads data was told to end, as all of a rank's processes are when the rank is",
        "read what ended the rank: the lines above, the other ranks' logs, and the scheduler's",
        "echo",
    ),
    sign(
        "worker-lost",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly|is killed by signal: (?P<signal>\w+))",
        "a process that reads data ended (signal: {signal}): memory, most often",
        "fewer data.workers, or more memory; dmesg -T | grep -i 'killed process'",
    ),
    sign(
        "time-limit",
        r"DUE TO TIME LIMIT|\bDeadlineExceeded\b|activeDeadlineSeconds",
        "the scheduler's time limit ended the job",
        "headway resume goes on from the last checkpoint; train.stop_after a little below the limit saves before it",
    ),
    sign(
        "preempted",
        r"DUE TO (?:PREEMPTION|JOB REQUEUE)|this job is preempted|\bPreempting\b"
        r"|reason: Preempted|\bPreemptionByScheduler\b|spot instance \w* ?interruption",
        "the job was preempted: its machines went to another",
        "headway resume goes on from the last checkpoint; let the scheduler requeue it, with notice before the end",
    ),
    sign(
        "evicted",
        r"node was low on resource: (?P<what>[\w-]+)|Reason:\s+Evicted|Warning\s+Evicted",
        "the node ran short ({what}), and Kubernetes ended the pod",
        "requests equal to limits, so that the pod is among the last to go; more memory, or an emptyDir with a "
        "sizeLimit where its disk was short; then headway resume",
    ),
    sign(
        "node-failed",
        r"DUE TO NODE FAILURE|\bNODE_FAIL\b|NodeNotReady|node .{1,80} (?:is|became) unreachable",
        "a host failed under the job",
        "leave that host out (sbatch --exclude=HOST), see headway doctor --hostfile FILE, then headway resume",
    ),
    sign(
        "killed",
        r"exits with return code = -9\b|exitcode\s*: -9\b|exitcode: -9\b|Signal 9 \(SIGKILL\)"
        r"|killed by SIGKILL(?! by OOM killer due)"
        r"|^\S+: line \d+:\s+\d+ Killed\b|^Killed(?:\s+\S*python.*)?$|return code 137|exit (?:status )?code:?\s+137\b"
        r"|died with <Signals\.SIGKILL|terminated with signal SIGKILL|exited on signal 9\b"
        r"|srun: error: \S+: tasks? [\d,-]+: Killed",
        "the rank was killed from outside (SIGKILL): the kernel does so where the host's memory runs out",
        "dmesg -T | grep -i 'killed process' says whether it was memory; if so: fewer data.workers, no offload, a "
        "smaller "
        "train.micro_batch",
    ),
    sign(
        "segfault",
        r"Segmentation fault|\bSIGSEGV\b(?! or other)|exitcode\s*: -11\b|return code = -11\b",
        "compiled code crashed: packages built for different torch or CUDA releases, most often",
        "headway doctor compares the versions; PYTHONFAULTHANDLER=1 shows the line",
    ),
    sign(
        "scheduler-start",
        r"srun: error: (?:Task launch for \S+ failed on node (?P<node>\S+?):|Unable to (?:create step|confirm "
        r"allocation|allocate resources))(?P<why>.*)",
        "Slurm could not start the processes on a host ({node}):{why}",
        "scontrol show node says its state; 'credential expired' means that the hosts' clocks differ; leave it out: "
        "sbatch --exclude=HOST",
    ),
    sign(
        "told-to-end",
        r"SignalException: Process \d+ got signal: (?P<signal>\d+)|Received (?P<name>\S+) death signal",
        "the launcher itself was told to end: by signal 1 (SIGHUP) where a terminal closed, 2 by Ctrl-C, 15 (SIGTERM) "
        "by the scheduler or kill",
        "let it run without the terminal: tmux, nohup, sbatch, or headway train --detach; then headway resume",
        "weak",
    ),
    sign(
        "peer-lost",
        r"connection (?:was )?(?:closed|reset|aborted)|broken pipe\b|recvvalue failed|sendBytes failed"
        r"|remote process exited"
        r"|NCCL communicator was aborted|ncclRemoteError|peer closed|Connection closed by|heartbeat monitor",
        "another rank ended first; this is only its echo",
        "read the logs of the other ranks, and of their hosts",
        "echo",
    ),
    sign(
        "rendezvous-lost",
        r"RendezvousConnectionError|RendezvousClosedError|connection to the C10d store has failed",
        "this host's launcher did not reach the first host's, or lost it: it never started, has ended, or the port is "
        "blocked",
        "read the first host's log; headway doctor --hostfile FILE tries the port both ways",
        "echo",
    ),
    # --- launchers that do not know why ---
    sign(
        "aborted",
        r"exitcode\s*: -6\b|exitcode: -6\)|return code = -6\b|Signal 6 \(SIGABRT\)|died with <Signals\.SIGABRT"
        r"|exited on signal 6\b|terminated with signal SIGABRT|tasks? [\d,-]+: Aborted"
        r"|^\S+: line \d+:\s+\d+ Aborted\b",
        "compiled code ended the process (SIGABRT): NCCL's watchdog after a collective that did not end, most often, "
        "or a check that failed; the rank's own words are not in this log",
        _OWN_LOGS,
        "launcher",
    ),
    sign(
        "ray-worker",
        r"ray\.exceptions\.(?:RayActorError|ActorDiedError|WorkerCrashedError)"
        r"|worker died or was killed while executing a task by an unexpected system error"
        r"|The actor is dead because its (?:worker process|owner|node) has died",
        "a process that Ray started ended, and this is only Ray's account: it was out of memory, it crashed, or its "
        "host was lost",
        "the dead process's own words: /tmp/ray/session_latest/logs/worker-*.err on the host that Ray names; dmesg -T "
        "there; RAY_DEDUP_LOGS=0 shows every rank's lines",
        "launcher",
    ),
    sign(
        "no-words",
        r"exitcode\s*: (?P<a>-?[1-9]\d*) \(pid|failed \(exitcode: (?P<b>-?[1-9]\d*)\)"
        r"|exits with return code = (?P<c>-?[1-9]\d*)|returned non-zero exit status (?P<d>\d+)"
        r"|exited with non-zero status (?P<e>[1-9]\d*)|tasks? [\d,-]+: Exited with exit code (?P<f>\d+)"
        r"|ssh exited with exit code (?P<g>[1-9]\d*)|process \d+ terminated with exit code (?P<h>[1-9]\d*)"
        r"|process returned a\s+non-zero exit code|processes exited with non-zero status"
        r"|srun: error: Timed out waiting for job step to complete",
        "a rank ended, and no line of this log says why: this is only the launcher's account of it",
        _OWN_LOGS,
        "launcher",
    ),
)
