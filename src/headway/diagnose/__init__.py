"""What went wrong: from logs to one diagnosis: first failing rank, its own error, cause, fix. Torch-free.

    headway show RUN             after a failure
    headway doctor --log FILE    any log: Headway's, torchrun's, deepspeed's, srun's, a rank's own

`signatures` and `outside` are the table of what is recognised, `streams` parts a log into its ranks, `judge` chooses.
"""
