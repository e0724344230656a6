"""The faults of launch scripts in shell, read word by word with the variables that the script itself sets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.check.scripts.material import Fault, Script

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}|\$([A-Za-z_]\w*)")
_SEPARATORS = {"&&", "||", ";", "|", "&", "(", ")", "{", "}", "then", "do", "else", "if", "!", "exec", "time", "nohup"}
_SAYS_ONLY = {"echo", "printf", "which", "type", "pip", "pip3", "apt-get", "command", "grep", "alias", "cd"}
DEFAULT_HOSTFILE = Path("/job/hostfile")


@dataclass(frozen=True)
class Command:
    """One command: its words with the script's own variables put in, and the line that it begins on."""

    words: tuple[str, ...]
    line: int

    def option(self, *names: str) -> str | None:
        """The value of `--name VALUE` or `--name=VALUE`; '' for a bare flag; None where it is absent."""
        for position, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name in names:
                following = self.words[position + 1] if position + 1 < len(self.words) else ""
                return value if equals else "" if following.startswith("-") else following
        return None


def commands(text: str) -> Iterator[Command]:
    """Commands in order. Lines that end in a backslash belong together; here documents and comments are left out."""
    variables: dict[str, str] = {}
    heredoc = ""
    pending, first = "", 0
    for number, raw in enumerate(_with_whole_quotes(text.splitlines()), start=1):
        if heredoc:
            heredoc = "" if raw.strip() == heredoc else heredoc
            continue
        if not pending:
            first = number
        if raw.rstrip().endswith("\\") and not raw.lstrip().startswith("#"):
            pending += raw.rstrip()[:-1] + " "
            continue
        line, pending = pending + raw, ""
        if started := re.search(r"<<-?\s*['\"]?(\w+)", line):
            heredoc = started[1]
        yield from _split(line, first, variables)


_LONGEST_QUOTE = 60  # lines; past that an apostrophe stands alone


def _with_whole_quotes(lines: list[str]) -> list[str]:
    """A quoted text of several lines on its first, and empty lines in place of the others."""
    joined = list(lines)
    at = 0
    while at < len(joined):
        end = at + 1
        whole = joined[at]
        while _is_open(whole) and end < min(len(joined), at + _LONGEST_QUOTE):
            whole = f"{whole.rstrip().removesuffix(chr(92))} {joined[end]}"
            end += 1
        if end > at + 1 and not _is_open(whole):
            joined[at:end] = [whole, *[""] * (end - at - 1)]
        at = end if joined[at] == whole else at + 1
    return joined


def _is_open(line: str) -> bool:
    if "'" not in line and '"' not in line:
        return False
    try:
        shlex.split(line, comments=True)
    except ValueError as error:
        return "quotation" in str(error)
    return False


def _split(line: str, number: int, variables: dict[str, str]) -> Iterator[Command]:
    current: list[str] = []
    for word in [*_words(line), ";"]:
        if word not in _SEPARATORS and not word.endswith(";"):
            current.append(word)
            continue
        current += [word[:-1]] if len(word) > 1 and word.endswith(";") else []
        while current and current[0] in ("export", "readonly", "local", "declare"):
            current = current[1:]
        if current and all(_ASSIGNMENT.match(part) for part in current):
            for part in current:
                name, _, value = part.partition("=")
                variables[name] = _expand(value, variables)
        elif current:
            yield Command(tuple(part for one in current for part in _expanded(one, variables)), number)
        current = []


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote that ends on another line
        return text.split("#")[0].split()


def _expanded(word: str, variables: dict[str, str]) -> list[str]:
    """`$ARGS` may hold several words."""
    value = _expand(word, variables)
    return _words(value) if value != word and _VARIABLE.fullmatch(word) else [value]


