"""`headway doctor --script`: the faults of the guides' own listings, and no alarm on sound scripts."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from headway.check.report import Report
from headway.check.scripts import material
from headway.check.scripts.read import read_scripts
from headway.cli.main import main
from headway.errors import UserError

GUIDES = Path(__file__).parents[1] / "cases" / "guides"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The first guide's project, laid out as it says."""
    for source, place in {
        "train.py.txt": "src/train.py",
        "dataset.py.txt": "src/dataset.py",
        "model.py.txt": "src/model.py",
        "ds_config.json.txt": "configs/ds_config.json",
        "launch_training.sh.txt": "scripts/launch_training.sh",
        "Dockerfile.txt": "Dockerfile",
        "requirements.txt": "requirements.txt",
    }.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text((GUIDES / source).read_text())
    return tmp_path


def found(report: Report) -> dict[str, tuple[str, int]]:
    """Rule -> (file, line) of everything but green."""
    places: dict[str, tuple[str, int]] = {}
    for verdict in report.verdicts:
        if verdict.level != "green":
            path, line, _ = verdict.evidence.split(":", 2)
            places[verdict.name] = (Path(path).name, int(line))
            assert verdict.fix
    return places


def of(tmp_path: Path, text: str, name: str = "train.py") -> Report:
    (tmp_path / name).write_text(textwrap.dedent(text))
    return read_scripts([tmp_path / name])


def test_the_first_guide(project: Path) -> None:
    report = read_scripts([project])
    assert found(report) == {
        "local-rank": ("train.py", 24),
        "config-twice": ("train.py", 37),
        "optimizer-twice": ("train.py", 37),
        "two-loaders": ("train.py", 37),
        "rank-only-collective": ("train.py", 64),
        "random-state": ("train.py", 64),
        "random-data": ("dataset.py", 15),
        "num-nodes": ("launch_training.sh", 8),
        "no-nvcc": ("Dockerfile", 1),
    }
    assert report.exit_code == 2
    assert [v.finding for v in report.verdicts if v.level == "green"] == [
        f"{project}/src/model.py: nothing found (python)"
    ]


def test_its_quick_start_with_torchrun_leaves_every_rank_on_the_first_gpu(project: Path) -> None:
    (project / "quick.sh").write_text((GUIDES / "quick_test.sh.txt").read_text())
    alone = read_scripts([project / "src" / "train.py"])
    assert next(v for v in alone.verdicts if v.name == "local-rank").level == "yellow"  # right under `deepspeed`
    both = read_scripts([project / "src" / "train.py", project / "quick.sh"])
    verdict = next(v for v in both.verdicts if v.name == "local-rank")
    assert verdict.level == "red"
    assert f"{project}/quick.sh:3" in verdict.finding


def test_the_second_guide_uses_the_loader_that_it_gets(tmp_path: Path) -> None:
    report = of(tmp_path, (GUIDES / "second_guide.py.txt").read_text())
    assert report.exit_code == 0


