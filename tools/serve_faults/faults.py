"""Table of the faults: description, engine, and the function that causes each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tools.serve_faults import engine, program, surroundings
from tools.serve_faults.world import Observation, World

REAL, FAKE = "built-in", "fake"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its description, its engine, and the function that causes it.

    A `slow` one is provoked only by `.ci/faults`, because it takes seconds or other tests prove the same.
    """

    description: str
    engine: str
    provoke: Callable[[World], Awaitable[Observation]]
    slow: bool = False


FAULTS = (
    Fault("kill -9 of the engine, idle", REAL, engine.kill_idle_engine, slow=True),
    Fault("kill -9 of the engine while it loads", REAL, engine.kill_loading_engine, slow=True),
    Fault("kill -9 of the engine in the middle of a reply", REAL, engine.kill_streaming_engine),
    Fault("kill -9 of the keeper between the program and the engine", REAL, engine.kill_keeper, slow=True),
    Fault("kill -9 of the program in the middle of a reply", REAL, program.kill_program, slow=True),
    Fault("kill -9 of the program and its keeper at once", REAL, program.kill_program_and_keeper, slow=True),
    Fault("SIGSTOP to the engine, then SIGCONT", REAL, engine.suspend_engine, slow=True),
    Fault("SIGSTOP to the engine, then `stop`", REAL, engine.stop_suspended_engine, slow=True),
    Fault("the engine ignores SIGTERM and the end of its parent", FAKE, engine.stop_unwilling_engine, slow=True),
    Fault("the port is taken between the check and the start", REAL, surroundings.take_port, slow=True),
    Fault("the same, of a port that was asked for", REAL, surroundings.take_requested_port, slow=True),
    Fault("two programs at once", REAL, program.run_two_programs, slow=True),
    Fault("the disk is full while the log is written", REAL, program.fill_disk, slow=True),
    Fault("50,000 lines a second in the log, for 10 s", FAKE, engine.flood_log, slow=True),
    Fault("half lines and NULs in the log", FAKE, engine.print_half_lines),
    Fault("the engine says nothing while it loads", FAKE, engine.start_silent_engine, slow=True),
    Fault("/health is green from the start, but no token ever comes", FAKE, engine.start_mute_engine, slow=True),
    Fault("/health is green, but a reply stops in the middle", FAKE, engine.stall_reply, slow=True),
    Fault("MTP is on, but nothing is drafted", FAKE, engine.start_engine_without_drafts, slow=True),
    Fault("the clock jumps by 3 hours (or the computer slept)", REAL, engine.set_clock_forward, slow=True),
    Fault("the clock is set back by a day", REAL, engine.set_clock_back, slow=True),
    Fault("the folders of settings and state can only be read", REAL, program.make_folders_read_only, slow=True),
    Fault("all folders of the program can only be read", REAL, program.make_home_read_only, slow=True),
    Fault("the kept settings are damaged", REAL, program.damage_settings),
    Fault("the kept ports and keys are damaged", REAL, program.damage_endpoints, slow=True),
    Fault("the record of the last start is damaged", REAL, program.damage_last_start, slow=True),
    Fault("the model file is cut short before it is served", REAL, program.cut_model, slow=True),
    Fault("the model file is removed while it is served", REAL, surroundings.remove_model, slow=True),
    Fault("the model file shrinks while it is mapped", REAL, surroundings.shrink_model, slow=True),
    Fault("the engine is replaced on the disk", REAL, surroundings.replace_engine, slow=True),
    Fault("the engine is removed from the disk", REAL, surroundings.remove_engine, slow=True),
    Fault("the engine crashes again and again", FAKE, engine.crash_repeatedly, slow=True),
    Fault("new settings with which it does not start", REAL, engine.fail_new_settings),
    Fault("a flag that the engine does not know", REAL, engine.pass_unknown_flag, slow=True),
    Fault("the GPU's memory runs out while it loads", FAKE, engine.run_out_of_memory),
    Fault("a build for a GPU that finds none", FAKE, surroundings.hide_gpu, slow=True),
)
