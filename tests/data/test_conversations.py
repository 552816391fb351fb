"""Conversations: which targets count, rows that are padded or packed, and answers."""

import json

import numpy as np
import pytest

from gpt2.data import corpora, tokenizer
from gpt2.data.conversations import DEFAULT, Template
from gpt2.data.orders import ORDERS
from gpt2.errors import UserError

WORDS = tokenizer.byte()
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Bye, bye"},
]


@pytest.fixture
def examples(tmp_path):
    """Function (T, pack) -> Examples of 30 conversations of different lengths, one of them TALK."""
    lines = [{"prompt": f"{i}?", "completion": "yes " * (i % 4) + "no."} for i in range(29)]
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"messages": TALK}]))

    def made(pack):
        return corpora.prepare(str(path), "byte", tmp_path / "out", val_data=str(path)).read(pack)[0]

    return made


def counted(inputs, targets):
    """The texts of the targets that count, in a row, cut where others stand between them."""
    texts = [""]
    for target in targets:
        texts[-1] += chr(target) if target >= 0 else ""
        if target < 0 and texts[-1]:
            texts.append("")
    return [text for text in texts if text]


def test_answers_alone_count_to_the_end_of_their_message(examples):
    of = examples(pack=False)
    (row,) = of.rows(300)[-1:]
    inputs, targets = of.batch([row], 300)
    text = Template().segments(TALK)
    assert "".join(part for part, _ in text) == "".join(DEFAULT.format(**message) for message in TALK)
    assert counted(inputs[0], targets[0]) == ["Hello<|end|>\n", "Bye, bye<|end|>\n"]
    length = sum(len(part) for part, _ in text)
    assert WORDS.decode(inputs[0, : length - 1]) == "".join(part for part, _ in text)[:-1]
    assert (targets[0, length - 1 :] == -1).all()


@pytest.mark.parametrize("pack", (False, True))
def test_every_answer_is_in_an_epoch_once_and_no_target_crosses(examples, pack):
    """A target is the token after its input in the same conversation, packed or not."""
    of, T = examples(pack), 300
    loader = ORDERS["epochs"].loader(of, 1, T, 3)
    rows = [loader.next_batch() for _ in range(loader.pieces)]
    assert len(rows) < 15 if pack else len(rows) == 30
    answers = []
    for (inputs,), (targets,) in rows:
        answers += counted(inputs, targets)
        for t in np.flatnonzero(targets[:-1] >= 0):
            assert inputs[t + 1] == targets[t] or chr(targets[t]) == "\n"  # the last one is no input
    expected = [f"{'yes ' * (i % 4)}no.<|end|>\n" for i in range(29)]
    assert sorted(answers) == sorted([*expected, "Hello<|end|>\n", "Bye, bye<|end|>\n"])
    state = loader.state()
    following = loader.next_batch()
    loader.load_state(state)
    assert all(np.array_equal(a, b) for a, b in zip(following, loader.next_batch()))


def test_long_conversations_are_cut_or_left_out_and_counted(examples):
    of = examples(pack=False)
    assert of.summary(300) == []
    assert of.summary(50) == [
        "of 30 conversations 14 are cut to 51 tokens, and 1 left out, as no answer begins within them; "
        "--block-size sets the length"
    ]
    message = "block_size is 8: no conversation has an answer within so many tokens"
    with pytest.raises(UserError, match=message):
        of.rows(8)
    message = "order is for a running text; conversations are taken in order epochs"
    with pytest.raises(UserError, match=message):
        ORDERS["random"].loader(of, 1, 100, 3)


def test_template_without_a_place_or_an_end_is_an_error():
    assert Template("{content} \n").end == " \n"
    for text in ("{role}", "{content}{content}", "{role}: {content}"):
        with pytest.raises(UserError, match="^template is "):
            Template(text)


def test_prompt_is_cut_into_tokens_as_examples_are():
    """Also after earlier answers; \\n may be typed."""
    template = Template("{role}> {content}\\n")
    *before, last = TALK
    words = tokenizer.bpe("user> assistant> Hello Bye, bye " * 9, 270)
    ids = template.prompt(words, before)
    pairs = [(words.encode(text), counts) for text, counts in template.segments(TALK)]
    assert ids.tolist() == [int(i) for part, _ in pairs[:-1] for i in part]