def test_the_command_prints_json_and_its_exit_code(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--script", str(project / "src" / "dataset.py"), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == 1
    assert said["verdicts"][0]["evidence"].endswith("randint(0, self.vocab_size, (self.seq_length,))")
    assert main(["doctor", "--script", str(project / "src" / "model.py"), "--all"]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert main(["doctor", "--script", str(project / "src")]) == 2
    assert capsys.readouterr().out.startswith("MUST FIX")


def test_paths_that_are_no_scripts(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    with pytest.raises(UserError) as caught:
        read_scripts([tmp_path / "notes.txt", tmp_path / "absent.py"])
    assert "is no Python, shell script" in str(caught.value)
    assert f"nothing at {tmp_path}/absent.py" in str(caught.value)
    assert found(of(tmp_path, "print 'two'\n")) == {"syntax": ("train.py", 1)}


def test_a_deepspeed_json_is_judged_and_another_json_is_not(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{\n "train_batch_size": 8,\n "gradient_cliping": 1.0\n}\n')
    (tmp_path / "package.json").write_text('{"name": "mine", "gradient_cliping": 1}')
    assert found(read_scripts([tmp_path])) == {"deepspeed-json": ("ds.json", 3)}
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8')
    assert found(read_scripts([tmp_path / "ds.json"])) == {"deepspeed-json": ("ds.json", 1)}
    for inside, sound in (
        ('"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 3}}', False),
        ('"scheduler": {"type": "OneCycel"}', False),
        ('"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}}', True),
        ('"scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 9}}', True),
    ):
        (tmp_path / "ds.json").write_text(f'{{"train_batch_size": 8, {inside}}}')
        assert found(read_scripts([tmp_path / "ds.json"])).keys() == (set() if sound else {"deepspeed-json"})
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    assert [v.level for v in read_scripts([tmp_path / "ds.json"]).verdicts] == ["green"]


def test_files_that_are_written_oddly(tmp_path: Path) -> None:
    """Nothing of a user's file is a traceback of Headway's."""
    deep = of(tmp_path, "x = " + "+".join(["1"] * 6000))
    assert [(v.name, v.level) for v in deep.verdicts] == [("syntax", "yellow")]
    text = "import torch.distributed as dist\r\nif dist.get_rank() == 0:\r\n    dist.barrier()\r\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / "train.py").write_bytes(text.encode(encoding))
        assert found(read_scripts([tmp_path / "train.py"])) == {"rank-only-collective": ("train.py", 3)}
    (tmp_path / "train.py").write_bytes(b"import os\0\n")
    assert found(read_scripts([tmp_path / "train.py"])) == {"syntax": ("train.py", 1)}


# --- collectives that one rank alone reaches -------------------------------------------------------------------------

HEAD = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed import all_reduce
import deepspeed
engine, _, _, _ = deepspeed.initialize(model=model, config=path)
rank = dist.get_rank()
"""
KEPT = "\nstate = torch.get_rng_state()\n"  # so that the rule on random states is silent


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("if rank == 0:\n    dist.barrier()", 10),
        ("if 0 == dist.get_rank():\n    all_reduce(loss)", 10),
        ("if not rank:\n    engine.save_checkpoint('out')", 10),
        ("if int(os.environ['RANK']) == 0:\n    print(1)\n    torch.distributed.broadcast(x, 0)", 11),
        ("is_main = rank == 0\nif is_main and due:\n    engine.save_checkpoint('out')", 11),
        ("if rank != 0:\n    pass\nelse:\n    engine.save_16bit_model('out')", 12),
        ("if rank != 0:\n    sys.exit(0)\ndist.all_gather_object(a, b)", 11),
        ("def end():\n    if rank > 0:\n        return\n    engine.save_checkpoint('out')", 12),
        ("for step in range(9):\n    if rank != 0:\n        continue\n    dist.barrier()", 12),
        ("def save(model_engine):\n    model_engine.save_checkpoint('out')\nif rank == 0:\n    save(engine)", 12),
        ("try:\n    pass\nfinally:\n    if rank == 0 or not dist.is_initialized():\n        dist.barrier()", 13),
        ("if rank == 0:\n    with torch.no_grad():\n        engine.backward(loss)", 11),
        ("@rank_zero_only\ndef end():\n    engine.save_checkpoint('out')", 11),
        ("net = FSDP(net)\nif rank == 0:\n    torch.save(net.state_dict(), 'model.pt')", 11),
        ("x = 1\nif args.local_rank in [-1, 0]:\n    dist.barrier()", 11),
        ("def main():\n    def save():\n        dist.barrier()\n    if dist.get_rank() == 0:\n        save()", 13),
        ("def a():\n    b()\ndef b():\n    dist.barrier()\nif rank == 0:\n    a()", 14),
        ("class T:\n def end(self):\n  if self.rank == 0:\n   self.sync()\n def sync(self):\n  dist.barrier()", 12),
        ("if dist.get_rank():\n    sys.exit()\ndist.barrier()", 11),
        ("from torch.distributed import barrier as wait, get_rank as who\nif who() == 0:\n    wait()", 11),
        ("def first():\n    return dist.get_rank() == 0\nif first():\n    dist.barrier()", 12),
        ("x = dist.barrier() if rank == 0 else None", 9),
        ("rank == 0 and dist.barrier()", 9),
        ("rank != 0 or dist.barrier()", 9),
        ("while rank == 0:\n    dist.barrier()", 10),
        ("match rank:\n    case 0:\n        dist.barrier()", 11),
        ("if 1 > rank:\n    dist.barrier()", 10),
        ("if (r := dist.get_rank()) == 0:\n    dist.barrier()", 10),
        ("if rank == 3:\n    dist.barrier()", 10),
        ("if os.environ.get('RANK', '0') == '0':\n    dist.barrier()", 10),
        ("import torch.distributed.checkpoint as dcp\nif rank == 0:\n    dcp.save(state)", 11),
        ("if rank == 0:\n    with deepspeed.zero.GatheredParameters(net.parameters()):\n        pass", 10),
        ("from accelerate import Accelerator\na = Accelerator()\nif a.is_main_process:\n    a.gather(x)", 12),
        ("from accelerate import Accelerator\na = Accelerator()\nif a.is_main_process:\n    a.save_state('x')", 12),
        ("from transformers import Trainer\nt = Trainer(net)\nif t.is_world_process_zero():\n    t.evaluate()", 12),
        ("if rank == 0:\n    loss = engine(batch)", 10),
        (
            "def a():\n    if rank != 0:\n        dist.barrier()\n    if rank == 0:\n        dist.barrier()\n"
            "def b():\n    if rank == 0:\n        dist.barrier()",
            16,
        ),
        ("if rank == 0:\n    text = engine.module.generate(prompt)", 10),
        ("def valid(batch):\n    return engine(batch)\nif rank == 0:\n    valid(batch)", 12),
        ("net = FSDP(net)\nif rank == 0:\n    loss = net(batch)", 11),
        ("with torch.no_grad():\n    if rank != 0:\n        sys.exit()\ndist.barrier()", 12),
        ("for step in steps:\n    if not is_main_process():\n        continue\n    engine.save_checkpoint('out')", 12),
        ("@accelerator.on_process(process_index=0)\ndef end():\n    dist.barrier()", 11),
        ("@PartialState().on_main_process\ndef end():\n    dist.all_reduce(x)", 11),
    ],
)
def test_a_collective_under_a_test_of_the_rank(tmp_path: Path, body: str, line: int) -> None:
    rules = found(of(tmp_path, HEAD + body + KEPT))
    assert rules == {"rank-only-collective": ("train.py", line)}


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0:\n    print(1)\nengine.save_checkpoint('out')",
        "if args.local_rank not in [-1, 0]:\n    dist.barrier()\nread()\nif args.local_rank == 0:\n    dist.barrier()",
        "if rank == 0:\n    dist.broadcast(a, 0)\nelse:\n    dist.broadcast(b, 0)",
        "if rank == 0 and due:\n    print(1)\nelse:\n    dist.barrier()\ndist.barrier()",
        "if rank == 0 or stage == 3:\n    engine.save_checkpoint('out')",
        "if rank == 0:\n    torch.save(model.state_dict(), 'model.pt')\n    model.save_pretrained('out')",
        "if rank == 0:\n    dist.barrier(group=leaders)",
        "if rank == 1:\n    dist.recv(x, 0)\nelse:\n    dist.send(x, 1)",
        "if args.local_rank == -1:\n    pass\nelse:\n    dist.barrier()",
        "if rank == 0:\n    optimizer.step()\n    saver.save_checkpoint('out')",
        "net = FSDP(net)\nstate = net.state_dict()\nif rank == 0:\n    torch.save(state, 'model.pt')",
        "if rank == 0:\n    def later():\n        dist.barrier()",
        "if args.lora_rank == 0 or lora_config.rank > 0:\n    dist.barrier()",
        "world_rank = 16\nif world_rank > 0:\n    dist.barrier()",
        "if rank == 0:\n    search_engine.step()\n    torch.gather(a, 0, b)\n    functools.reduce(f, a)",
        "def mean(x, everywhere):\n    if everywhere:\n        dist.all_reduce(x)\nif rank == 0:\n    mean(x, False)",
        "class A:\n def end(self):\n  dist.barrier()\nclass B:\n def end(self):\n  print(1)\nif rank == 0:\n B().end()",
        "from accelerate import Accelerator\na = Accelerator()\nif a.is_main_process:\n    a.log({}); a.save(n, 'x')",
        "x = dist.barrier() if dist.is_initialized() else None",
        "due = rank == 0\ndue = True\nif due:\n    dist.barrier()",
        "rank == 0 and print(1)\ndist.barrier()",
        "loss = engine(batch)\nif rank == 0:\n    print(loss)",
        "if rank == 0:\n    engine.eval()\n    make_engine()\n    net(batch)\n    Engine()",
        "with torch.no_grad():\n    if rank != 0:\n        pass\ndist.barrier()",
        "def one():\n    with lock:\n        if rank != 0:\n            return\n    print(1)\none()\ndist.barrier()",
        "class First:\n def __enter__(self):\n  if rank != 0:\n   dist.barrier()\n def __exit__(self, *error):\n"
        "  if rank == 0:\n   dist.barrier()",
        "with accelerator.main_process_first():\n    data = read()\naccelerator.wait_for_everyone()",
        "@accelerator.on_main_process\ndef end():\n    print(1)\ndist.barrier()",
        "from accelerate import Accelerator\na = Accelerator()\na.get_state_dict = mine\n"
        "if a.is_main_process:\n    a.save_model(state, 'out')",
    ],
)
def test_what_every_rank_reaches_is_no_fault(tmp_path: Path, body: str) -> None:
    assert found(of(tmp_path, HEAD + body + KEPT)) == {}


@pytest.mark.parametrize(("stage", "found_"), [(2, {}), (3, {"rank-only-collective": ("train.py", 6)})])
def test_a_forward_on_one_rank_where_the_stage_is_known(tmp_path: Path, stage: int, found_: dict[str, object]) -> None:
    text = f"""
        import deepspeed
        settings = dict(train_batch_size=8, zero_optimization={{"stage": {stage}}})
        engine, _, _, _ = deepspeed.initialize(model=net, config=settings)
        if rank == 0:
            engine(batch)
        """
    assert found(of(tmp_path, text)) == found_


def test_an_engine_that_another_file_made_is_known_by_its_words(tmp_path: Path) -> None:
    save = "model.save_checkpoint('out', client_state={'rng': 1})"
    text = f"import deepspeed\nmodel = build()\nif rank == 0:\n    {save}"
    assert found(of(tmp_path, text)) == {"rank-only-collective": ("train.py", 4)}
    assert found(of(tmp_path, text.replace("deepspeed", "mine"))) == {}


LOCAL_RANK = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", "--local_rank", type=int, default=0)
args = parser.parse_args()
local_rank = args.local_rank
{more}
device = torch.device(f"cuda:{{local_rank}}")
"""


def test_a_copy_of_the_local_rank(tmp_path: Path) -> None:
    assert found(of(tmp_path, LOCAL_RANK.format(more=""))) == {"local-rank": ("train.py", 9)}
    mended = "if local_rank == -1:\n    local_rank = torch.distributed.get_rank()"
    assert found(of(tmp_path, LOCAL_RANK.format(more=mended))) == {}
    read = "import os\nlocal_rank = int(os.environ.get('LOCAL_RANK', 0))"
    assert found(of(tmp_path, LOCAL_RANK.format(more=read))) == {}


def test_the_local_rank_in_a_name_and_in_an_argument(tmp_path: Path) -> None:
    head = LOCAL_RANK.partition("local_rank = ")[0]
    assert found(of(tmp_path, head + 'net.to(f"cuda:{args.local_rank}")')) == {"local-rank": ("train.py", 7)}
    handed = "def put(gpu):\n    torch.cuda.set_device(gpu)\nput(args.local_rank)"
    assert found(of(tmp_path, head + handed)) == {"local-rank": ("train.py", 8)}
    assert found(of(tmp_path, head + 'print(f"rank {args.local_rank}")')) == {}
    for own in ("model_engine", "trainer", "self", "accelerator.state"):  # what a library gives is LOCAL_RANK
        assert found(of(tmp_path, head + f"torch.cuda.set_device({own}.local_rank)")) == {}
    kept = "self.local_rank = args.local_rank\ntorch.cuda.set_device(self.local_rank)"
    assert found(of(tmp_path, head + kept)) == {"local-rank": ("train.py", 8)}


@pytest.mark.parametrize(
    "use",
    [
        'torch.cuda.set_device(vars(args)["local_rank"])',
        'torch.cuda.set_device(args.__dict__["local_rank"])',
        'torch.cuda.set_device(getattr(args, "local_rank", 0))',
        "torch.cuda.set_device(self.args.local_rank)",
        'opt = vars(args)["local_rank"]\ntorch.cuda.set_device(opt)',
    ],
)
def test_the_local_rank_by_another_way(tmp_path: Path, use: str) -> None:
    head = LOCAL_RANK.partition("local_rank = ")[0]
    assert found(of(tmp_path, head + use)) == {"local-rank": ("train.py", 7 + use.count("\n"))}
    assert found(of(tmp_path, head + use.replace("local_rank", "device_index"))) == {}
    assert found(of(tmp_path, head + use + '\nos.environ["LOCAL_RANK"]')) == {}


OPTIONS = {
    "click": (
        "import click\n@click.command()\n@click.option('--local-rank', default=0)\ndef main(local_rank):\n    {use}",
        "local_rank",
    ),
    "typer": (
        "import typer\napp = typer.Typer()\n@app.command()\ndef main(local_rank: int = typer.Option(-1)):\n    {use}",
        "local_rank",
    ),
    "fire": ("import fire\ndef main(size=3, local_rank=0):\n    {use}\nfire.Fire(main)", "local_rank"),
    "absl": ("from absl import flags\nflags.DEFINE_integer('local_rank', 0, 'which')\n{use}", "flags.FLAGS.local_rank"),
    "HfArgumentParser": (
        "from dataclasses import dataclass, field\nfrom transformers import HfArgumentParser\n@dataclass\nclass Mine:\n"
        "    local_rank: int = field(default=-1)\nargs, = HfArgumentParser(Mine).parse_args_into_dataclasses()\n{use}",
        "args.local_rank",
    ),
    "simple_parsing": (
        "import simple_parsing\nfrom dataclasses import dataclass\n@dataclass\nclass Mine:\n    local_rank: int = 0\n"
        "args = simple_parsing.parse(Mine)\n{use}",
        "args.local_rank",
    ),
}


@pytest.mark.parametrize("package", OPTIONS)
def test_the_local_rank_as_an_option_of_other_packages(tmp_path: Path, package: str) -> None:
    text, value = OPTIONS[package]
    faulty = text.format(use=f"torch.cuda.set_device({value})")
    report = found(of(tmp_path, "import torch\n" + faulty))
    assert report.keys() == {"local-rank"}
    assert found(of(tmp_path, "import torch\n" + text.format(use=f"print({value})"))) == {}
    of_transformers = faulty.replace("class Mine:", "class Mine(TrainingArguments):")  # reads LOCAL_RANK itself
    if of_transformers != faulty and package == "HfArgumentParser":
        assert found(of(tmp_path, "import torch\n" + of_transformers)) == {}


UNPACKED = """
import deepspeed
from torch.utils.data import DataLoader
settings = {{"train_batch_size": 8, "optimizer": {{"type": "Adam"}}}}
kwargs = {built}
{more}
engine, _, loader, _ = deepspeed.initialize(model=net, **kwargs)
"""


@pytest.mark.parametrize(
    ("built", "more", "rules"),
    [
        ('{"config": settings, "optimizer": own}', "", {"optimizer-twice"}),
        ("dict(config=settings, optimizer=own)", "", {"optimizer-twice"}),
        ("dict(config=settings)", 'kwargs["optimizer"] = own', {"optimizer-twice"}),
        ("dict(config=settings)", "kwargs.update(optimizer=own)", {"optimizer-twice"}),
        ("dict(config=settings)", 'kwargs.update({"optimizer": own})', {"optimizer-twice"}),
        ("dict(training_data=data)", "mine = DataLoader(data)", {"two-loaders"}),
        ('{"config": settings, "optimizer": None}', "", set[str]()),
        ("dict(config=settings)", "if own:\n    kwargs['optimizer'] = own", set[str]()),
        ("dict(config=settings, optimizer=own)", "kwargs = other()", set[str]()),
        ("dict(training_data=data)", "mine = DataLoader(held_out)", set[str]()),
        ("read()", "", set[str]()),
    ],
)
def test_arguments_of_initialize_in_a_dict(tmp_path: Path, built: str, more: str, rules: set[str]) -> None:
    assert found(of(tmp_path, UNPACKED.format(built=built, more=more))).keys() == rules


# --- the other rules -------------------------------------------------------------------------------------------------

SAMPLED = """
from torch.utils.data import DataLoader, DistributedSampler
sampler = DistributedSampler(train_set{options})
for epoch in range(3):
    {first}
    for batch in DataLoader(train_set, sampler=sampler):
        step(batch)
"""


def test_a_sampler_without_set_epoch(tmp_path: Path) -> None:
    assert found(of(tmp_path, SAMPLED.format(options="", first="pass"))) == {"set-epoch": ("train.py", 3)}
    assert found(of(tmp_path, SAMPLED.format(options="", first="sampler.set_epoch(epoch)"))) == {}
    assert found(of(tmp_path, SAMPLED.format(options=", shuffle=False", first="pass"))) == {}
    by_number = SAMPLED.replace("epoch in", "e in").replace("DataLoader(train_set, sampler=sampler)", "loader")
    assert found(of(tmp_path, by_number.format(options="", first="pass"))) == {"set-epoch": ("train.py", 3)}
    other = SAMPLED.format(options="", first="more.set_epoch(epoch)") + "more = DistributedSampler(extra)\n"
    assert found(of(tmp_path, other)) == {"set-epoch": ("train.py", 3)}
    one_pass = SAMPLED.format(options="", first="pass").replace("for epoch in range(3)", "for shard in shards")
    assert found(of(tmp_path, one_pass)) == {}


def test_data_that_is_drawn(tmp_path: Path) -> None:
    text = """
        import numpy as np
        class Noise:
            def __getitem__(self, index):
                {seed}
                return np.random.rand(8){use}
        """
    assert found(of(tmp_path, text.format(seed="pass", use=""))) == {"random-data": ("train.py", 6)}
    assert found(of(tmp_path, text.format(seed="np.random.seed(index)", use=""))) == {}
    assert found(of(tmp_path, text.format(seed="pass", use=" + self.images[index]"))) == {}  # augmentation


def test_a_stream_that_is_drawn(tmp_path: Path) -> None:
    text = """
        import torch
        class Noise(torch.utils.data.IterableDataset):
            def __iter__(self):
                {seed}
                while True:
                    yield torch.randint(0, 9, (8,))
        """
    assert found(of(tmp_path, text.format(seed="pass"))) == {"random-data": ("train.py", 7)}
    assert found(of(tmp_path, text.format(seed="torch.manual_seed(self.seed)"))) == {}


def test_arguments_by_position_and_states_by_name(tmp_path: Path) -> None:
    text = """
        import deepspeed, torch
        engine, *_ = deepspeed.initialize(None, model, own, config={{"optimizer": {{"type": "Adam"}}}})
        state = {{"model": model.state_dict(), "optimizer": own.state_dict(){more}}}
        torch.save(state, "last.pt")
        """
    both = {"optimizer-twice": ("train.py", 3), "random-state": ("train.py", 5)}
    assert found(of(tmp_path, text.format(more=""))) == both
    assert list(found(of(tmp_path, text.format(more=', "rng": torch.get_rng_state()')))) == ["optimizer-twice"]


def test_a_config_written_in_the_script(tmp_path: Path) -> None:
    text = """
        import deepspeed
        config = {{"optimizer": {{"type": "Adam"}}, "zero_optimization": {{"stage": 2}}}}
        engine, *_ = deepspeed.initialize(model=model, {given}config=config)
        """
    assert found(of(tmp_path, text.format(given="optimizer=own, "))) == {"optimizer-twice": ("train.py", 4)}
    assert found(of(tmp_path, text.format(given=""))) == {}


def test_a_config_written_in_other_words(tmp_path: Path) -> None:
    call = "engine, *_ = deepspeed.initialize(model=m, optimizer=o, config=settings)\n"
    by_call = 'import deepspeed\nsettings = dict(optimizer=dict(type="AdamW"))\n'
    assert found(of(tmp_path, by_call + call)) == {"optimizer-twice": ("train.py", 3)}
    later = 'import deepspeed\nsettings = {}\nsettings["optimizer"] = {"type": "AdamW"}\n'
    assert found(of(tmp_path, later + call)) == {"optimizer-twice": ("train.py", 4)}
    assert found(of(tmp_path, later.replace("optimizer", "fp16") + call)) == {}


def test_a_json_that_the_script_or_its_launch_script_opens(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"optimizer": {"type": "AdamW"}}')
    opened = """
        import json, deepspeed
        with open("ds.json") as file:
            config = json.load(file)
        engine, *_ = deepspeed.initialize(model=m, optimizer=o, config=config)
        """
    assert found(of(tmp_path, opened)) == {"optimizer-twice": ("train.py", 5)}
    (tmp_path / "run.sh").write_text("deepspeed train.py --deepspeed_config ds.json\n")
    by_args = "import deepspeed\nengine, *_ = deepspeed.initialize(args=a, model=m, optimizer=o)\n"
    assert found(of(tmp_path, by_args)) == {}
    assert found(read_scripts([tmp_path / "train.py", tmp_path / "run.sh"])) == {"optimizer-twice": ("train.py", 2)}


def test_a_json_that_is_given_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"optimizer": {"type": "AdamW"},} // the end')
    script = tmp_path / "train.py"
    script.write_text("import deepspeed\nengine, *_ = deepspeed.initialize(model=m, optimizer=o, config=cfg.ds)\n")
    assert found(read_scripts([script, tmp_path / "ds.json"])) == {"optimizer-twice": ("train.py", 2)}
    assert found(read_scripts([script])) == {}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("deepspeed --num_nodes 2 train.py", "num-nodes"),
        ("N=3\nexec deepspeed --num_nodes=${N} train.py --hostfile x", "num-nodes"),
        ("deepspeed --num_nodes ${NODES:-2} train.py", "num-nodes"),
        ("cd /x && ARGS='--num_nodes 2 --num_gpus 8'\ndeepspeed $ARGS train.py", "num-nodes"),
        ("torchrun --nnodes=2 --nproc_per_node=8 train.py", "rendezvous"),
        ("docker run --gpus all -it image python train.py", "shm-size"),
        ("sudo docker run --rm \\\n  --runtime=nvidia image", "shm-size"),
        ("nvidia-docker run image", "shm-size"),
        ("python3 -m deepspeed.launcher.runner --num_nodes 2 train.py", "num-nodes"),
        ("srun bash -c 'deepspeed --num_nodes 2 train.py'", "num-nodes"),
        ("python -m torch.distributed.run --nnodes 1:4 train.py", "rendezvous"),
        ("accelerate launch --num_machines 2 train.py", "rendezvous"),
    ],
)
def test_launch_scripts(tmp_path: Path, text: str, rule: str) -> None:
    assert list(found(of(tmp_path, f"#!/bin/sh\n{text}\n", "launch.sh"))) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "deepspeed --num_nodes 1 --num_gpus 8 train.py",
        "deepspeed --num_nodes 2 --hostfile hosts train.py",
        "deepspeed -H hosts --num_nodes 2 train.py",
        "deepspeed --num_nodes $NODES train.py",
        "deepspeed --no_ssh --node_rank=0 --num_nodes=2 --master_addr=a train.py",
        "torchrun --nnodes=$N --nproc_per_node=8 train.py",
        "torchrun --nnodes=2 --rdzv_endpoint=$HEAD:29500 train.py",
        "docker run --gpus all --shm-size=16g image",
        "docker run --gpus all --ipc=host image",
        "docker run --gpus all -v /dev/shm:/dev/shm image",
        "docker run -p 80:80 nginx",
        "docker run --gpus all --ipc=container:other image",
        'ARGS=(\n --hostfile hosts\n)\ndeepspeed "${ARGS[@]}" --num_nodes 2 train.py',
        "deepspeed $MORE --num_nodes 2 train.py",
        "accelerate launch --num_machines 2 --main_process_ip head train.py",
        "# docker run --gpus all image\necho 'deepspeed --num_nodes 2 train.py'",
        "cat <<END\ndocker run --gpus all x\nEND",
    ],
)
def test_sound_launch_scripts(tmp_path: Path, text: str) -> None:
    assert found(of(tmp_path, f"#!/bin/sh\n{text}\n", "launch.sh")) == {}


