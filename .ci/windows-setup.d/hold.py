"""Holds a named mutex, as a running program or another setup does, and lets nobody end it: hold.py NAME SECONDS."""
# ruff: noqa: T201

import ctypes
import sys
import time

ctypes.WinDLL("kernel32").CreateMutexW(None, False, sys.argv[1])
print("held", flush=True)
time.sleep(float(sys.argv[2]))
