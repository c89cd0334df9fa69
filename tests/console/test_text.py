"""What goes to a terminal: harmless, of known width, within the page."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from awa_django.console.screen import WIDTH, Column, table
from awa_django.console.text import ago, clip, count, length, pad, plain, short, span

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[2J\x1b]0;owned\x07",
        "\x9b31m",
        "a\rb",
        "a\nb",
        "\x7f\x08",
        "\u202egpj.exe",
        "\u2066x",
        "\u200b",
        "\u2028",
    ],
)
def test_nothing_that_moves_a_cursor_turns_writing_or_hides_reaches_the_terminal(text: str) -> None:
    shown = plain(text)
    assert shown != text
    assert shown.isprintable()


def test_ordinary_text_of_any_script_is_left_alone() -> None:
    for text in ("send_receipt", "Māori, naïve", "日本語", "نامه\u200cها", "e\u0301"):
        assert plain(text) == text


def test_wide_characters_count_twice_and_combining_ones_not_at_all() -> None:
    assert length("日本語") == 6
    assert length("e\u0301") == 1
    assert clip("日本語", 4) == "日…"
    assert clip("plain", 5) == "plain"
    assert clip("plain", 0) == ""
    assert pad("日", 4) == "日  "
    assert pad("7", 3, right=True) == "  7"


@given(
    rows=st.lists(st.tuples(st.integers(0, 10**18), st.text(), st.text(), st.text(), st.text()), max_size=6),
    titles=st.lists(st.text("abcdefghij ", min_size=1, max_size=12), min_size=5, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_a_table_fits_the_page_and_keeps_its_figures_whole(
    rows: list[tuple[int, str, str, str, str]], titles: list[str]
) -> None:
    columns = [Column(titles[0], right=True), *(Column(title) for title in titles[1:])]
    lines = table(columns, rows)
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert length(line) <= WIDTH
        assert not [character for character in line if unicodedata.category(character) in ("Cc", "Cs", "Zl")]
    for line, row in zip(lines[1:], rows, strict=True):
        assert str(row[0]) in line


def test_the_widest_text_gives_way_first() -> None:
    lines = table([Column("a"), Column("b")], [("short", "x" * 200)])
    assert lines[1].startswith("short  xxx")
    assert lines[1].endswith("…")
    assert length(lines[1]) == WIDTH


def test_figures_and_times_are_for_people() -> None:
    assert [short(number) for number in (7, 99_999, 100_000, 12_345_678, 5 * 10**13)] == [
        "7", "99,999", "100k", "12M", "5.0e+13",
    ]  # fmt: skip
    assert (count(1, "job"), count(1240, "job"), count(2, "match", "match")) == (
        "1 job",
        "1,240 jobs",
        "2 match",
    )
    assert [span(seconds) for seconds in (0, 0.25, 90, 150, 3600, 7200, 200_000)] == [
        "0 s", "250 ms", "90 s", "2 min", "1 h", "2 h", "2 days",
    ]  # fmt: skip
    assert ago(None, NOW) == "-"
    assert ago(NOW, NOW) == "now"
    assert ago(NOW - timedelta(minutes=3), NOW) == "3 min ago"
    assert ago(NOW + timedelta(hours=5), NOW) == "in 5 h"
