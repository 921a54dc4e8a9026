"""Tables say what report.json says: bold, letters, intervals, and text that cannot break them."""

import csv
import io
import re

from calibjax.report import tables
from tests.report.sample import cell, method, report


def _markdown_cells(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[part.strip() for part in line.strip("|").split(" | ")] for line in lines]


def test_best_is_ranked_within_equal_outcomes_unless_the_figure_allows_more():
    sample = report()
    # "other" has the lowest ECE but forecasts other outcomes, on which it has no rival.
    assert tables.best(sample, "ece") == {"ours"}
    # Accuracy compares all three; ours and base_rate tie at the top.
    assert tables.best(sample, "accuracy") == {"ours", "base_rate"}


def test_nothing_is_best_where_all_tie_or_one_is_alone():
    sample = report()
    assert tables.best(sample, "log_loss") == set()
    del sample["methods"]["base_rate"]
    assert tables.best(sample, "ece") == set()


def test_best_ties_at_the_printed_precision():
    sample = report()
    sample["methods"]["base_rate"]["metrics"]["ece"]["estimate"] = 0.02004
    assert tables.best(sample, "ece", digits=3) == set()
    assert tables.best(sample, "ece", digits=5) == {"ours"}


def test_letters_mark_the_methods_that_differ_in_both_directions():
    sample = report()
    assert tables.letters(sample) == {"ours": "a", "base_rate": "b", "other": "c"}
    assert tables.differing(sample, "ours", "ece") == ["b"]
    assert tables.differing(sample, "base_rate", "ece") == ["a"]
    # The interval of this difference holds 0.
    assert tables.differing(sample, "ours", "accuracy") == []


def test_markdown_has_a_row_a_method_with_intervals_and_bold():
    cells = _markdown_cells(tables.markdown(report(), metrics=("accuracy", "ece", "auroc")))
    assert cells[0] == ["Method", "ACC", "ECE", "AUROC"]
    assert cells[2][:3] == ["ours", "**0.600** [0.590, 0.610]", "**0.020** [0.010, 0.030]"]
    assert cells[3][3] == "n/a"
    assert len(cells) == 5 and {len(row) for row in cells} <= {4, 1}


def test_markdown_differences_are_bold_only_without_zero():
    text = tables.markdown_differences(report(), metrics=("ece",))
    assert "**-0.030** [-0.050, -0.010]" in text
    across = tables.markdown_differences(
        report(), metrics=("accuracy",), section="across_outcomes"
    )
    assert "| 0.050 [-0.010, 0.110] |" in across
    assert tables.markdown_differences({"methods": {}}) == ""


def test_method_names_cannot_break_markdown():
    sample = report()
    sample["methods"] = {"a|b\n<script>": method("x")}
    lines = tables.markdown(sample, metrics=("ece",)).splitlines()
    assert lines[2].startswith("| a\\|b \\<script\\> |") and len(lines) == 3


def _balanced(latex):
    """Braces, math dollars and environments close in order; no special character is bare."""
    stack, text = [], re.sub(r"\\[\\%&#_{}$]", "", latex)
    for token in re.findall(r"\\begin\{\w+\}|\\end\{\w+\}|[{}]", text):
        if token.startswith("\\begin"):
            stack.append(token.replace("begin", "end"))
        elif token == "{":
            stack.append("}")
        else:
            assert stack and stack.pop() == token, token
    assert not stack
    for line in text.splitlines():
        assert line.count("$") % 2 == 0, line
    outside = re.sub(r"\$[^$]*\$", "", text)
    assert not re.search(r"[%#~^<>|]", outside), outside
    body = latex.split(r"\toprule")[1].split(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.strip().endswith(r"\\")]
    assert rows and len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    return True


def test_latex_is_balanced_with_any_method_name():
    sample = report()
    for name in ("a_b", "100%", r"\evil{", "$x^2$ & #1 ~ <b> |", "back\\slash}"):
        sample["methods"][name] = method(name)
    assert _balanced(tables.latex(sample, caption="50 % of A&B"))


def test_latex_has_bold_letters_intervals_and_a_caption_with_the_settings():
    text = tables.latex(report(), metrics=("ece", "auroc"), caption="Test.")
    assert r"\toprule" in text and r"\bottomrule" in text
    assert r"ours$^{a}$ & \textbf{0.020}$^{b}$ & 0.500" in text
    assert r"{\scriptsize [0.010, 0.030]}" in text
    assert r"base\_rate$^{b}$ & 0.050$^{a}$ & --" in text
    assert r"ECE $\downarrow$ & AUROC $\uparrow$" in text
    caption = re.search(r"\\caption\{(.*)\}", text).group(1)
    for part in ("Test.", "n = 100", r"95 \% percentile", "2000 paired bootstrap", "seed 7"):
        assert part in caption


def test_latex_divides_methods_of_different_outcomes():
    assert tables.latex(report()).count(r"\midrule") == 2


def test_negative_numbers_are_typeset_as_such():
    sample = report()
    sample["methods"]["ours"]["metrics"]["log_loss_skill"] = cell(-0.1, -0.2, 0.05)
    text = tables.latex(sample, metrics=("log_loss_skill",))
    assert "$-$0.100" in text and "[$-$0.200, 0.050]" in text and _balanced(text)
    assert tables.number(-0.0001) == "0.000"


def test_csv_holds_every_figure_exactly():
    sample = report()
    sample["methods"]["ours"]["metrics"]["ece"] = cell(1 / 3, 0.1, 0.5)
    rows = list(csv.DictReader(io.StringIO(tables.csv_table(sample))))
    found = {(row["kind"], row["name"], row["metric"]): row for row in rows}
    assert float(found["method", "ours", "ece"]["estimate"]) == 1 / 3
    assert found["method", "base_rate", "auroc"]["estimate"] == ""
    assert found["method", "base_rate", "auroc"]["reason"] == "all confidences are equal"
    assert found["difference", "ours-other", "accuracy"]["high"] == "0.11"
    assert len(rows) == 3 * 18 + 2
