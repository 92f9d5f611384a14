"""What runs outside the lab's process: the launcher that builds a sandbox around one program.

Start at launch.py; mounts.py makes the files that the program sees, seccomp.py its filter of system calls, and
syscalls.py is what Python's library has no function for. These modules are imported by a bare interpreter that is
started for every program, so they use nothing but the cheap part of the standard library.
"""