def test_a_command_in_quotes_over_several_lines(tmp_path: Path) -> None:
    text = """#!/bin/bash
# the first host's name is not needed
N=2
OPTIONS=" \\
  --fp16 \\
"
OPTIONS="${OPTIONS}
  --deepspeed \\
"
run="deepspeed --num_nodes ${N} train.py ${OPTIONS}"
eval ${run}
"""
    assert found(of(tmp_path, text, "launch.sh")) == {"num-nodes": ("launch.sh", 11)}
    assert found(of(tmp_path, text.replace("N=2", "N=1"), "launch.sh")) == {}
    lone = "echo it's\n" + "true\n" * 70 + "deepspeed --num_nodes 2 train.py\n"
    assert found(of(tmp_path, lone, "launch.sh")) == {"num-nodes": ("launch.sh", 72)}


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("FROM pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime\nRUN pip install deepspeed", "red"),
        ("FROM nvidia/cuda:12.8.0-base-ubuntu24.04\nRUN pip3 install -r req.txt", "yellow"),
        ("FROM nvidia/cuda:12.8.0-devel AS build\nFROM nvidia/cuda:12.8.0-runtime\nRUN pip install flash-attn", "red"),
        ("ARG BASE=pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime\nFROM ${BASE}\nRUN pip install deepspeed", "red"),
        ("FROM pytorch/pytorch:2.9.0-cuda12.8-cudnn9-devel\nRUN pip install deepspeed", "green"),
        ("FROM pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime\nRUN pip install numpy", "green"),
        ("FROM python:3.12\nRUN pip install deepspeed", "green"),
        ("FROM pytorch/pytorch\nRUN pip install deepspeed", "red"),
        ("FROM pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime\nRUN uv sync", "yellow"),
        ("FROM nvidia/cuda:12.8.0-runtime\nRUN apt-get install -y cuda-nvcc-12-8 && pip install deepspeed", "green"),
    ],
)
def test_dockerfiles(tmp_path: Path, text: str, level: str) -> None:
    assert [v.level for v in of(tmp_path, text, "Dockerfile").verdicts] == [level]


