"""Attacks that exceed resource limits, and on kernel interfaces that tasks do not need; in the form of reach.py."""

from __future__ import annotations

SHARED = """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
size, failed = TARGETS['memory'] // 4, ctypes.c_void_p(-1).value
for _ in range(14):
    start = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, {flags}, {file}, 0)
    if start == failed: stopped('mmap: ' + errno.errorcode[ctypes.get_errno()])
    ctypes.memset(start, 1, size)
    libc.munmap(start + mmap.PAGESIZE, size - mmap.PAGESIZE)
escaped('3.5 times the limit')
"""
"""Attack that keeps one page of many shared mappings, so that the memory of all pages stays allocated."""
MEMORY = {
    "memory in one piece": """
x = bytearray(TARGETS['memory'] * 2)
escaped(len(x))
""",
    "memory by mmap": """
x = mmap.mmap(-1, TARGETS['memory'] * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
x.write(b'x' * (1 << 20))
escaped('mapped')
""",
    "memory in many processes": """
for _ in range(5):
    if os.fork() == 0:
        x = bytearray(b'x') * (TARGETS['memory'] // 2)
        time.sleep(1.5)
        print('held', flush=True)
        os._exit(0)
for _ in range(5):
    if os.wait()[1]: stopped('a process was ended')
escaped('2.5 times the limit')
""",
    "shared memory that is hardly mapped": SHARED.format(flags="mmap.MAP_SHARED | mmap.MAP_ANONYMOUS", file="-1"),
    "shared mapping of /dev/zero": SHARED.format(flags="mmap.MAP_SHARED", file="os.open('/dev/zero', os.O_RDWR)"),
    "large buffers of sockets": """
one, other = socket.socketpair()
before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
after = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
if after > before: escaped(str(after >> 10) + ' KiB each')
""",
    "timers": """
number = {'x86_64': 222, 'aarch64': 107}[os.uname().machine]  # timer_create
made = 0
while made < 2000 and libc.syscall(number, 1, None, ctypes.byref(ctypes.c_int())) == 0:
    made += 1
if made == 2000: escaped(str(made) + ' timers')
stopped(str(made) + ' timers')
""",
    "vmsplice": "call('vmsplice', os.pipe()[1], (ctypes.c_ulong * 2)(id(call), 8), 1, 0)",
    "memory behind a descriptor": "call('memfd_create', ctypes.c_char_p(b'x'), 0)",
    "System V shared memory": """
segment = libc.shmget(0, 1 << 20, 0o1600)
if segment < 0: stopped('shmget: ' + errno.errorcode[ctypes.get_errno()])
libc.shmctl(segment, 0, None)
escaped('a segment that no limit counts')
""",
}
DISK = {
    "disk in one file": """
with open('big', 'wb') as file:
    for _ in range(2 * TARGETS['disk_mib']): file.write(b'x' * (1 << 20))
escaped('written')
""",
    "disk in many files": """
for number in range(4):
    with open('big%d' % number, 'wb') as file:
        for _ in range(TARGETS['disk_mib'] // 2): file.write(b'x' * (1 << 20))
escaped('written')
""",
    "many empty files": """
os.mkdir('many')
for number in range(100 * TARGETS['disk_mib']): open('many/%d' % number, 'w').close()
escaped('created')
""",
    "/dev/shm": """
path = '/dev/shm/' + TARGETS['mark']
try:
    with open(path, 'wb') as file:
        for _ in range(4): file.write(b'x' * (TARGETS['disk_mib'] << 19))
finally:
    os.remove(path)
escaped('written')
""",
}
TIME = {
    "sleep": "time.sleep(60)",
    "endless loop": "while True: pass",
    "ignored signals": """
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        continue
while True: pass
""",
}
OUTPUT = {
    "output without end": "while True: os.write(1, b'x' * 65536)",
    "errors without end": "while True: os.write(2, b'x' * 65536)",
}
KERNEL = {
    "nested user namespace": "call('unshare', 0x10000000)",
    "clone3 into a namespace": "call('clone3', ctypes.c_char_p((0x10000000).to_bytes(8, 'little') + bytes(56)), 64)",
    # the type of the file system does not exist, so this is harmless; the kernel checks permissions first
    "mount": "call('mount', ctypes.c_char_p(b'none'), ctypes.c_char_p(b'.'), ctypes.c_char_p(b'none such'), 0, 0)",
    "chroot": "call('chroot', ctypes.c_char_p(b'.'))",
    "namespaces of process 1": "call('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",
    "setuid programs": """
found = [p for p in ('/usr/bin/su', '/bin/su', '/usr/bin/passwd', '/usr/bin/mount') if os.path.exists(p)]
if found and not libc.prctl(39, 0, 0, 0, 0): escaped(found)
stopped('no_new_privs' if found else 'none is there')
""",
    "device node": """
os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(254, 0))
os.open('disk', os.O_RDONLY)
escaped('opened')
""",
    "disks and memory in /dev": """
for name in ('mem', 'kmsg', 'vda', 'sda', 'nvme0n1', 'port', 'fuse', 'kvm'):
    try:
        os.open('/dev/' + name, os.O_RDONLY)
    except OSError:
        continue
    escaped('/dev/' + name)
""",
    "/proc/sysrq-trigger": """
os.open('/proc/sysrq-trigger', os.O_WRONLY)
escaped('opened')
""",
    "control groups": """
for folder, names, files in os.walk('/sys/fs/cgroup'):
    if os.access(folder, os.W_OK): escaped(folder)
stopped('none is writable')
""",
    "keyctl": "call('keyctl', 0, -3, 1)",
    "add_key": "call('add_key', ctypes.c_char_p(b'user'), ctypes.c_char_p(b'probe'), ctypes.c_char_p(b'x'), 1, -1)",
    "bpf": "call('bpf', 0, ctypes.c_char_p(bytes(72)), 72)",
    "perf_event_open": """
attributes = ctypes.c_char_p((1).to_bytes(4, 'little') + (64).to_bytes(4, 'little') + bytes(56))
call('perf_event_open', attributes, 0, -1, -1, 0)
""",
    "io_uring_setup": "call('io_uring_setup', 1, ctypes.create_string_buffer(120))",
    "userfaultfd": "call('userfaultfd', 1)",
    "open_by_handle_at": "call('open_by_handle_at', -100, ctypes.create_string_buffer(64), 0)",
    "init_module": "call('init_module', 0, 0, 0)",
    "personality": "call('personality', 0x0040000)",
}
