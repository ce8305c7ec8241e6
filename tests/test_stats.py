"""Seconds by stage, from any thread, and what is said of them."""

import threading
import time

import pytest

from omnitts.stats import Stats


def test_threads_add_without_losing_anything():
    stats = Stats()

    def work():
        for _ in range(2000):
            stats.add(clips=1, decode=0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (stats.clips, stats.decode) == (8000, 4000.0)


def test_timing_counts_also_what_fails():
    stats = Stats()
    with pytest.raises(ValueError), stats.timing("write"):
        time.sleep(0.01)
        raise ValueError
    assert 0.01 <= stats.write < 1 and stats.decode == 0


def test_what_is_left_is_the_loops_own():
    stats = Stats(prepare=1.0, step=6.0, finish=2.0, decode=3.0, batches=2, clips=5, positions=900)
    stats.add(decoded_frames=90, padded_frames=10)
    figures = stats.as_dict(wall=10.0, audio=40.0)
    assert figures["seconds"] == {
        "prepare": 1.0,
        "step": 6.0,
        "finish": 2.0,
        "host": 1.0,
        "decode": 3.0,
        "postprocess": 0.0,
        "write": 0.0,
    }
    assert figures["share"]["step"] == 0.6
    assert (figures["clips_per_batch"], figures["positions_per_batch"], figures["decode_padding"]) == (2.5, 450.0, 0.1)
    first, second, third = stats.lines(wall=10.0, audio=40.0)
    assert "60.0% in the engine" in first and "10.0% between" in first
    assert "decode 30.0%" in second
    assert "2 batches of 2.5 clips and 450 positions" in third and "real-time factor 0.2500" in third


def test_padding_and_graphs_are_told_where_there_are_any():
    stats = Stats(step=6.0)
    assert stats.as_dict(10.0, 40.0)["step_padding"] is None
    stats.add(captures=3, capturing=1.25, step_positions=970, step_padding=30)
    figures = stats.as_dict(10.0, 40.0)
    assert (figures["graphs_captured"], figures["capture_seconds"], figures["step_padding"]) == (3, 1.25, 0.03)
    _, _, third, _ = stats.lines(10.0, 40.0)
    assert third == "stats: 3 graphs captured in 1.2 s of that time; 3.0% of the steps' positions were padding"


def test_a_run_that_made_nothing():
    figures = Stats().as_dict(wall=0.0, audio=0.0)
    assert figures["clips_per_batch"] is figures["real_time_factor"] is figures["decode_padding"] is None
    assert len(list(Stats().lines(0.0, 0.0))) == 3
