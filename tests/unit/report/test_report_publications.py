"""What differs from a publication is said once, above its table."""

from __future__ import annotations

from pipeline.report.page.page import split_by_agreement
from pipeline.report.page.table_format import Table, Values

HEADS = ("finding", "case", "ours", "low", "high", "agreement", "by how much", "mind")
OTHER = "measured at other settings"


def table(*rows: Values) -> Table:
    return Table("paper", "The paper's figures and ours", HEADS, rows, about="A paper.")


def finding(text: str, case: str, agreement: str, difference: str = "", mind: str = "H100 instead of A100") -> Values:
    return (text, case, "1.07", 0.9, 1.2, agreement, difference, mind)


def test_settings_that_all_findings_of_a_case_share_stand_above_and_others_in_their_row() -> None:
    split_tables = split_by_agreement(
        table(
            finding("a", "small", OTHER, "rn26 instead of small; recipe plain instead of timm"),
            finding(
                "b", "small", OTHER, "rn26 instead of small; recipe plain instead of timm; batch 128 instead of 32"
            ),
            finding("c", "large", OTHER, "rn152 instead of large; recipe plain instead of timm"),
            finding("d", "small", "not measured here"),
        )
    )
    shared = "rn26 instead of small; recipe plain instead of timm; rn152 instead of large"
    assert split_tables.other.differs == f"Differences from the paper: H100 instead of A100; {shared}."
    assert split_tables.other.table.columns == ("finding", "case", "ours", "other settings")
    assert [row[-1] for row in split_tables.other.table.rows] == [None, "batch 128 instead of 32", None]
    assert split_tables.other.table.note == "" and (split_tables.num_absent, split_tables.same.table.rows) == (1, ())


def test_a_column_that_says_nothing_more_is_left_out() -> None:
    split_tables = split_by_agreement(
        table(finding("a", "small", OTHER, "x"), finding("b", "small", "differs", "9 % lower"))
    )
    assert split_tables.other.table.columns == ("finding", "case", "ours")
    assert split_tables.same.table.columns == ("finding", "case", "ours", "agreement", "by how much")
    assert (
        split_tables.same.table.rows[0][-1] == "9 % lower"
        and split_tables.same.differs == "Differences from the paper: H100 instead of A100."
    )
