"""On PYTHONPATH, a disk that is slow while the file SLOW_DISK names is there: time for a signal to come in training."""

import os
import time

_fsync = os.fsync


def _slow(handle):
    if os.path.exists(os.environ.get("SLOW_DISK", "")):
        time.sleep(0.5)
    _fsync(handle)


os.fsync = _slow
