"""Launcher that builds a sandbox around one program; it runs in a separate process.

Read launch.py first. mounts.py creates the file system of the program, seccomp.py filters system calls, and syscalls.py
wraps system calls that Python lacks. A bare interpreter imports these modules for each program, so they only use
modules of the standard library that import fast.
"""
