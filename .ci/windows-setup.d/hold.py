"""Holds a named mutex, as a running program or another setup does, until it is killed: hold.py NAME."""
# ruff: noqa: T201

import ctypes
import sys
import threading

ctypes.WinDLL("kernel32").CreateMutexW(None, False, sys.argv[1])
print("held", flush=True)
threading.Event().wait()