COMPOSE = """
services:
  train:
    image: mine
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, capabilities: [gpu]}}]}}}}}}
    {more}
  tracker:
    image: mlflow
"""
POD = """
apiVersion: v1
kind: Namespace
---
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          {pod}
          containers:
            - name: trainer
              command: [torchrun, train.py]
              resources: {{limits: {{nvidia.com/gpu: 8}}}}
              {mounts}
"""
MOUNT = "volumeMounts: [{name: shm, mountPath: /dev/shm}]"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (COMPOSE.format(more="command: train"), 4),
        (COMPOSE.format(more="shm_size: 8gb"), 0),
        (COMPOSE.format(more="ipc: host"), 0),
        (COMPOSE.format(more="tmpfs: [/dev/shm]"), 0),
        (COMPOSE.replace("[gpu]", "[tpu]").format(more=""), 0),
        ("services:\n  x:\n    runtime: nvidia\n    image: y\n", 3),
        (POD.format(pod="restartPolicy: Never", mounts=""), 13),
        (POD.format(pod="volumes: [{name: shm, emptyDir: {medium: Memory}}]", mounts=MOUNT), 0),
        (POD.format(pod="volumes: [{name: shm, emptyDir: {}}]", mounts=MOUNT), 13),
        (POD.format(pod="hostIPC: true", mounts=""), 0),
        (
            POD.format(pod="restartPolicy: Never", mounts="")
            .replace("torchrun, train.py", "nginx")
            .replace("trainer", "web"),
            0,
        ),
        ("name: mine\ntrain: {length: 3 steps}\n", 0),
        ("{{ if .Values.gpu }}\nservices: {{ x }}\n", 0),
        ("a: !Sub 'x'\nb: [1, 2", 0),
    ],
)
def test_compose_files_and_manifests(tmp_path: Path, text: str, line: int) -> None:
    assert found(of(tmp_path, text, "deploy.yaml")) == ({"shm-size": ("deploy.yaml", line)} if line else {})