def _expand(word: str, variables: dict[str, str]) -> str:
    """Variables that the script sets, and `${N:-default}`; unknown ones stay as they are written."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    for _ in range(3):
        word = _VARIABLE.sub(value, word)
    return word


def judge(script: Script) -> list[Fault]:
    """Every fault of one launch script."""
    return [fault for command in commands(script.text) for fault in _judged(command)]


def _judged(command: Command) -> list[Fault]:
    if command.words[0] in _SAYS_ONLY:
        return []
    for position, word in enumerate(command.words):
        rest = Command(command.words[position:], command.line)
        program, following = word.rpartition("/")[2], rest.words[1:3]
        if program in ("bash", "sh") and following[:1] and re.fullmatch(r"-\w*c", following[0]) and len(following) > 1:
            inner = commands(following[1])
            return [fault for one in inner for fault in _judged(Command(one.words, command.line))]
        if program.startswith("python") and following[:1] == ("-m",) and len(following) > 1:
            program = _MODULES.get(following[1], "")
            rest = Command(rest.words[2:], command.line)
        match program:
            case "deepspeed" if len(rest.words) > 1:
                return list(_deepspeed(rest))
            case "docker" | "podman" | "nvidia-docker" if "run" in rest.words[1:3]:
                return list(docker_run(rest))
            case "torchrun" if len(rest.words) > 1:
                return list(_torchrun(rest))
            case "accelerate" if following[:1] == ("launch",):
                return list(_accelerate(rest))
            case _:
                continue
    return []


_MODULES = {
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
}


def _deepspeed(command: Command) -> Iterator[Fault]:
    """--num_nodes means nothing without a list of hosts: the launcher then knows this machine alone."""
    own = Command(_until_script(command.words), command.line)
    nodes = own.option("--num_nodes")
    if nodes is None or not nodes.isdigit() or int(nodes) < 2 or _unread(own):
        return
    if own.option("--hostfile", "-H") is not None or own.option("--no_ssh") is not None:
        return
    if own.option("--launcher") in ("slurm", "openmpi", "mpich", "impi", "mvapich") or DEFAULT_HOSTFILE.is_file():
        return
    what = (
        f"--num_nodes={nodes} without --hostfile: unless {DEFAULT_HOSTFILE} exists DeepSpeed knows this machine alone "
        "and stops with 'Num nodes is >1 but no extra nodes available via hostfile' (older ones trained on one machine)"
    )
    fix = "--hostfile FILE with a line 'node1 slots=4' for each host; or --no_ssh --node_rank=N on each host"
    yield Fault("num-nodes", command.line, what, fix)


def _unread(command: Command) -> bool:
    """Whether a word stands for others that this file does not tell: $ARGS, "${ARGS[@]}"."""
    before = ["", *command.words]
    values = [
        word for last, word in zip(before, command.words, strict=False) if not last.startswith("-") or "=" in last
    ]
    return any(re.fullmatch(r"\$\w+|\$\{[^}]*\}|\$@|\$\*", word) for word in values)


def _until_script(words: tuple[str, ...]) -> tuple[str, ...]:
    """The launcher's own words: what follows the script belongs to the script."""
    for position, word in enumerate(words[1:], start=1):
        if word.endswith(".py"):
            return words[:position]
    return words


def _torchrun(command: Command) -> Iterator[Fault]:
    own = Command(_until_script(command.words), command.line)
    nodes = own.option("--nnodes")
    least = (nodes or "").partition(":")[0]
    if nodes is None or not least.isdigit() or int(nodes.rpartition(":")[2] or 0) < 2 or _unread(own):
        return
    names = ("--master_addr", "--master-addr", "--rdzv_endpoint", "--rdzv-endpoint", "--rdzv_conf", "--rdzv-conf")
    if own.option(*names) is None:
        what = f"--nnodes={nodes} without --master_addr or --rdzv_endpoint: each host waits for the others on itself"
        yield Fault(
            "rendezvous", command.line, what, "--rdzv_backend=c10d --rdzv_endpoint=FIRST_HOST:29500 on each host"
        )


def _accelerate(command: Command) -> Iterator[Fault]:
    own = Command(_until_script(command.words), command.line)
    hosts = own.option("--num_machines")
    if hosts is None or not hosts.isdigit() or int(hosts) < 2 or _unread(own):
        return
    named = ("--main_process_ip", "--rdzv_conf", "--deepspeed_hostfile", "--config_file")
    if own.option(*named) is None:
        what = f"--num_machines={hosts} without --main_process_ip: each host waits for the others on itself"
        yield Fault("rendezvous", command.line, what, "--main_process_ip=FIRST_HOST --machine_rank=N on each host")


def docker_run(command: Command) -> Iterator[Fault]:
    """64 MiB of shared memory, Docker's default, end NCCL and DataLoader workers with a bus error."""
    text = " ".join(command.words)
    trains = any(word in text for word in ("--gpus", "--runtime=nvidia", "nvidia-docker", "deepspeed", "torchrun"))
    trains = trains or command.option("--runtime") == "nvidia" or command.option("--device", "") == "nvidia.com/gpu=all"
    trains = trains or command.words[0].endswith("nvidia-docker")
    ipc = command.option("--ipc")
    if not trains or command.option("--shm-size") is not None or _shares(ipc):
        return
    if re.search(r":/dev/shm\b|/dev/shm[:,]|destination=/dev/shm|--tmpfs[ =]/dev/shm", text):
        return
    what = "docker run without --shm-size: /dev/shm has 64 MiB, and NCCL or DataLoader workers end with a bus error"
    yield Fault("shm-size", command.line, what, "add --shm-size=8g (or --ipc=host)", must=not _unread(command))


def _shares(ipc: str | None) -> bool:
    return ipc in ("host", "shareable") or (ipc or "").startswith("container:")


def named_configs(script: Script) -> Iterator[tuple[str, str]]:
    """(file name of a Python script, the DeepSpeed JSON that a command starts it with)."""
    for command in commands(script.text):
        config = command.option("--deepspeed_config", "--deepspeed-config")
        for word in command.words:
            if config and word.endswith(".py"):
                yield Path(word).name, config


def torchrun_scripts(script: Script) -> Iterator[tuple[str, str]]:
    """(file name of a Python script, the place that starts it with torchrun)."""
    for command in commands(script.text):
        text = " ".join(command.words)
        if re.search(r"\btorchrun\b|torch\.distributed\.run\b", text):
            for word in command.words:
                if word.endswith(".py"):
                    yield Path(word).name, f"{script.path}:{command.line}"
