"""Closing, opening and asking again from the page: only by a form of ours, bounded, recorded, and taken back."""

import pytest

from tests.ops.board.serving import token, words


@pytest.fixture
def client(board):
    with board.client() as client:
        yield client


def test_a_dataset_is_closed_and_opened(board, client):
    for wanted, state in (("close", (1, "operator")), ("open", (0, None))):
        form = {"do": wanted, "from": "datasets", "_xsrf": token(client.get("/datasets").text)}
        answer = client.post("/dataset/B5/steer", data=form)
        assert (answer.status_code, answer.headers["location"]) == (302, "/datasets")
        assert board.rows("select state, closed_reason from dataset where name = 'B5'") == [state]


@pytest.mark.parametrize("path", ["/dataset/B5/steer", "/requeue", "/requeue/1/undo"])
def test_nothing_is_changed_without_the_forms_token_nor_from_another_site(board, client, path):
    form = {"do": "close", "dataset": "B3", "shown": "1000"}
    known = token(client.get("/datasets").text)
    assert client.post(path, data=form).status_code == 403
    assert client.post(path, data={**form, "_xsrf": "2|aa|bb|1"}).status_code == 403
    for header in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://elsewhere.example"}):
        assert client.post(path, data={**form, "_xsrf": known}, headers=header).status_code == 403
    assert client.post(path, data={**form, "_xsrf": known}, auth=None).status_code == 401
    assert client.get(path.replace("/requeue/1", "/requeue/2") + "?do=close").status_code != 302
    assert board.rows("select state from dataset where name = 'B5'") == [(0,)]
    assert not board.rows("select * from requeue where what ->> 'dataset' = 'B3' and before::text = '[]'")


def requeue(client, dataset, shown, **choice):
    form = {"dataset": dataset, "shown": shown, **choice}
    return client.post("/requeue", data={**form, "_xsrf": token(client.get("/datasets").text)})


def failed(board, dataset, cause):
    [[n]] = board.rows("""select count(*) from sample s join dataset d on d.id = s.dataset_id
        where d.name = %s and s.state = 3 and s.reason = %s""", dataset, cause)
    return n


def test_failed_samples_are_counted_and_bounded_before_and_recorded_after(board, client):
    n = failed(board, "B3", "length")
    page = words(client.get("/requeue", params={"dataset": "B3", "cause": "length", "lane": "long"}).text)
    assert f"{n} samples {n} length at most $" in page
    assert f"Requeue {n} samples" in page
    answer = requeue(client, "B3", n, cause="length", lane="long", max_tokens="12000", without="Novita")
    assert answer.status_code == 302
    [record, who, what, before] = board.rows("select id, who, what, jsonb_array_length(before) from requeue order by id desc")[0]
    assert (answer.headers["location"], before) == (f"/requeue?dataset=B3&record={record}", n)
    assert what == {"dataset": "B3", "causes": ["length"], "lane": "long", "max_tokens": 12000, "without": ["Novita"]}
    assert who == "draftmill at 127.0.0.1 (page)"
    assert board.rows("select distinct state, lane, max_tokens, ignore from sample where id in "
                      "(select (e ->> 0)::bigint from requeue, jsonb_array_elements(before) e where requeue.id = %s)",
                      record) == [(0, 1, 12000, ["Novita"])]
    assert f"{n} waiting" in words(client.get(answer.headers["location"]).text)

    undone = client.post(f"/requeue/{record}/undo", data={"_xsrf": token(client.get("/datasets").text)})
    assert undone.headers["location"] == f"/requeue?dataset=B3&undone={n}"
    assert failed(board, "B3", "length") == n
    assert "taken back" in words(client.get("/requeue?dataset=B3").text)


def test_more_samples_than_were_shown_are_refused(board, client):
    n = failed(board, "B3", "timeout")
    answer = requeue(client, "B3", n - 1, cause="timeout")
    assert answer.status_code == 409
    assert f"{n} samples are meant now, more than the {n - 1} shown" in words(answer.text).replace("&#x27;", "'")
    assert failed(board, "B3", "timeout") == n


def test_a_closed_dataset_is_refused_with_the_reason(board, client):
    page = words(client.get("/requeue?dataset=B7").text)
    assert "B7 is closed (operator)" in page
    assert "Requeue 1 sample" not in page
    answer = requeue(client, "B7", 1000)
    assert (answer.status_code, "is closed (operator)" in answer.text) == (409, True)


def test_a_read_only_flower_has_nothing_that_steers(board, glass):
    with glass.client() as client, board.client() as steering:
        known = token(steering.get("/datasets").text)
        client.cookies.update(steering.cookies)
        for path in ("/datasets", "/dataset/B3"):
            page = client.get(path)
            assert page.status_code == 200
            assert "<form" not in page.text, path
            assert "/requeue" not in page.text, path
        assert client.get("/requeue").status_code == 404
        for path in ("/dataset/B4/steer", "/requeue", "/requeue/1/undo"):
            form = {"do": "close", "dataset": "B3", "shown": "1000", "_xsrf": known}
            assert client.post(path, data=form).status_code in (404, 405), path
    assert board.rows("select state from dataset where name = 'B4'") == [(0,)]
