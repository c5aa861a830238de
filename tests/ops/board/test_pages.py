"""Our pages in a real Flower, over HTTP: what they show, and what they keep to themselves."""

import pytest

from tests.ops.board import seeded
from tests.ops.board.serving import words

PAGES = ["/datasets", "/dataset/B3", "/dataset/B8", "/dataset/B3?span=15m", "/requeue",
         "/requeue?dataset=B3&cause=length&lane=long", "/requeue?dataset=B3&truncated=true"]


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_behind_flowers_login(board, path):
    with board.client() as client:
        assert client.get(path, auth=None).status_code == 401
        assert client.get(path).status_code == 200


def test_all_datasets_are_shown_with_what_the_database_holds(board):
    with board.client() as client:
        page = words(client.get("/datasets").text)
    for name, done, failed in board.rows("select name, done, failed from dataset"):
        assert f"{name} " in page
        lanes = board.rows("""select count(*) filter (where state = 2), count(*) filter (where state = 3) from sample s
            where lane = 1 and dataset_id = (select id from dataset where name = %s)""", name)[0]
        assert f"short {done - lanes[0]} done {failed - lanes[1]} failed" in page
        assert f"long {lanes[0]} done {lanes[1]} failed" in page
    assert "at budget" in page
    assert "closed: operator" in page
    assert "paused: bad_credentials" in page, "limits come from Redis"
    assert "331 of 1,000" in page


def test_flowers_own_pages_lead_to_ours_and_stay(board):
    with board.client() as client:
        for path in ("/", "/workers", "/tasks", "/broker"):
            page = client.get(path).text
            assert 'href="/datasets"' in page, path
            assert 'href="/requeue"' in page, path
        assert 'href="/workers"' in client.get("/datasets").text


def test_a_dataset_is_shown_over_time_by_length_cause_and_provider(board):
    with board.client() as client:
        html = client.get("/dataset/B3").text
    page = words(html)
    for code, n in board.rows("select reason, count(*) from sample where state = 3 and key like 'B3-%%' group by 1"):
        assert f"{code} {n} " in page
    for provider, *_ in seeded.PROVIDERS:
        assert provider in page
    assert "left out answers that are cut: 41% against 6% of the others" in page
    for chart in ("Tokens over time", "Dollars over time", "Stored tokens a second", "answers by their length"):
        assert f'aria-label="{chart}' in html or chart in html
    assert html.count("<svg class=\"dm-chart\"") == 4


def test_prompts_stay_off_the_pages_unless_a_flag_allows_them(board, glass):
    with board.client() as client:
        assert not [path for path in PAGES if seeded.SECRET in client.get(path).text]
    with glass.client() as client:
        assert seeded.SECRET in client.get("/dataset/B3").text


def test_a_dataset_without_an_answer_says_so(board):
    with board.client() as client:
        page = words(client.get("/dataset/B8").text)
    assert "No call has ended yet" in page
    assert "No sample has failed" in page


def test_what_does_not_exist_is_refused_in_words(board):
    with board.client() as client:
        for path, status, said in (("/dataset/none", 404, "no such dataset"), ("/requeue?dataset=none", 404, "no such dataset"),
                                   ("/dataset/B3?span=1y", 400, "The span is one of"),
                                   ("/requeue?dataset=B3&max_tokens=many", 400, "must be a number")):
            answer = client.get(path)
            assert (answer.status_code, said in words(answer.text)) == (status, True), path


def test_what_an_address_says_is_text_on_the_page(board):
    with board.client() as client:
        page = client.get("/requeue", params={"dataset": "B3", "cause": "<script>alert(1)</script>", "lane": "<b>x"}).text
    assert "<script>alert" not in page
    assert "<b>x" not in page
    assert "there is no lane" in words(page)


def test_pages_may_not_be_framed_nor_run_scripts_of_others(board):
    with board.client() as client:
        policy = client.get("/datasets").headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'self'" in policy
    assert "script-src" not in policy, "so scripts too come from Flower alone"
