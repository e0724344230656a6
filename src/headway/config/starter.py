"""The starter file that `headway init` writes."""

from __future__ import annotations

STARTER = """\
# A Headway run file. `headway plan run.yaml` says what will happen; `headway train run.yaml` does it.
# Every key with its default and meaning: `headway init --reference`.
# Any key can be overridden on the command line: headway train run.yaml train.length='500 steps'

model:
  config: {arch: llama, hidden: 512, layers: 8, heads: 8}   # a new model; for a pretrained one: model: ./folder
  tokenizer: {train: 16k}                                   # trained on your data; or {from: ./folder}

data:
  train: ["corpus/**/*.txt"]   # files, folders, globs, from this file's folder; also .jsonl, .csv, .parquet
  eval: 1%                     # held out by document; or files of their own: eval: [held-out/*.txt]

task: causal_lm

train:
  length: 100M tokens          # or 500 steps, 2 epochs; what is learnt never depends on the machine's speed
  sequence: 1024
  global_batch: 64k tokens     # of one step, over all devices; the plan splits it
  # precision: auto            # bf16 on GPUs that have it, else fp32
  # stop_after: 11.5 h         # save and stop in time for a batch queue; `headway resume` goes on
  # seed: 0

optimizer:
  lr: 6e-4
  schedule: cosine
  warmup: 1%
  # weight_decay: 0.1          # not on norms and biases
  # clip: 1.0

checkpoint:
  every: 30 min                # or 500 steps
  keep: 3

# strategy: zero-2             # default: the simplest that fits (ddp first). Also zero-3, {kind: zero-3, offload: cpu}
# launch: {gpus: 8}            # default: all GPUs of this machine, else its CPU
# track: [tensorboard]         # metrics.jsonl is always written
# export: {sample: "Once upon a time"}
"""
