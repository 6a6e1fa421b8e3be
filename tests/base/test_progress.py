"""Progress on a terminal, in a log file, and with --quiet."""

import io
import logging
import sys
import threading
import types

import pytest

from vidssl.base import progress as module
from vidssl.base.progress import progress, reporting


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _output(monkeypatch, stream, steps=4):
    monkeypatch.setattr(sys, "stderr", stream)
    outer = progress(title="runs", unit="run", total=1)
    with progress(title="train", unit="step", total=steps, miniters=1) as bar:
        for _ in range(steps):
            bar.set_postfix_str("8 clips/s", refresh=False)
            bar.update()
    text = stream.getvalue()
    outer.close()
    return text


def without_waiting(monkeypatch):
    for name in ("_FIRST", "_INTERVAL"):
        monkeypatch.setattr(module, name, 0.0)


def test_a_log_file_gets_lines_without_carriage_returns(monkeypatch):
    without_waiting(monkeypatch)
    lines = _output(monkeypatch, io.StringIO()).splitlines()
    assert len(lines) >= 4
    assert lines[-1].startswith("train: 4 of 4 steps, ") and lines[-1].endswith("8 clips/s")
    assert all(text in lines[-1] for text in ("elapsed", "left"))
    assert not any(set("\r\x1b█") & set(line) for line in lines)


def test_a_log_file_gets_nothing_of_short_work(monkeypatch):
    assert _output(monkeypatch, io.StringIO()) == ""


def test_the_first_line_with_the_time_left_comes_early(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    now = [0.0]
    for clock in ("time", "monotonic"):
        monkeypatch.setattr(f"time.{clock}", lambda: now[0])
    with progress(title="features", unit="window", total=100, miniters=1, maxinterval=0) as bar:
        bar._time = lambda: now[0]
        bar.start_t = bar.last_print_t = 0.0
        for _ in range(60):
            now[0] += 1
            bar.update()
    shown = [line.split(",")[1:3] for line in stream.getvalue().splitlines()]
    assert shown[0] == [" 00:05 elapsed", " 01:35 left"]
    assert [line[0] for line in shown] == [f" 00:{second:02} elapsed" for second in (5, 20, 35, 50)]


def test_a_terminal_gets_a_bar(monkeypatch):
    text = _output(monkeypatch, _Terminal())
    assert "\r" in text and "100%" in text and "4/4" in text


@pytest.mark.parametrize("stream", [io.StringIO, _Terminal])
def test_quiet_hides_both(monkeypatch, stream):
    without_waiting(monkeypatch)
    logger = logging.getLogger("vidssl")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    assert _output(monkeypatch, stream()) == ""


def test_a_notebook_gets_a_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    text = _output(monkeypatch, io.StringIO())
    assert "\r" in text and "4/4" in text


def test_a_function_is_called_instead(monkeypatch):
    calls = []
    with reporting(lambda *call: calls.append(call)):
        assert _output(monkeypatch, _Terminal()) == ""
        assert [*progress("ab", title="letters", unit="letter")] == ["a", "b"]
        assert [*progress(iter("a"), title="unknown", unit="letter")] == ["a"]
        with progress(title="resumed", unit="step", total=9, initial=7) as bar:
            bar.update(2)
        assert [*progress("ab", title="of another process", unit="letter", disable=True)] == ["a", "b"]
    assert calls == [
        *((n, 4, "train") for n in (1, 2, 3, 4)),
        (1, 2, "letters"),
        (2, 2, "letters"),
        (1, None, "unknown"),
        (9, 9, "resumed"),
    ]
    assert "4/4" in _output(monkeypatch, _Terminal())  # as before


def test_false_hides_bars(monkeypatch):
    with reporting(False):
        assert _output(monkeypatch, _Terminal()) == ""


def test_a_report_is_of_one_thread_and_undone_after_errors(monkeypatch):
    def fail(*_):
        raise KeyError("stop")

    texts = []
    with pytest.raises(KeyError), reporting(fail):
        other = threading.Thread(target=lambda: texts.append(_output(monkeypatch, _Terminal())))
        other.start()
        other.join()
        _output(monkeypatch, _Terminal())
    assert "4/4" in texts[0] and "4/4" in _output(monkeypatch, _Terminal())
