"""Progress on a terminal, in a log file, and with --quiet."""

import io
import logging
import sys

import pytest

from vidssl import progress as module
from vidssl.progress import progress


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _output(monkeypatch, stream, steps=4):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress(title="train", unit="step", total=steps, miniters=1) as bar:
        for _ in range(steps):
            bar.set_postfix_str("8 clips/s", refresh=False)
            bar.update()
    return stream.getvalue()


def test_a_log_file_gets_lines_without_carriage_returns(monkeypatch):
    monkeypatch.setattr(module, "_INTERVAL", 0.0)
    lines = _output(monkeypatch, io.StringIO()).splitlines()
    assert len(lines) >= 4
    assert lines[-1].startswith("train: 4 of 4 steps, ") and lines[-1].endswith("8 clips/s")
    assert all(text in lines[-1] for text in ("elapsed", "left"))
    assert not any(set("\r\x1b█") & set(line) for line in lines)


def test_a_log_file_gets_nothing_of_short_work(monkeypatch):
    assert _output(monkeypatch, io.StringIO()) == ""


def test_a_terminal_gets_a_bar(monkeypatch):
    text = _output(monkeypatch, _Terminal())
    assert "\r" in text and "100%" in text and "4/4" in text


@pytest.mark.parametrize("stream", [io.StringIO, _Terminal])
def test_quiet_hides_both(monkeypatch, stream):
    monkeypatch.setattr(module, "_INTERVAL", 0.0)
    logger = logging.getLogger("vidssl")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    assert _output(monkeypatch, stream()) == ""
