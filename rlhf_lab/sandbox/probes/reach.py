"""Probes that reach for the network, for files, for secrets and for other processes."""

from __future__ import annotations

from rlhf_lab.sandbox.probes.probe import Probe, reads

NETWORK = (
    Probe(
        "TCP to this machine",
        "network",
        """
            socket.create_connection(SCENE['tcp'], 2).send(SCENE['word'])
            escaped('connected')
        """,
    ),
    Probe(
        "UDP to this machine",
        "network",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(SCENE['word'], SCENE['udp'])",
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
            peer.connect(SCENE['abstract'])
            escaped('connected')
        """,
    ),
    Probe(
        "Unix socket in a folder",
        "network",
        """
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(SCENE['unix'])
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
)

FILES = (
    reads("/etc/shadow", "files", "'/etc/shadow'"),
    Probe(
        "accounts in /etc/passwd",
        "files",
        "if b'root:' in read('/etc/passwd'): escaped('accounts of the machine')",
    ),
    Probe(
        "home folder",
        "files",
        """
            names = os.listdir(SCENE['home'])
            if set(names) & set(SCENE['home_names']): escaped(names[:3])
        """,
    ),
    reads("a file of this user", "files", "SCENE['canary']"),
    reads("source of the lab", "files", "SCENE['source']"),
    Probe(
        "write beside a file of this user",
        "files",
        """
            open(SCENE['canary'] + '.new', 'w').write('x')
            escaped('written')
        """,
    ),
    Probe(
        "leave a file in /tmp for others",
        "files",
        """
            open('/tmp/' + SCENE['mark'], 'w').write('x')
            stopped('written to a /tmp of its own')
        """,
    ),
    Probe(
        "compiled module for the next run",
        "files",
        """
            path = os.path.dirname(os.__file__) + '/__pycache__/' + SCENE['mark']
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
            path = site.getsitepackages()[0] + '/' + SCENE['mark']
            open(path, 'w').close()
            os.remove(path)
            escaped('written')
        """,
    ),
    Probe(
        "link out of its folder",
        "files",
        """
            os.symlink(SCENE['canary'], 'leak')
            os.symlink(SCENE['folder'], 'leaks')
        """,
        keep=True,
    ),
    Probe(
        "hard link out of its folder",
        "files",
        """
            os.link(SCENE['canary'], 'leak')
            escaped('linked')
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
)

SECRETS = (
    Probe(
        "environment",
        "secrets",
        """
            if SCENE['secret_name'] in os.environ: escaped('inherited')
            stopped(sorted(os.environ))
        """,
    ),
    Probe(
        "/proc/self/environ",
        "secrets",
        """
            text = read('/proc/self/environ')
            if SCENE['secret_name'].encode() in text: escaped('inherited')
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
                if SCENE['secret_name'].encode() in text: escaped('process ' + pid)
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
    Probe(
        "command lines of others",
        "secrets",
        "escaped(read('/proc/%d/cmdline' % SCENE['victim'])[:20])",
    ),
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
            while children < 4 * SCENE['processes']:
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
            for count in range(4 * SCENE['processes']):
                threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
            escaped(str(count + 1) + ' threads')
        """,
    ),
    Probe(
        "signal to a process of this user",
        "processes",
        """
            os.kill(SCENE['victim'], signal.SIGKILL)
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
        "kill the keeper",
        "processes",
        """
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(.3)
            if os.getppid() != 1: escaped('killed')
            stopped('the keeper is still there')
        """,
    ),
    Probe(
        "trace its parent",
        "processes",
        "call('ptrace', 16, os.getppid(), 0, 0)",
    ),
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
                    os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(60)', SCENE['mark']])
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
                    os.write(fd, b"{'code': 0, 'files': []}\\n")
                except OSError:
                    continue
                escaped('descriptor ' + str(fd))
            os._exit(3)
        """,
    ),
)
