"""The page of measured tables: a section is replaced by its next run, and nothing else on the page."""

import pytest

from ops.bench import budget, report
from ops.bench.limits import capacity
from ops.bench.usage import usage


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "performance.md"
    path.write_text("# Page\n\n<!-- held -->\nold\n<!-- /held -->\n\nkept\n\n<!-- cost -->\n<!-- /cost -->\n")
    return path


def test_a_section_is_replaced_with_its_date_and_machine(page, capsys):
    report.write("held", report.table(["a", "b"], [[1, 2.345], ["x", 1234.5]]), "two cores", page)
    text = page.read_text()
    assert "| a | b |\n| --- | --- |\n| 1 | 2.35 |\n| x | 1234 |" in text
    assert "two cores" in text
    assert "old" not in text
    assert "\nkept\n" in text
    assert text.endswith("<!-- cost -->\n<!-- /cost -->\n")


def test_a_section_that_the_page_does_not_have_is_an_error(page):
    with pytest.raises(ValueError, match="no section peers"):
        report.write("peers", "", "", page)


def test_the_page_has_a_place_for_every_section():
    from ops.bench.__main__ import SECTIONS

    text = report.PAGE.read_text(encoding="utf-8")
    for name in (*SECTIONS, "peers"):
        assert f"<!-- {name} -->\n" in text
        assert f"<!-- /{name} -->" in text


def test_landings_are_one_line_a_case_and_shape():
    found = [budget.Landed("1M/500", "drift", seed, share, 100, 0.0, 1.0) for seed, share in enumerate([0.995, 1.0, 1.02])]
    assert "| 1M/500 | drift | 3 | 99.50 | 100.50 | 102.00 | 1 | 100 |" in budget.shown(found)


def test_the_capacity_of_a_second_is_that_of_the_last_step():
    assert [capacity(t) for t in (0, 119, 120, 239, 240, 400)] == [800, 800, 300, 300, 1_500, 1_500]


def test_use_counts_a_process_and_what_it_started():
    import subprocess
    import sys

    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    main = (f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
            "print('done', flush=True)\ntime.sleep(60)")
    child = subprocess.Popen([sys.executable, "-c", main], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"done\n"
        found = usage([child.pid])
        assert found.cpu_s >= 0.29
        assert found.rss_mb > 1
    finally:
        child.kill()
        child.communicate()
    assert usage([child.pid]).cpu_s == 0
