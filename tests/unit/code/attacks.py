"""Programs that attack what reports on them, or its count of their memory."""

from __future__ import annotations

ENDS_THE_LAUNCHER = """
import os, signal, time
parent = os.getppid()
above = open(f'/proc/{parent}/stat').read().rpartition(')')[2].split()[1]
os.kill(int(above), signal.SIGKILL)
time.sleep(60)
"""
ENDS_PROCESS_1 = """
import os, resource, signal
resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))
while True:
    os.kill(os.getppid(), signal.SIGCHLD)  # handling it takes processor time, of which there is none
"""
HOLDS_SHARED_MEMORY = """
import mmap, os, time
for _ in range(4):
    if os.fork() == 0:
        shared = mmap.mmap(-1, 64 << 20)
        for _ in range(64):
            shared.write(b'x' * (1 << 20))
        time.sleep(3)
        os._exit(0)
for _ in range(4):
    os.wait()
"""
