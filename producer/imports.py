"""`draftmill import`: answers that were made elsewhere are attached to the samples they answer.

A row finds its sample by key, else by what it asks; a sample that is not there is made, under the key that a reading of the
same prompt would give it, so that a run over the prompts asks only for what is missing. Who has an answer keeps it: a second
import changes nothing.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine

from models import blob
from models.base import transaction
from models.conversation import Document, Message, document, question_of, turn_key
from models.states import Grade, Lane, State
from models.store import imports, prompts, samples
from models.store.datasets import Dataset
from models.store.imports import Import
from models.store.samples import NewSample
from producer.asked import Asked, Known, content_of
from producer.messages import Malformed
from producer.refusals import Refusal, Rejects
from producer.replies import Reply, Words, reply_of, without_empty_system
from producer.sources import Record, records

BATCH = 200
TURN = re.compile(r"#t\d+$")


class Answered(NamedTuple):
    """A reply that was judged and graded; made.sample_id is not set yet."""

    made: Import
    grade: Grade


class Reader(NamedTuple):
    """What of a model an import needs.

    rendered: a prompt to its ids. parsed: prompt ids to the messages that render to exactly these, or None.
    judged: (reply, its document as bytes, prompt, primary id, generation id); Malformed where the reply is no answer.
    """

    words: Words
    rendered: Callable[[Document], Sequence[int]]
    parsed: Callable[[Sequence[int]], list[Message] | None]
    judged: Callable[[Reply, bytes, Document, str, str], Answered]


@dataclass(slots=True)
class Imported:
    """rows read; stored: by grade; made: samples that were not there; there: rows whose sample has an answer already."""

    dataset: str
    rows: int = 0
    stored: Counter[str] = field(default_factory=Counter)
    made: int = 0
    there: int = 0
    running: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    rejects: Path | None = None

    def __str__(self) -> str:
        told = [f"{self.stored.total():,} answers stored ({_counts(self.stored)})" if self.stored else "no answer stored"]
        told += [f"{self.made:,} samples made"] if self.made else []
        told += [f"{self.there:,} there already"] if self.there else []
        told += [f"{self.running:,} being asked at this moment"] if self.running else []
        told += [f"{self.refused.total():,} refused ({_counts(self.refused)}; see {self.rejects})"] if self.rejects else []
        return f"{self.dataset}: {self.rows:,} rows; {', '.join(told)}"


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.most_common())


class Importer:
    """One import into one dataset."""

    def __init__(self, engine: Engine, dataset: Dataset, reader: Reader, rejects: Rejects) -> None:
        self.engine, self.dataset, self.reader, self.rejects = engine, dataset, reader, rejects
        self.result = Imported(dataset.name)
        self._asked = Asked()
        self._last, self._rendered = 0, False
        self._batch: dict[int, Answered] = {}
        # A turn that follows from an answer must be known before the next row looks for it.
        self._size = 1 if dataset.plan.turns == "all" else BATCH

    def run(self, files: Sequence[Path]) -> Imported:
        """Every row of the files, in batches that are whole each: killed and started again, it goes on."""
        with self._asked:
            self._read_samples()
            for file in files:
                for record in records(file):
                    self._row(file, record)
            self._flush()
        self.result.refused = self.rejects.codes
        self.result.rejects = self.rejects.path if self.rejects.total else None
        return self.result

    def _read_samples(self) -> None:
        """Those that came since the last look."""
        while True:
            with transaction(self.engine) as connection:
                page = prompts.page(connection, self.dataset.id, self._last)
                done = [s.id for s in page if s.state == State.DONE]
                names = imports.generations(connection, done) if done else {}
            if not page:
                return
            self._asked.add(page, names)
            self._last = page[-1].id

    def _row(self, file: Path, record: Record | Refusal) -> None:
        self.result.rows += 1
        if isinstance(record, Refusal):
            self.rejects.write(record)
            return
        try:
            self._attach(reply_of(record.value, record.line, self.reader.words))
        except Malformed as error:
            self.rejects.write(Refusal(str(file), record.line, error.cause, error.code))

    def _attach(self, reply: Reply) -> None:
        raw = raw_of(reply)
        name = generation_of(reply, raw)
        found, prompt = self._found(reply, name)
        if found is not None and not found.open:
            self.result.running += found.state == State.RUNNING
            self.result.there += found.state == State.DONE
            return
        new = self._planned(reply, prompt) if found is None else None
        primary_id = new.primary_id if new is not None else found.primary_id if found is not None else ""
        answered = self.reader.judged(reply, raw, prompt, primary_id, name)
        sample_id = self._made(new) if new is not None else found.id if found is not None else 0
        self._batch[sample_id] = answered._replace(made=replace(answered.made, sample_id=sample_id))
        self._asked.take(sample_id, name)
        if len(self._batch) >= self._size:
            self._flush()

    def _found(self, reply: Reply, name: str) -> tuple[Known | None, Document]:
        """The sample that this row answers, None where there is none, and the prompt of either."""
        keyed = self._by_key(reply.key)
        if keyed is not None:
            if not self._asks(reply, keyed):
                raise Malformed("other_prompt", "the sample of this key asks something else")
            self._asked.count(content_of(keyed.prompt["messages"], keyed.prompt["tools"]))
            keyed = self._of_answers(keyed, name)
            return keyed, keyed.prompt
        reply = self._with_messages(reply)
        assert reply.messages is not None
        if not reply.messages or not any(m["role"] == "user" for m in reply.messages):
            raise Malformed("no_user_turn", "no user turn before the answer")
        for variant in filter(None, (reply, without_empty_system(reply))):
            found = self._by_content(variant, name)
            if found is not None:
                return found, found.prompt
        told = without_empty_system(reply) or reply
        turn = sum(m["role"] == "assistant" for m in told.messages or ()) if self.dataset.plan.turns == "all" else 0
        return None, document(told.messages or [], told.tools, (), told.metadata, turn)

    def _of_answers(self, keyed: Known, name: str) -> Known:
        """Where several answers to a prompt are wanted, all of them may bear its id: who has this one, else who waits for one."""
        if keyed.open or keyed.generation == name:
            return keyed
        alike = self._asked.by_content(content_of(keyed.prompt["messages"], keyed.prompt["tools"]))
        answers = [k for k in alike if question_of(k.primary_id) == question_of(keyed.primary_id)]
        holder = next((k for k in answers if k.generation == name), None)
        return holder or next((k for k in answers if k.open), keyed)

    def _by_key(self, key: str | None) -> Known | None:
        if key is None:
            return None
        bare = key.removeprefix(f"{self.dataset.name}/")        # as exports write it
        return next((k for n in (key, bare, f"{bare}#t0") if (k := self._asked.by_key(n)) is not None), None)

    def _asks(self, reply: Reply, sample: Known) -> bool:
        """Whether the row's prompt, if it names one, is the sample's. A bare text stands for the last thing the user said."""
        prompt = sample.prompt
        if reply.messages is None:
            return reply.prompt_ids is None or list(self.reader.rendered(prompt)) == list(reply.prompt_ids)
        users = [m["content"] for m in prompt["messages"] if m["role"] == "user"]
        if len(reply.messages) == 1 and reply.messages[0].get("content") == (users or [None])[-1]:
            return True
        return any(v is not None and _same(v.messages or [], prompt["messages"]) for v in (reply, without_empty_system(reply)))

    def _with_messages(self, reply: Reply) -> Reply:
        """Prompt ids stand for the sample they are the rendering of, else for the messages that render to them."""
        if reply.messages is not None:
            return reply
        if reply.prompt_ids is None:
            raise Malformed("no_prompt", "no sample has this key, and the row does not hold its prompt")
        if not self._rendered:
            self._flush()
            for known in self._asked.every():
                self._asked.render(digest_of(self.reader.rendered(known.prompt)), known.id)
            self._rendered = True
        known_as = self._asked.by_rendering(digest_of(reply.prompt_ids))
        if known_as is not None:
            prompt = known_as.prompt
            return replace(reply, messages=prompt["messages"], tools=prompt["tools"])
        messages = self.reader.parsed(reply.prompt_ids)
        if messages is None:
            raise Malformed("no_prompt", "the prompt's ids are those of no sample, and do not read as messages")
        return replace(reply, messages=messages)

    def _by_content(self, reply: Reply, name: str) -> Known | None:
        """Who has this very answer; else the first that waits for one; else, if it is no answer too many, nobody."""
        assert reply.messages is not None
        content = content_of(reply.messages, reply.tools)
        candidates, met = self._asked.by_content(content), self._asked.count(content)
        holder = next((k for k in candidates if k.generation == name), None)
        waiting = next((k for k in candidates if k.open), None)
        return holder or waiting or (candidates[-1] if met < len(candidates) else None)

    def _planned(self, reply: Reply, prompt: Document) -> NewSample:
        content = content_of(prompt["messages"], prompt["tools"])
        bare = (reply.key or "").removeprefix(f"{self.dataset.name}/")
        primary = bare or f"{content.hex()[:16]}-{len(self._asked.by_content(content))}"
        key, turn = primary, prompt["turn"]
        if self.dataset.plan.turns == "all":
            primary = TURN.sub("", primary)
            key = turn_key(primary, turn)
        lane = Lane.of(self.dataset.plan.lane_rule.default)
        return NewSample(key, primary, turn, lane, None, blob.pack_json(prompt))

    def _made(self, new: NewSample) -> int:
        with transaction(self.engine) as connection:
            self.result.made += samples.add(connection, self.dataset.id, [new])
            sample_id, state = imports.keyed(connection, self.dataset.id, [new.key])[new.key]
        self._asked.add([prompts.Stored(sample_id, new.key, new.primary_id, new.turn, state, new.prompt)], {})
        if self._rendered:
            self._asked.render(digest_of(self.reader.rendered(blob.unpack_json(new.prompt))), sample_id)
        return sample_id

    def _flush(self) -> None:
        if not self._batch:
            return
        batch = [a.made for a in self._batch.values()]
        with transaction(self.engine) as connection:
            taken = imports.store(connection, batch)
        for sample_id, answered in self._batch.items():
            if sample_id in taken:
                self.result.stored[answered.grade.label] += 1
            else:
                self.result.running += 1    # a worker took it between our look and now, and will answer it
        self._batch = {}
        if any(one.next_turn is not None for one in batch):
            self._read_samples()


def raw_of(reply: Reply) -> bytes:
    """The reply as it is stored, to be read again whenever rows are graded again."""
    return json.dumps(reply.document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass")


def generation_of(reply: Reply, raw: bytes) -> str:
    """The reply's own id, else the hash of what it says: what tells an answer from another answer to the same prompt."""
    given = reply.document.get("id")
    return given[:120] if isinstance(given, str) and given else f"import-{sha256(raw).hexdigest()[:24]}"


def digest_of(ids: Sequence[int]) -> bytes:
    return sha256(",".join(map(str, ids)).encode()).digest()


def _same(one: Sequence[Message], other: Sequence[Message]) -> bool:
    return content_of(one, None) == content_of(other, None)
