"""Table of the faults: description, engine, and the function that causes each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tools.serve_faults import engine, program, surroundings
from tools.serve_faults.world import Seen, World

REAL, FAKE = "built-in", "fake"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its description, its engine, and the function that causes it.

    A `slow` one is left to `.ci/faults`: it takes seconds, or other tests prove the same.
    """

    words: str
    engine: str
    provoke: Callable[[World], Awaitable[Seen]]
    slow: bool = False


FAULTS = (
    Fault("kill -9 of the engine, idle", REAL, engine.killed_idle, slow=True),
    Fault("kill -9 of the engine while it loads", REAL, engine.killed_loading, slow=True),
    Fault("kill -9 of the engine in the middle of a reply", REAL, engine.killed_streaming),
    Fault("kill -9 of the keeper between the program and the engine", REAL, engine.keeper_killed, slow=True),
    Fault("kill -9 of the program in the middle of a reply", REAL, program.killed, slow=True),
    Fault("kill -9 of the program and its keeper at once", REAL, program.killed_with_keeper, slow=True),
    Fault("SIGSTOP to the engine, then SIGCONT", REAL, engine.held, slow=True),
    Fault("SIGSTOP to the engine, then `stop`", REAL, engine.held_and_stopped, slow=True),
    Fault("the engine ignores SIGTERM and the end of its parent", FAKE, engine.ignores_term, slow=True),
    Fault("the port is taken between the check and the start", REAL, surroundings.port_taken, slow=True),
    Fault("the same, of a port that was asked for", REAL, surroundings.asked_port_taken, slow=True),
    Fault("two programs at once", REAL, program.two_programs, slow=True),
    Fault("the disk is full while the log is written", REAL, program.full_disk, slow=True),
    Fault("50,000 lines a second in the log, for 10 s", FAKE, engine.flood, slow=True),
    Fault("half lines and NULs in the log", FAKE, engine.half_lines),
    Fault("the engine says nothing while it loads", FAKE, engine.silent_load, slow=True),
    Fault("/health is green from the start, but no token ever comes", FAKE, engine.mute, slow=True),
    Fault("/health is green, but a reply stops in the middle", FAKE, engine.stalls, slow=True),
    Fault("MTP is on, but nothing is drafted", FAKE, engine.no_drafts, slow=True),
    Fault("the clock jumps by 3 hours (or the computer slept)", REAL, engine.clock_forward, slow=True),
    Fault("the clock is set back by a day", REAL, engine.clock_back, slow=True),
    Fault("the folders of settings and state can only be read", REAL, program.read_only, slow=True),
    Fault("all folders of the program can only be read", REAL, program.all_read_only, slow=True),
    Fault("the kept settings are damaged", REAL, program.corrupt_settings),
    Fault("the kept ports and keys are damaged", REAL, program.corrupt_endpoints, slow=True),
    Fault("the record of the last start is damaged", REAL, program.corrupt_last_start, slow=True),
    Fault("the model file is cut short before it is served", REAL, program.cut_model, slow=True),
    Fault("the model file is removed while it is served", REAL, surroundings.model_removed, slow=True),
    Fault("the model file shrinks while it is mapped", REAL, surroundings.model_shrinks, slow=True),
    Fault("the engine is replaced on the disk", REAL, surroundings.engine_replaced, slow=True),
    Fault("the engine is removed from the disk", REAL, surroundings.engine_removed, slow=True),
    Fault("the engine crashes again and again", FAKE, engine.crash_loop, slow=True),
    Fault("new settings with which it does not start", REAL, engine.new_settings_fail),
    Fault("a flag that the engine does not know", REAL, engine.unknown_flag, slow=True),
    Fault("the GPU's memory runs out while it loads", FAKE, engine.out_of_memory),
    Fault("a build for a GPU that finds none", FAKE, surroundings.gpu_lost, slow=True),
)
