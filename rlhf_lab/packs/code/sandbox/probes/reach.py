"""Attacks on the network, files, secrets and other processes: by name, the statements of the program (see table.py)."""

from __future__ import annotations

NETWORK = {
    "TCP to this machine": """
socket.create_connection(TARGETS['tcp'], 2).send(TARGETS['word'])
escaped('connected')
""",
    "UDP to this machine": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(TARGETS['word'], TARGETS['udp'])",
    "DNS and TCP to the outside": """
name = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
name.connect(('192.0.2.1', 53))
name.send(b'x')
escaped('a packet has a route')
""",
    "abstract Unix socket": """
peer = socket.socket(socket.AF_UNIX)
peer.connect(TARGETS['abstract'])
escaped('connected')
""",
    "Unix socket in a folder": """
peer = socket.socket(socket.AF_UNIX)
peer.connect(TARGETS['unix'])
escaped('connected')
""",
    "vsock to the host of a virtual machine": """
socket.socket(40, socket.SOCK_STREAM)
escaped('a socket')
""",
    "netlink": """
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
escaped('a socket')
""",
    "raw packets": """
socket.socket(17, socket.SOCK_RAW)
escaped('a socket')
""",
    **{
        f"pair of {name} sockets": f"call('socketpair', {family}, 1, 0, ctypes.create_string_buffer(8))"
        for name, family in (("INET", 2), ("netlink", 16), ("vsock", 40))
    },
}
FILES = {
    "/etc/shadow": "escaped(str(len(read('/etc/shadow'))) + ' bytes')",
    "accounts in /etc/passwd": "if b'root:' in read('/etc/passwd'): escaped('accounts of the machine')",
    "home folder": """
names = os.listdir(TARGETS['home'])
if set(names) & set(TARGETS['home_names']): escaped(names[:3])
""",
    "a file of this user": "escaped(str(len(read(TARGETS['canary']))) + ' bytes')",
    "source of the lab": "escaped(str(len(read(TARGETS['source']))) + ' bytes')",
    "write beside a file of this user": """
open(TARGETS['canary'] + '.new', 'w').write('x')
escaped('written')
""",
    "leave a file in /tmp for others": """
open('/tmp/' + TARGETS['mark'], 'w').write('x')
stopped('written to a /tmp of its own')
""",
    "compiled module for the next run": """
path = os.path.dirname(os.__file__) + '/__pycache__/' + TARGETS['mark']
open(path, 'w').close()
os.remove(path)
escaped('written')
""",
    "installed package for the next run": """
import site
path = site.getsitepackages()[0] + '/' + TARGETS['mark']
open(path, 'w').close()
os.remove(path)
escaped('written')
""",
    "open folder from outside": """
for fd in range(3, 256):
    try:
        os.open('..', os.O_RDONLY, dir_fd=fd)
    except OSError:
        continue
    escaped('descriptor ' + str(fd))
""",
    "watch on files that others open": """
watch = libc.inotify_init1(0)
if watch < 0: stopped('inotify_init1: ' + errno.errorcode[ctypes.get_errno()])
if libc.inotify_add_watch(watch, os.path.dirname(os.__file__).encode(), 0x20) >= 0:
    escaped('a watch on ' + os.path.dirname(os.__file__))
stopped('inotify_add_watch: ' + errno.errorcode[ctypes.get_errno()])
""",
    "signal when others change a folder": """
import fcntl
folder = os.open(os.path.dirname(os.__file__), os.O_RDONLY)
fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
escaped('a watch on ' + os.path.dirname(os.__file__))
""",
    "lock on a file that others use": """
import fcntl
fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
escaped('locked')
""",
}
LEFT_FILES = {
    "link out of its folder": """
os.symlink(TARGETS['canary'], 'leak')
os.symlink(TARGETS['folder'], 'leaks')
""",
    "hard link out of its folder": """
os.link(TARGETS['canary'], 'leak')
escaped('linked')
""",
    "folder in place of its program": """
os.remove('main.py')
os.mkdir('main.py')
open('main.py/x', 'w').close()
""",
    "folder in place of a file that it was given": """
os.remove(TARGETS['given'])
os.mkdir(TARGETS['given'])
open(TARGETS['given'] + '/x', 'w').close()
""",
    "path that is too long to be written again": """
for _ in range(16):
    os.mkdir('d' * 255)
    os.chdir('d' * 255)
open('x', 'w').close()
""",
    "more folders than who reads them may open": """
made = 0
try:
    while made < 5000:
        os.mkdir(str(made))
        made += 1
except OSError:
    pass
stopped(str(made) + ' folders')
""",
    "names that fill the report": """
made = 0
try:
    while made < 5000:
        open('%0255d' % made, 'w').close()
        made += 1
except OSError:
    pass
stopped(str(made) + ' files')
""",
    "pipe for who reads its files": """
os.mkfifo('pipe')
os.mkfifo('pipe2')
""",
}
"""Attacks by the files that they leave: these are read back, and another program is started with them."""
SECRETS = {
    "environment": """
if TARGETS['secret_name'] in os.environ: escaped('inherited')
stopped(sorted(os.environ))
""",
    "/proc/self/environ": """
text = read('/proc/self/environ')
if TARGETS['secret_name'].encode() in text: escaped('inherited')
""",
    "environment of all processes": """
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        text = read('/proc/' + pid + '/environ')
    except OSError:
        continue
    if TARGETS['secret_name'].encode() in text: escaped('process ' + pid)
""",
    "memory of its parent": """
os.open('/proc/%d/mem' % os.getppid(), os.O_RDONLY)
escaped('opened')
""",
    "command lines of others": "escaped(read('/proc/%d/cmdline' % TARGETS['victim'])[:20])",
    "/proc/kcore": """
os.open('/proc/kcore', os.O_RDONLY)
escaped('opened')
""",
}
PROCESSES = {
    "fork bomb": """
children = 0
while children < 4 * TARGETS['processes']:
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
    children += 1
escaped(str(children) + ' processes')
""",
    "thread bomb": """
import threading
threading.stack_size(65536)
for count in range(4 * TARGETS['processes']):
    threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
escaped(str(count + 1) + ' threads')
""",
    "signal to a process of this user": """
os.kill(TARGETS['victim'], signal.SIGKILL)
escaped('killed')
""",
    "signal to everybody": """
os.kill(-1, 0)
escaped('allowed')
""",
    "kill its parent": """
parent = os.getppid()
os.kill(parent, signal.SIGKILL)
time.sleep(.3)
if os.getppid() != parent: escaped('killed')
stopped('it is still there')
""",
    "prlimit64": "call('prlimit64', os.getppid(), 7, 0, ctypes.create_string_buffer(16))",
    "end what reports on it, by a limit of processor time": """
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
    "slow down its parent": """
os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()) + 1)
escaped('it is slower')
""",
    "sched_setaffinity": "call('sched_setaffinity', os.getppid(), 8, ctypes.c_char_p(bytes([255]) * 8))",
    "trace its parent": "call('ptrace', 16, os.getppid(), 0, 0)",
    "read memory of its parent": """
buffer = ctypes.create_string_buffer(8)
here = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
there = (ctypes.c_ulong * 2)(4096, 8)
call('process_vm_readv', os.getppid(), here, 1, there, 1, 0)
""",
    "daemon that stays": """
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
    "children that are never buried": """
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
for _ in range(4):
    if os.fork() == 0: os._exit(0)
time.sleep(.2)
stopped('buried with the program')
""",
    "forged report on every descriptor": """
for fd in range(3, 1024):
    try:
        os.write(fd, b'{"code": 0, "files": []}\\n')
    except OSError:
        continue
    escaped('descriptor ' + str(fd))
os._exit(3)
""",
    "report of another form on the status pipe": """
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
}
