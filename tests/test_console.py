import os
import signal
import sys
import time
import weakref

import pytest

from omnitts import console


@pytest.fixture(autouse=True)
def signals():
    before = {number: signal.getsignal(number) for number in console._STOPS}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_signal_interrupts_and_its_echoes_do_not():
    console.stop_on_signals()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_signal_much_later_interrupts_again(monkeypatch):
    monkeypatch.setattr(console, "_PATIENCE", 0.0)
    console.stop_on_signals()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_signal_where_nothing_can_be_raised_interrupts_soon_after():
    class Thing:
        pass

    def signalled(_reference):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        called.append("to the end")

    called = []
    console.stop_on_signals()
    thing = Thing()
    reference = weakref.ref(thing, signalled)  # Python prints what is raised in there, and goes on
    with pytest.raises(KeyboardInterrupt):
        del thing
        called.append("swallowed")
        time.sleep(1)
    assert called == ["swallowed"] and reference() is None


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_an_import_is_brought_to_its_end_first(tmp_path, monkeypatch):
    lines = "import os, signal, time", "os.kill(os.getpid(), signal.SIGTERM)", "time.sleep(0.1)", "ended = True"
    (tmp_path / "slow_to_import.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    console.stop_on_signals()
    with pytest.raises(KeyboardInterrupt):
        import slow_to_import

        time.sleep(1)
    assert slow_to_import.ended


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_what_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    console.stop_on_signals()
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.01)
    console.ignore_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)


@pytest.mark.parametrize(
    ("given", "spin_count"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_spin_less_unless_the_user_says_how(monkeypatch, given, spin_count):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    console.spin_less()
    assert os.environ.get("GOMP_SPINCOUNT") == spin_count
