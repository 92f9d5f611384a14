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
MAKES_TIMERS = """
import ctypes, os
number = {'x86_64': 222, 'aarch64': 107}[os.uname().machine]  # timer_create
libc = ctypes.CDLL(None)
made = 0
while made < 2000 and libc.syscall(number, 1, None, ctypes.byref(ctypes.c_int())) == 0:
    made += 1
print(made)
"""
WRITES_A_REPORT = """
import os
process = os.getpid()
while process > 1:
    stat = open(f'/proc/{process}/stat').read().rpartition(')')[2].split()
    process = int(stat[1])
    words = open(f'/proc/{process}/cmdline').read().split(chr(0))
    if '-I' not in words:  # above the launcher
        break
    for name in os.listdir(f'/proc/{process}/fd'):
        try:
            if os.readlink(f'/proc/{process}/fd/{name}').startswith('pipe:'):
                descriptor = os.open(f'/proc/{process}/fd/{name}', os.O_WRONLY | os.O_NONBLOCK)
                os.write(descriptor, b'LINE\\n')
        except OSError:
            pass
"""
