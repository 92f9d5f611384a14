"""Probes that try to access the network, files, secrets and other processes."""

from __future__ import annotations

from rlhf_lab.packs.code.sandbox.probes.probe import Probe, calls, reads

NETWORK = (
    Probe(
        "TCP to this machine",
        "network",
        """
            socket.create_connection(TARGETS['tcp'], 2).send(TARGETS['word'])
            escaped('connected')
        """,
    ),
    Probe(
        "UDP to this machine",
        "network",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(TARGETS['word'], TARGETS['udp'])",
    ),
    Probe(
        "DNS and TCP to the outside",
        "network",
        """
            name = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            name.connect(('192.0.2.1', 53))
            name.send(b'x')
            escaped('a packet has a route')
        """,
    ),
    Probe(
        "abstract Unix socket",
        "network",
        """
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(TARGETS['abstract'])
            escaped('connected')
        """,
    ),
    Probe(
        "Unix socket in a folder",
        "network",
        """
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(TARGETS['unix'])
            escaped('connected')
        """,
    ),
    Probe(
        "vsock to the host of a virtual machine",
        "network",
        """
            socket.socket(40, socket.SOCK_STREAM)
            escaped('a socket')
        """,
    ),
    Probe(
        "netlink",
        "network",
        """
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            escaped('a socket')
        """,
    ),
    Probe(
        "raw packets",
        "network",
        """
            socket.socket(17, socket.SOCK_RAW)
            escaped('a socket')
        """,
    ),
    *(
        Probe(
            f"pair of {name} sockets", "network", f"call('socketpair', {family}, 1, 0, ctypes.create_string_buffer(8))"
        )
        for name, family in (("INET", 2), ("netlink", 16), ("vsock", 40))
    ),
)

FILES = (
    reads("/etc/shadow", "files", "'/etc/shadow'"),
    Probe("accounts in /etc/passwd", "files", "if b'root:' in read('/etc/passwd'): escaped('accounts of the machine')"),
    Probe(
        "home folder",
        "files",
        """
            names = os.listdir(TARGETS['home'])
            if set(names) & set(TARGETS['home_names']): escaped(names[:3])
        """,
    ),
    reads("a file of this user", "files", "TARGETS['canary']"),
    reads("source of the lab", "files", "TARGETS['source']"),
    Probe(
        "write beside a file of this user",
        "files",
        """
            open(TARGETS['canary'] + '.new', 'w').write('x')
            escaped('written')
        """,
    ),
    Probe(
        "leave a file in /tmp for others",
        "files",
        """
            open('/tmp/' + TARGETS['mark'], 'w').write('x')
            stopped('written to a /tmp of its own')
        """,
    ),
    Probe(
        "compiled module for the next run",
        "files",
        """
            path = os.path.dirname(os.__file__) + '/__pycache__/' + TARGETS['mark']
            open(path, 'w').close()
            os.remove(path)
            escaped('written')
        """,
    ),
    Probe(
        "installed package for the next run",
        "files",
        """
            import site
            path = site.getsitepackages()[0] + '/' + TARGETS['mark']
            open(path, 'w').close()
            os.remove(path)
            escaped('written')
        """,
    ),
    Probe(
        "link out of its folder",
        "files",
        """
            os.symlink(TARGETS['canary'], 'leak')
            os.symlink(TARGETS['folder'], 'leaks')
        """,
        keep=True,
    ),
    Probe(
        "hard link out of its folder",
        "files",
        """
            os.link(TARGETS['canary'], 'leak')
            escaped('linked')
        """,
        keep=True,
    ),
    Probe(
        "folder in place of its program",
        "files",
        """
            os.remove('main.py')
            os.mkdir('main.py')
            open('main.py/x', 'w').close()
        """,
        keep=True,
    ),
    Probe(
        "folder in place of a file that it was given",
        "files",
        """
            os.remove(TARGETS['given'])
            os.mkdir(TARGETS['given'])
            open(TARGETS['given'] + '/x', 'w').close()
        """,
        keep=True,
    ),
    Probe(
        "path that is too long to be written again",
        "files",
        """
            for _ in range(16):
                os.mkdir('d' * 255)
                os.chdir('d' * 255)
            open('x', 'w').close()
        """,
        keep=True,
    ),
    Probe(
        "more folders than who reads them may open",
        "files",
        """
            made = 0
            try:
                while made < 5000:
                    os.mkdir(str(made))
                    made += 1
            except OSError:
                pass
            stopped(str(made) + ' folders')
        """,
        keep=True,
    ),
    Probe(
        "names that fill the report",
        "files",
        """
            made = 0
            try:
                while made < 5000:
                    open('%0255d' % made, 'w').close()
                    made += 1
            except OSError:
                pass
            stopped(str(made) + ' files')
        """,
        keep=True,
    ),
    Probe(
        "pipe for who reads its files",
        "files",
        """
            os.mkfifo('pipe')
            os.mkfifo('pipe2')
        """,
        keep=True,
    ),
    Probe(
        "open folder from outside",
        "files",
        """
            for fd in range(3, 256):
                try:
                    os.open('..', os.O_RDONLY, dir_fd=fd)
                except OSError:
                    continue
                escaped('descriptor ' + str(fd))
        """,
    ),
    Probe(
        "watch on files that others open",
        "files",
        """
            watch = libc.inotify_init1(0)
            if watch < 0: stopped('inotify_init1: ' + errno.errorcode[ctypes.get_errno()])
            if libc.inotify_add_watch(watch, os.path.dirname(os.__file__).encode(), 0x20) >= 0:
                escaped('a watch on ' + os.path.dirname(os.__file__))
            stopped('inotify_add_watch: ' + errno.errorcode[ctypes.get_errno()])
        """,
    ),
    Probe(
        "signal when others change a folder",
        "files",
        """
            import fcntl
            folder = os.open(os.path.dirname(os.__file__), os.O_RDONLY)
            fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
            escaped('a watch on ' + os.path.dirname(os.__file__))
        """,
    ),
    Probe(
        "lock on a file that others use",
        "files",
        """
            import fcntl
            fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
            escaped('locked')
        """,
    ),
)

