"""A user's own training script, launch script or Dockerfile, read as syntax and never run.

    headway doctor --script train.py launch.sh Dockerfile

`read` takes paths and gives one Verdict a fault, its evidence `file:line: the line`. Several files are judged together:
a launch script that says `torchrun` changes what is right in the training script beside it.
"""