def test_a_folder_of_too_many_files_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "_MOST_FILES", 2)
    for name in ("a.py", "b.py", "c.py", "notes.txt"):
        (tmp_path / name).write_text("x = 1\n")
    last = read_scripts([tmp_path]).verdicts[-1]
    assert (last.level, last.finding) == ("yellow", "2 files were read, 1 were not: too many for one call")


# --- sound scripts, in the manner of published examples ---------------------------------------------------------------

SOUND = {
    "a fine-tuning script for the deepspeed launcher": """
        import argparse
        import deepspeed
        import torch
        from deepspeed import get_accelerator
        from torch.utils.data import DataLoader, RandomSampler
        from torch.utils.data.distributed import DistributedSampler

        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=-1)
        parser = deepspeed.add_config_arguments(parser)
        args = parser.parse_args()
        if args.local_rank == -1:
            device = torch.device(get_accelerator().device_name())
        else:
            get_accelerator().set_device(args.local_rank)
            device = torch.device(get_accelerator().device_name(), args.local_rank)
            deepspeed.init_distributed()
        args.global_rank = torch.distributed.get_rank()
        settings = make_settings(stage=args.zero_stage)
        torch.distributed.barrier()
        train_sampler = RandomSampler(data) if args.local_rank == -1 else DistributedSampler(data)
        loader = DataLoader(data, sampler=train_sampler, batch_size=4)
        model, optimizer, _, schedule = deepspeed.initialize(
            model=model, optimizer=own, args=args, config=settings, lr_scheduler=schedule, dist_init_required=True
        )
        for epoch in range(args.epochs):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                loss = model(**batch).loss
                model.backward(loss)
                model.step()
        if args.global_rank == 0:
            save_hf_format(model, tokenizer, args)
        if args.zero_stage == 3:
            save_zero_three_model(model, args.global_rank, args.output_dir)
        """,
    "a loop on accelerate": """
        from accelerate import Accelerator
        accelerator = Accelerator()
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in range(3):
            for step, batch in enumerate(loader):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                if accelerator.sync_gradients and step % 10 == 0:
                    accelerator.save_state(f"step_{step}")
        accelerator.wait_for_everyone()
        unwrapped = accelerator.unwrap_model(model)
        unwrapped.save_pretrained(out, is_main_process=accelerator.is_main_process, save_function=accelerator.save)
        if accelerator.is_main_process:
            tokenizer.save_pretrained(out)
            with open("results.json", "w") as file:
                file.write("{}")
        """,
    "a script on Trainer": """
        import torch
        from transformers import HfArgumentParser, Trainer, TrainingArguments
        (args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
        with args.main_process_first(desc="tokenise"):
            data = data.map(tokenise)
        trainer = Trainer(model=model, args=args, train_dataset=data)
        result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        trainer.save_model()
        if trainer.is_world_process_zero():
            tokenizer.save_pretrained(args.output_dir)
        trainer.save_state()
        """,
    "a plain DDP script": """
        import os
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, DistributedSampler
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
        model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
        sampler = DistributedSampler(data)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            train(model, DataLoader(data, sampler=sampler))
            if dist.get_rank() == 0:
                torch.save(model.module.state_dict(), "model.pt")
            dist.barrier()
        dist.destroy_process_group()
        """,
}


@pytest.mark.parametrize("name", SOUND)
def test_no_alarm_on_a_sound_script(tmp_path: Path, name: str) -> None:
    assert found(of(tmp_path, SOUND[name])) == {}
