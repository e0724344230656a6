"""Starting ranks, watching them, naming the first that failed. Torch-free.

The worker's only input is a run directory, so every way of starting it is one command a rank:

    headway train run.yaml                                          # local ranks, watched by headway
    torchrun --nproc_per_node=2 -m headway.train.worker RUN_DIR     # your own launcher
    deepspeed --num_gpus 2 --module headway.train.worker RUN_DIR    # the same; its --local_rank=N is accepted

Local ranks start in one of two ways (`LocalOptions.method`):

exec    one `python -m headway.train.worker RUN_DIR` a rank, exactly the text that `--dry-run` prints. Used on GPUs.
fork    ranks are forked from a server that has torch, DeepSpeed and transformers imported (`warm_up` starts it), so the
        imports overlap planning and tokenising. Used on CPUs.

Both put each rank into a session of its own: Ctrl-C in a terminal reaches `headway` alone, which asks the ranks once
(SIGTERM) to save and end. A second Ctrl-C ends them at once. A guard process ends the ranks when
`headway` itself is killed.
"""
