"""Headway trains transformer models with PyTorch and DeepSpeed from one run file, without surprises."""

__version__ = "0.1.0"
