"""Every recorded SQL scenario of the contract, against a fresh installation (contract: vectors/sql)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import replay

VECTORS = Path(replay.__file__).parent / "vectors" / "sql"


SCENARIOS = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(VECTORS.glob("*.json"))
    for case in replay.load(path)["cases"]
]


@pytest.mark.parametrize("case", SCENARIOS)
def test_the_schema_answers_as_recorded(emptied_database: str, case: replay.Case) -> None:
    with replay.connected(emptied_database) as conn:
        mismatches = replay.mismatches(conn, case)
    assert not mismatches, "\n" + "\n".join(mismatches)


def test_the_comparison_notices_other_rows_and_other_errors(emptied_database: str) -> None:
    case = {
        "steps": [
            {"do": "SELECT 1", "rows": [[2]]},
            {"do": "SELECT 1", "error": {"sqlstate": "55000"}},
            {"do": "SELECT 1 / 0"},
            {"do": "SELECT 1 / 0", "error": {"sqlstate": "22003"}},
            {"do": "SELECT 1 / 0", "error": {"sqlstate": "22012"}},
            {"do": "SELECT 1", "rows": [[1]]},
            {"do": "SELECT 1"},
        ]
    }
    with replay.connected(emptied_database) as conn:
        assert len(replay.mismatches(conn, case)) == 4
