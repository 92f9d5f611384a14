"""rlhf_lab: a laboratory for reward signals and post-training of language models. Start reading at `main.py`."""

__version__ = "0.4.0"
