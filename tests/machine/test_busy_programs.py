"""The names of the programs that use most of the processor."""

import os

from launcher.machine.busy_programs import BusyPrograms, ProgramTime, rank_programs, read_program_times


def times(**used_s: float) -> dict[int, ProgramTime]:
    """Return processes with the IDs 1, 2, ..., named by the keys without a trailing digit."""
    return {at: ProgramTime(name.rstrip("0123456789"), 5.0, used) for at, (name, used) in enumerate(used_s.items(), 1)}


def test_the_two_busiest_are_named_with_their_processes_together() -> None:
    before = times(engine=0, chrome1=10, chrome2=10, ffmpeg=50, shell=1)
    after = times(engine=90, chrome1=11.5, chrome2=11.5, ffmpeg=52, shell=1.1)
    assert rank_programs(before, after, without={1}) == ("chrome", "ffmpeg")


def test_one_that_uses_little_is_not_named() -> None:
    assert rank_programs(times(ffmpeg=0, shell=0), times(ffmpeg=9, shell=1), without=()) == ("ffmpeg",)
    assert rank_programs(times(shell=7), times(shell=7), without=()) == ()


def test_a_new_process_counts_from_its_start() -> None:
    before = {7: ProgramTime("old", 1.0, 100.0), 8: ProgramTime("other", 1.0, 5.0)}
    after = {7: ProgramTime("new", 2.0, 3.0), 8: ProgramTime("other", 1.0, 5.5)}
    assert rank_programs(before, after, without=()) == ("new",)


def test_the_processes_of_this_computer_are_read() -> None:
    own = read_program_times()[os.getpid()]
    assert own.name
    assert own.used_s > 0
    programs = BusyPrograms()
    assert programs.list_busiest(()) == (), "a time needs two readings"
    assert len(programs.list_busiest(())) <= 2
    programs.forget()
    assert programs.list_busiest(()) == ()
