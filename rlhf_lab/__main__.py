"""`python -m rlhf_lab`; see `rlhf_lab/main.py`."""

from rlhf_lab.main import main

if __name__ == "__main__":
    main()
