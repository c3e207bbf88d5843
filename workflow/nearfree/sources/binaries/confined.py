"""Run a third-party program with few rights: a script that confines itself, then becomes it.

The process may not open a file for writing, open a socket, start another process or inspect one;
its CPU time, its memory and the length of its output are bounded. It needs the standard library
alone, and Linux on x86-64: where the kernel does not accept the filter, nothing is run.
"""

import ctypes
import os
import resource
import signal
import struct
import sys

CPU_S = 120
"""Limit of CPU time, in seconds."""
OUTPUT_LIMIT = 64 * 2**20
"""Limit of a written file (the output), in bytes."""
FILES_LIMIT = 32
"""Limit of open files."""
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
"""Codes of prctl: linux/prctl.h and linux/seccomp.h."""
_LOAD, _EQUAL, _LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Opcodes of a BPF filter: linux/bpf_common.h."""
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000
"""Results of a filter: linux/seccomp.h; a refused call fails as not permitted."""
_X86_64, _X32_CALLS = 0xC000003E, 0x40000000
_NUMBER, _MACHINE, _SECOND, _THIRD = 0, 4, 24, 32
"""Offsets of the call's number, the machine, and the lower half of two arguments."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OPEN, _OPENAT = 2, 257
# fmt: off
_DENIED = (
    41, 42, 43, 44, 46, 49, 50, 53, 288,  # sockets
    56, 57, 58, 435,  # other processes
    62, 101, 200, 234, 297, 310, 311, 424, 434, 438,  # inspecting other processes
    76, 77, 82, 83, 84, 85, 86, 87, 88, 90, 91, 92, 93, 94, 132, 133, 155, 161, 165, 166,  # files
    188, 189, 190, 197, 198, 199, 235, 258, 259, 260, 261, 263, 264, 265, 266, 268, 280, 285,
    304, 316, 437, 452,
    246, 250, 248, 249, 272, 298, 308, 320, 321, 323, 425, 426, 427,  # the kernel
)
# fmt: on
"""Numbers of denied system calls, arch/x86/entry/syscalls/syscall_64.tbl of Linux 6.6."""


def filter_program() -> bytes:
    """Return the filter of system calls as the kernel's BPF bytes."""
    steps: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_LEAST, 0, 1, _X32_CALLS),
        (_RETURN, 0, 0, _KILL),
    ]
    for number in _DENIED:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for number, flags in ((_OPEN, _SECOND), (_OPENAT, _THIRD)):
        steps += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, flags),
            (_ANY_BIT, 0, 1, _WRITES),
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        ]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def confine(memory_bytes: int) -> None:
    """Deny this process, and the program that it becomes, all but what reading a file needs.

    Raises
    ------
    OSError
        The kernel does not accept the filter.
    """
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, OUTPUT_LIMIT),
        (resource.RLIMIT_NOFILE, FILES_LIMIT),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    # Python ignores SIGXFSZ; the program that it becomes would go on without its output.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    raw = filter_program()
    filter_bytes = ctypes.create_string_buffer(raw)
    filter_header = struct.pack("@HP", len(raw) // 8, ctypes.addressof(filter_bytes))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    header_buffer = ctypes.create_string_buffer(filter_header)
    for arguments in (
        (_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SET_SECCOMP, _FILTER, ctypes.addressof(header_buffer), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel accepts no filter of system calls")


if __name__ == "__main__":
    _, memory, *command = sys.argv
    confine(int(memory))
    os.execve(command[0], command, {})  # noqa: S606 (it becomes the program, without a shell)
