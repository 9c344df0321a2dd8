"""Syncs by the kernel: io_submit(2) begins one, and an eventfd wakes the event loop when it has ended.

No thread takes part: no sync waits for the interpreter's lock, and no answer for a thread to be scheduled.

Knows: the system calls of linux/aio_abi.h and their layouts, and the event loop.
Must never know: what is synced, and what waits for it.
"""

import asyncio
import ctypes
import errno
import os
import platform
import sys
from concurrent.futures import Executor
from struct import Struct
from typing import Final, NamedTuple


class _Numbers(NamedTuple):
    """System calls for which neither libc nor Python has functions."""

    setup: int
    destroy: int
    submit: int
    getevents: int


_NUMBERS: Final = {"x86_64": _Numbers(206, 207, 209, 208), "aarch64": _Numbers(0, 1, 2, 4)}
_ARGUMENTS_MAX: Final = 5

# struct iocb: data, key, rw_flags, opcode, reqprio, fildes, buf, nbytes, offset, reserved2, flags, resfd
_OPERATION: Final = Struct("<QIiHhIQQqQII")
_FDSYNC: Final = 3  # as fdatasync; since Linux 4.18
_RESFD: Final = 1  # the end counts in the eventfd `resfd`
# struct io_event: data, obj, res (0, or an errno below zero), res2
_EVENT: Final = Struct("<QQqq")


class KernelSyncs:
    """One sync at a time, on the running event loop. Raises OSError where the system has or allows none."""

    def __init__(self) -> None:
        is_64_bit = sys.maxsize > 1 << 32
        numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" and is_64_bit else None
        if numbers is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._numbers = numbers
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.argtypes, self._syscall.restype = (ctypes.c_long,) * (1 + _ARGUMENTS_MAX), ctypes.c_long
        self._operation = ctypes.create_string_buffer(_OPERATION.size)
        self._operations = (ctypes.c_void_p * 1)(ctypes.addressof(self._operation))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[OSError | None] | None = None
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        context = ctypes.c_ulong(0)
        try:
            self._call(numbers.setup, 1, ctypes.addressof(context))
        except OSError:
            os.close(self._eventfd)
            raise
        self._context = context.value
        self._loop.add_reader(self._eventfd, self._end)

    def sync(self, descriptor: int) -> asyncio.Future[OSError | None]:
        """Begin to sync a file. The future has the error of it, None once the file is on disk.

        Raises OSError if it did not begin: nothing has happened to the file, so it may be synced otherwise.
        """
        assert self._ended is None, "one at a time"
        fields = (0, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _RESFD, self._eventfd)
        _OPERATION.pack_into(self._operation, 0, *fields)
        self._call(self._numbers.submit, self._context, 1, ctypes.addressof(self._operations))
        self._ended = self._loop.create_future()
        return self._ended

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        assert ended is not None, "what ends was begun"
        try:
            os.eventfd_read(self._eventfd)
            self._call(self._numbers.getevents, self._context, 1, 1, ctypes.addressof(self._event))
            code = -_EVENT.unpack(self._event)[2]
            ended.set_result(OSError(code, os.strerror(code)) if code else None)
        except OSError as error:
            # How it ended is unknown.
            ended.set_result(error)

    def close(self, thread: Executor) -> None:
        """Let go, when no sync is under way. The thread waits for the kernel, which takes some 30 ms."""
        self._loop.remove_reader(self._eventfd)
        os.close(self._eventfd)
        thread.submit(self._call, self._numbers.destroy, self._context)

    def _call(self, number: int, *arguments: int) -> None:
        if self._syscall(number, *arguments, *(0,) * (_ARGUMENTS_MAX - len(arguments))) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
