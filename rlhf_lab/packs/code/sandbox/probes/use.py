"""Probes that exceed resource limits, and probes of kernel interfaces that tasks do not need."""

from __future__ import annotations

from rlhf_lab.packs.code.sandbox.probes.probe import Probe, calls


def shared_object_probe(name: str, descriptor: str, flags: str) -> Probe:
    """Return a probe that keeps one page of many shared mappings, so that the memory of all pages stays allocated."""
    return Probe(
        name,
        "memory",
        f"""
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
            libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
            size, failed = TARGETS['memory'] // 4, ctypes.c_void_p(-1).value
            for _ in range(14):
                start = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, {flags}, {descriptor}, 0)
                if start == failed: stopped('mmap: ' + errno.errorcode[ctypes.get_errno()])
                ctypes.memset(start, 1, size)
                libc.munmap(start + mmap.PAGESIZE, size - mmap.PAGESIZE)
            escaped('3.5 times the limit')
        """,
    )


RESOURCES = (
    Probe(
        "memory in one piece",
        "memory",
        """
            x = bytearray(TARGETS['memory'] * 2)
            escaped(len(x))
        """,
    ),
    Probe(
        "memory by mmap",
        "memory",
        """
            x = mmap.mmap(-1, TARGETS['memory'] * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            x.write(b'x' * (1 << 20))
            escaped('mapped')
        """,
    ),
    Probe(
        "memory in many processes",
        "memory",
        """
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
    ),
    shared_object_probe("shared memory that is hardly mapped", "-1", "mmap.MAP_SHARED | mmap.MAP_ANONYMOUS"),
    shared_object_probe("shared mapping of /dev/zero", "os.open('/dev/zero', os.O_RDWR)", "mmap.MAP_SHARED"),
    Probe(
        "large buffers of sockets",
        "memory",
        """
            one, other = socket.socketpair()
            before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
            after = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            if after > before: escaped(str(after >> 10) + ' KiB each')
        """,
    ),
    Probe(
        "timers",
        "memory",
        """
            number = {'x86_64': 222, 'aarch64': 107}[os.uname().machine]  # timer_create
            made = 0
            while made < 2000 and libc.syscall(number, 1, None, ctypes.byref(ctypes.c_int())) == 0:
                made += 1
            if made == 2000: escaped(str(made) + ' timers')
            stopped(str(made) + ' timers')
        """,
    ),
    calls("vmsplice", "os.pipe()[1], (ctypes.c_ulong * 2)(id(call), 8), 1, 0", "memory"),
    Probe("memory behind a descriptor", "memory", "call('memfd_create', ctypes.c_char_p(b'x'), 0)"),
    Probe(
        "System V shared memory",
        "memory",
        """
            segment = libc.shmget(0, 1 << 20, 0o1600)
            if segment < 0: stopped('shmget: ' + errno.errorcode[ctypes.get_errno()])
            libc.shmctl(segment, 0, None)
            escaped('a segment that no limit counts')
        """,
    ),
    Probe(
        "disk in one file",
        "disk",
        """
            with open('big', 'wb') as file:
                for _ in range(2 * TARGETS['disk_mib']): file.write(b'x' * (1 << 20))
            escaped('written')
        """,
    ),
    Probe(
        "disk in many files",
        "disk",
        """
            for number in range(4):
                with open('big%d' % number, 'wb') as file:
                    for _ in range(TARGETS['disk_mib'] // 2): file.write(b'x' * (1 << 20))
            escaped('written')
        """,
    ),
    Probe(
        "many empty files",
        "disk",
        """
            os.mkdir('many')
            for number in range(100 * TARGETS['disk_mib']): open('many/%d' % number, 'w').close()
            escaped('created')
        """,
    ),
    Probe(
        "/dev/shm",
        "disk",
        """
            path = '/dev/shm/' + TARGETS['mark']
            try:
                with open(path, 'wb') as file:
                    for _ in range(4): file.write(b'x' * (TARGETS['disk_mib'] << 19))
            finally:
                os.remove(path)
            escaped('written')
        """,
    ),
    Probe("sleep", "time", "time.sleep(60)", limit="timeout"),
    Probe("endless loop", "time", "while True: pass", limit="timeout"),
    Probe(
        "ignored signals",
        "time",
        """
            for number in range(1, 32):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except OSError:
                    continue
            while True: pass
        """,
        limit="timeout",
    ),
    Probe("output without end", "output", "while True: os.write(1, b'x' * 65536)", limit="output"),
    Probe("errors without end", "output", "while True: os.write(2, b'x' * 65536)", limit="output"),
)

KERNEL = (
    Probe("nested user namespace", "kernel", "call('unshare', 0x10000000)"),
    Probe(
        "clone3 into a namespace",
        "kernel",
        "call('clone3', ctypes.c_char_p((0x10000000).to_bytes(8, 'little') + bytes(56)), 64)",
    ),
    # the type of the file system does not exist, so the probe is harmless; the kernel checks permissions first
    calls("mount", "ctypes.c_char_p(b'none'), ctypes.c_char_p(b'.'), ctypes.c_char_p(b'none such'), 0, 0"),
    calls("chroot", "ctypes.c_char_p(b'.')"),
    Probe("namespaces of process 1", "kernel", "call('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)"),
    Probe(
        "setuid programs",
        "kernel",
        """
            found = [p for p in ('/usr/bin/su', '/bin/su', '/usr/bin/passwd', '/usr/bin/mount') if os.path.exists(p)]
            if found and not libc.prctl(39, 0, 0, 0, 0): escaped(found)
            stopped('no_new_privs' if found else 'none is there')
        """,
    ),
    Probe(
        "device node",
        "kernel",
        """
            os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(254, 0))
            os.open('disk', os.O_RDONLY)
            escaped('opened')
        """,
    ),
    Probe(
        "disks and memory in /dev",
        "kernel",
        """
            for name in ('mem', 'kmsg', 'vda', 'sda', 'nvme0n1', 'port', 'fuse', 'kvm'):
                try:
                    os.open('/dev/' + name, os.O_RDONLY)
                except OSError:
                    continue
                escaped('/dev/' + name)
        """,
    ),
    Probe(
        "/proc/sysrq-trigger",
        "kernel",
        """
            os.open('/proc/sysrq-trigger', os.O_WRONLY)
            escaped('opened')
        """,
    ),
    Probe(
        "control groups",
        "kernel",
        """
            for folder, names, files in os.walk('/sys/fs/cgroup'):
                if os.access(folder, os.W_OK): escaped(folder)
            stopped('none is writable')
        """,
    ),
    calls("keyctl", "0, -3, 1"),
    calls("add_key", "ctypes.c_char_p(b'user'), ctypes.c_char_p(b'probe'), ctypes.c_char_p(b'x'), 1, -1"),
    calls("bpf", "0, ctypes.c_char_p(bytes(72)), 72"),
    calls(
        "perf_event_open",
        "ctypes.c_char_p((1).to_bytes(4, 'little') + (64).to_bytes(4, 'little') + bytes(56)), 0, -1, -1, 0",
    ),
    calls("io_uring_setup", "1, ctypes.create_string_buffer(120)"),
    calls("userfaultfd", "1"),
    calls("open_by_handle_at", "-100, ctypes.create_string_buffer(64), 0"),
    calls("init_module", "0, 0, 0"),
    calls("personality", "0x0040000"),
)