SECRETS = (
    Probe(
        "environment",
        "secrets",
        """
            if TARGETS['secret_name'] in os.environ: escaped('inherited')
            stopped(sorted(os.environ))
        """,
    ),
    Probe(
        "/proc/self/environ",
        "secrets",
        """
            text = read('/proc/self/environ')
            if TARGETS['secret_name'].encode() in text: escaped('inherited')
        """,
    ),
    Probe(
        "environment of all processes",
        "secrets",
        """
            for pid in filter(str.isdigit, os.listdir('/proc')):
                try:
                    text = read('/proc/' + pid + '/environ')
                except OSError:
                    continue
                if TARGETS['secret_name'].encode() in text: escaped('process ' + pid)
        """,
    ),
    Probe(
        "memory of its parent",
        "secrets",
        """
            os.open('/proc/%d/mem' % os.getppid(), os.O_RDONLY)
            escaped('opened')
        """,
    ),
    Probe("command lines of others", "secrets", "escaped(read('/proc/%d/cmdline' % TARGETS['victim'])[:20])"),
    Probe(
        "/proc/kcore",
        "secrets",
        """
            os.open('/proc/kcore', os.O_RDONLY)
            escaped('opened')
        """,
    ),
)

PROCESSES = (
    Probe(
        "fork bomb",
        "processes",
        """
            children = 0
            while children < 4 * TARGETS['processes']:
                if os.fork() == 0:
                    time.sleep(2)
                    os._exit(0)
                children += 1
            escaped(str(children) + ' processes')
        """,
    ),
    Probe(
        "thread bomb",
        "processes",
        """
            import threading
            threading.stack_size(65536)
            for count in range(4 * TARGETS['processes']):
                threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
            escaped(str(count + 1) + ' threads')
        """,
    ),
    Probe(
        "signal to a process of this user",
        "processes",
        """
            os.kill(TARGETS['victim'], signal.SIGKILL)
            escaped('killed')
        """,
    ),
    Probe(
        "signal to everybody",
        "processes",
        """
            os.kill(-1, 0)
            escaped('allowed')
        """,
    ),
    Probe(
        "kill its parent",
        "processes",
        """
            parent = os.getppid()
            os.kill(parent, signal.SIGKILL)
            time.sleep(.3)
            if os.getppid() != parent: escaped('killed')
            stopped('it is still there')
        """,
    ),
    calls("prlimit64", "os.getppid(), 7, 0, ctypes.create_string_buffer(16)", "processes"),
    Probe(
        "end what reports on it, by a limit of processor time",
        "processes",
        """
            above = [os.getppid()]
            if os.path.exists('/proc/self/stat'):
                above.append(int(read('/proc/%d/stat' % above[0]).rpartition(b')')[2].split()[1]))
            problems = []
            for process in above:
                try:
                    resource.prlimit(process, resource.RLIMIT_CPU, (0, 0))
                except OSError as error:
                    problems.append(str(error))
            if len(problems) == len(above): stopped(problems)
            for _ in range(20000):  # each makes it use some
                for process in above: os.kill(process, signal.SIGCHLD)
        """,
    ),
    Probe(
        "slow down its parent",
        "processes",
        """
            os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()) + 1)
            escaped('it is slower')
        """,
    ),
    calls("sched_setaffinity", "os.getppid(), 8, ctypes.c_char_p(bytes([255]) * 8)", "processes"),
    Probe("trace its parent", "processes", "call('ptrace', 16, os.getppid(), 0, 0)"),
    Probe(
        "read memory of its parent",
        "processes",
        """
            buffer = ctypes.create_string_buffer(8)
            here = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
            there = (ctypes.c_ulong * 2)(4096, 8)
            call('process_vm_readv', os.getppid(), here, 1, there, 1, 0)
        """,
    ),
    Probe(
        "daemon that stays",
        "processes",
        """
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    for fd in range(3): os.close(fd)
                    program = [sys.executable, '-S', '-c', 'import time; time.sleep(60)', TARGETS['mark']]
                    os.execv(sys.executable, program)
                os._exit(0)
            time.sleep(.2)
            stopped('ended with the program')
        """,
    ),
    Probe(
        "children that are never buried",
        "processes",
        """
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for _ in range(4):
                if os.fork() == 0: os._exit(0)
            time.sleep(.2)
            stopped('buried with the program')
        """,
    ),
    Probe(
        "forged report on every descriptor",
        "processes",
        """
            for fd in range(3, 1024):
                try:
                    os.write(fd, b'{"code": 0, "files": []}\\n')
                except OSError:
                    continue
                escaped('descriptor ' + str(fd))
            os._exit(3)
        """,
    ),
    Probe(
        "report of another form on the status pipe",
        "processes",
        """
            process = os.getpid()
            for _ in range(2):  # process 1, then the launcher
                process = int(read('/proc/%d/stat' % process).rpartition(b')')[2].split()[1])
                folder = '/proc/%d/fd/' % process
                for name in os.listdir(folder):
                    if os.readlink(folder + name).startswith('pipe:'):
                        pipe = os.open(folder + name, os.O_WRONLY | os.O_NONBLOCK)
                        os.write(pipe, b'[]\\n')
            escaped('written')
        """,
    ),
)
