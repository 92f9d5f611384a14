"""Reference implementations in plain PyTorch: one algorithm per file, from token ids to updated parameters.

Each file is one page to read from top to bottom, so it imports only torch, and the first functions of the files are
alike on purpose. The pages of docs/algorithms/ explain them. `tests/numeric/test_reference_updates.py` runs them beside
the package on the same batches: losses, advantages and parameters after whole updates have to be equal.
"""
