"""Tokenizers that tokenizers and transformers write, and texts of many languages and of code."""

import inspect
import json
import random
import textwrap

# Sentence of twenty languages; accents are composed in some, and apart in others
SENTENCES = (
    "The quick brown fox can't jump over the lazy dog's 1,234 friends; they'll see. We've 3rd place!",
    "Der Straßenbahnfahrer grüßte über hundert Gäste, und es war 1999 schon spät.",
    "Ça n'est pas l'été, mais « l'œuvre » coûte 12,50 € — voilà.",
    "El niño comió piñas y pingüinos: ¿quién lo diría? ¡Nadie!",
    "O coração não é só uma máquina de emoções; são 24 horas.",
    "Perché l'università è chiusa? È già mezzanotte.",
    "Zażółć gęślą jaźń, proszę 5 razy.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Flygande bäckasiner söka hwila på mjuka tuvor.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю 42 раза.",
    "Щастя, здоров'я і їжа — ось що потрібно.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "האם השועל קופץ מעל הכלב העצלן 7 פעמים?",
    "نص حكيم له سر قاطع وذو شأن عظيم ١٢٣٤ مكتوب.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण १२३",
    "ที่นี่มีต้นไม้ใหญ่ ๑๒๓ ต้น",
    "日本語の文章には、漢字とひらがなとカタカナがあります。２０２４年",
    "我能吞下玻璃而不伤身体。共有一千二百三十四个字",
    "다람쥐 헌 쳇바퀴에 타고파 999번",
    "Việt Nam đẹp lắm, phải không? Cafe\u0301 Zu\u0308rich",
    "🙂 👩‍👩‍👧 🇨🇭 naïve\u00a0space\u2003em\u200bzero ſtraſſe İstanbul ﬁ ½ Ⅳ ²\x85\x1c\x00 \ufeff",
    "def f(x):\n\treturn x**2  # don't\n\n\n    if (a[0] != b['k']): pass\r\n  x = 0x1F + 1_000.5e-3\n",
)


def sentences(count, seed, inserted=()):
    """`count` texts, made of pieces of SENTENCES and of Python's source, with texts of `inserted` between."""
    rng = random.Random(seed)
    sources = [*SENTENCES, *(inspect.getsource(module) for module in (json, random, textwrap))]
    for _ in range(count):
        pieces = []
        for _ in range(rng.randint(1, 4)):
            source = rng.choice(sources)
            start = rng.randrange(len(source))
            pieces.append(source[start : start + rng.randint(1, 90)])
            if inserted and rng.random() < 0.5:
                pieces.append(rng.choice(inserted))
            pieces.append(rng.choice(["", "", " ", "\n", "  ", "'s", "\t"]))
        yield "".join(pieces)


def bpe(size=600, specials=("<|endoftext|>",), cuts=None, normalizer=None, alphabet=True, **options):
    """Byte-level BPE as the trainer of the tokenizers package makes it: special tokens come first."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    words = tokenizers.Tokenizer(models.BPE(**options))
    words.pre_tokenizer = cuts or pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    if normalizer is not None:
        words.normalizer = normalizer
    letters = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), initial_alphabet=letters, show_progress=False
    )
    words.train_from_iterator([*SENTENCES, inspect.getsource(json)] * 3, trainer)
    return words


def split(pattern):
    """The pre-tokenizer of models of OpenAI and Meta: a pattern, then bytes."""
    from tokenizers import Regex, pre_tokenizers

    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), whole])


def edited(words, **changes):
    """A tokenizer with other parts of its tokenizer.json."""
    import tokenizers

    return tokenizers.Tokenizer.from_str(json.dumps({**json.loads(words.to_str()), **changes}))


def with_merges(*pairs, ids):
    """BPE with more tokens, in the order of `ids`, which are merged from these pairs."""
    words = bpe(270, ())
    model = json.loads(words.to_str())["model"]
    vocab = {**model["vocab"], **{a + b: len(model["vocab"]) + i for (a, b), i in zip(pairs, ids)}}
    return edited(words, model={**model, "vocab": vocab, "merges": [*model["merges"], *map(list, pairs)]})


def fast(folder, words, **roles):
    """Saved by transformers' PreTrainedTokenizerFast."""
    import transformers

    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **roles).save_pretrained(folder)


def gpt2_class(folder, words, **settings):
    """Saved by transformers' GPT2Tokenizer, from the vocabulary and the merges."""
    import transformers

    model = json.loads(words.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    transformers.GPT2Tokenizer(vocab=model["vocab"], merges=merges, **settings).save_pretrained(folder)


def old_files(folder, words, settings=None, **more):
    """vocab.json, merges.txt and the files of special tokens that transformers 4 wrote."""
    folder.mkdir()
    words.model.save(str(folder))
    change_json(folder, "tokenizer_config.json", **{"tokenizer_class": "GPT2Tokenizer", **(settings or {})})
    for name, content in more.items():
        change_json(folder, f"{name}.json", **content)


def change_json(folder, name, **changes):
    """Change fields of a JSON file, which may be missing."""
    path = folder / name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **changes}))


def wordpieces(folder, **settings):
    """vocab.txt of a BERT, as Chinese GPT-2s have it."""
    from tokenizers import implementations

    words = implementations.BertWordPieceTokenizer()
    words.train_from_iterator(SENTENCES * 3, vocab_size=700, show_progress=False)
    folder.mkdir()
    words.save_model(str(folder))
    change_json(folder, "tokenizer_config.json", tokenizer_class="BertTokenizer", **settings)


def word_level(**options):
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    words = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]", "[PAD]"], show_progress=False, **options)
    words.train_from_iterator(SENTENCES, trainer)
    return words


def unigram():
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    words = tokenizers.Tokenizer(models.Unigram())
    words.normalizer, words.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    words.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    words.train_from_iterator(SENTENCES * 3, trainer)
    return words


def metaspace_bpe():
    """BPE of characters with bytes for unknown ones, as Llama 2's."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, trainers

    words = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    words.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    words.decoder = decoders.Sequence(parts)
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials, show_progress=False)
    words.train_from_iterator(SENTENCES[:12] * 3, trainer)
    fields = json.loads(words.to_str())
    kept = [token for token in fields["added_tokens"] if not token["content"].startswith("<0x")]
    return edited(words, added_tokens=kept)


def template(words, text, **ids):
    from tokenizers import processors

    words.post_processor = processors.TemplateProcessing(single=text, special_tokens=list(ids.items()))
    return words


def added(words, *tokens):
    words.add_tokens(list(tokens))
    return words


def variants():
    """name -> (function that writes it to a folder, whether it runs on tiktoken)."""
    from tokenizers import AddedToken, normalizers, pre_tokenizers, processors

    from gpt2.data.tokenizer_json import PATTERNS

    end, patterns = "<|endoftext|>", enumerate(PATTERNS)
    blank = pre_tokenizers.ByteLevel(add_prefix_space=True)
    digits = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bos = ("<s> $A </s>", {"<s>": 0, "</s>": 1})
    token = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
    of_the = {**token, "content": "of the", "special": False}
    roles = {
        "special_tokens_map": {"bos_token": "<new>", "pad_token": {"content": "an", **token}},
        "added_tokens": {"<new>": 600, "plain": 601},
    }
    first = AddedToken("ew", normalized=False)
    clean = {"clean_up_tokenization_spaces": True}
    return {
        "trained": (lambda f: bare(f, bpe()), True),
        "trained, fast": (lambda f: fast(f, bpe(), eos_token=end), True),
        "no end of text": (lambda f: fast(f, bpe(specials=())), True),
        "many special": (lambda f: fast(f, bpe(specials=(end, "<|im_start|>", "<a>")), eos_token=end), True),
        "added tokens": (lambda f: fast(f, added(bpe(), "new word", "ß x", "new", "def f")), True),
        "added, in turn": (lambda f: fast(f, added(bpe(), "ne", first, "two")), True),
        "stripping": (lambda f: fast(f, added(bpe(), AddedToken("<m>", lstrip=True))), False),
        "whole words": (lambda f: fast(f, added(bpe(), AddedToken("the", single_word=True))), False),
        "pad is a word": (lambda f: fast(f, bpe(), pad_token="an"), True),
        "pad is a word, GPT2": (lambda f: gpt2_class(f, bpe(), pad_token="an"), True),
        "blank before": (lambda f: fast(f, bpe(cuts=blank)), True),
        "blank before, GPT2": (lambda f: gpt2_class(f, bpe(), add_prefix_space=True), True),
        "NFC": (lambda f: fast(f, bpe(normalizer=normalizers.NFC())), False),
        "NFC, GPT2 drops it": (lambda f: bare(f, bpe(normalizer=normalizers.NFC()), config=True), True),
        "lower case": (lambda f: fast(f, bpe(normalizer=normalizers.Lowercase())), False),
        "template": (lambda f: fast(f, template(bpe(specials=("<s>", "</s>")), bos[0], **bos[1])), True),
        "RoBERTa": (lambda f: fast(f, roberta(bpe(specials=("<s>", "</s>")), processors)), True),
        "digits apart": (lambda f: fast(f, bpe(cuts=digits)), False),
        "digits, GPT2 drops it": (lambda f: bare(f, bpe(cuts=digits), config=True), True),
        **{f"pattern {i}": (lambda f, p=p: fast(f, bpe(cuts=split(p))), True) for i, p in patterns},
        "another pattern": (lambda f: fast(f, bpe(cuts=split(r"\p{L}+|\d"))), False),
        "ignore_merges": (lambda f: fast(f, bpe(ignore_merges=True)), True),
        # the library makes qx of qxz, and tiktoken xz; then the library stops at qx z, which tiktoken joins
        "order of merges": (lambda f: fast(f, with_merges("qx", "xz", ids=(1, 0))), False),
        "other parts": (lambda f: fast(f, with_merges("qx", "xz", ("q", "xz"), ids=(0, 1, 2))), False),
        "some bytes": (lambda f: fast(f, bpe(alphabet=False)), False),
        "old files": (lambda f: old_files(f, bpe()), True),
        "old files, special": (lambda f: old_files(f, bpe(), {"add_bos_token": True}, **roles), True),
        "decoder of added": (lambda f: old_files(f, bpe(), {"added_tokens_decoder": {"600": of_the}}), True),
        "extra special": (lambda f: fast(f, bpe(), extra_special_tokens=["<a>", "is"]), True),
        "an unused id": (lambda f: fast(f, edited(bpe(), added_tokens=[{**of_the, "id": 900}])), True),
        "WordLevel": (lambda f: fast(f, word_level(), unk_token="[UNK]"), False),
        "Unigram": (lambda f: fast(f, unigram(), eos_token="</s>"), False),
        "bytes for unknown": (lambda f: fast(f, metaspace_bpe(), bos_token="<s>"), False),
        "WordPiece": (lambda f: wordpieces(f), False),
        "WordPiece, cased": (lambda f: wordpieces(f, do_lower_case=False, **clean), False),
    }  # fmt: skip


def bare(folder, words, config=False):
    """tokenizer.json alone, or beside the config.json of a GPT-2, which makes its class GPT2Tokenizer."""
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    if config:
        change_json(folder, "config.json", model_type="gpt2")


def roberta(words, processors):
    words.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return words


# ---- docs/models.md ----------------------------------------------------------------------------------------

TITLE = "Tokenizers"
FIRST = "what tokenizers and transformers wrote"
ROWS = {
    "trained": "byte-level BPE of the library's trainer, end of text first",
    "no end of text": "no end of text, or another",
    "many special": "several special tokens",
    "added tokens": "added tokens, cut out of a text first",
    "stripping": "added tokens that take blanks beside them, or whole words alone",
    "pad is a word, GPT2": "a special token that is an ordinary word",
    "blank before": "`add_prefix_space`",
    "template": "a template with BOS and EOS: `add_special_tokens=True`, `--add-special-tokens`",
    "pattern 2": "the patterns of cl100k, Llama 3, Qwen 2, o200k",
    "another pattern": "another pattern, or digits apart",
    "NFC": "normalizers: NFC, lower case, ...",
    "NFC, GPT2 drops it": "the same of class GPT2Tokenizer, which uses vocabulary and merges alone",
    "ignore_merges": "`ignore_merges`",
    "other parts": "merges that tiktoken would join otherwise",
    "some bytes": "a vocabulary without all of the bytes",
    "old files, special": "vocab.json, merges.txt, added_tokens.json, special_tokens_map.json",
    "WordPiece": "BertTokenizer and its vocab.txt",
    "WordLevel": "WordLevel",
    "Unigram": "Unigram",
    "bytes for unknown": "BPE of characters, with bytes for unknown ones",
}


def rows():
    """The rows of docs/models.md: what was written -> a function from a folder to the cells."""
    made = {what: lambda folder, name=name: _cells(folder, name) for name, what in ROWS.items()}
    dropout = lambda folder: fast(folder, bpe(dropout=0.1))  # noqa: E731
    made["BPE with dropout"] = lambda folder: _refused(folder, dropout)
    pieces = lambda folder: (folder / "spiece.model").touch()  # noqa: E731
    made["a model of SentencePiece alone"] = lambda folder: _refused(folder, pieces)
    other = {"tokenizer_class": "T5Tokenizer"}
    made["another class"] = lambda folder: _refused(folder, lambda f: old_files(f / "x", bpe(), other), "x")
    return made


def _cells(folder, name):
    """Read a variant, train a step on a text of it, and let transformers read what is written back."""
    import numpy as np
    import transformers

    import gpt2
    from gpt2.data import huggingface

    variants()[name][0](folder / "made")
    theirs = transformers.AutoTokenizer.from_pretrained(folder / "made")
    words = huggingface.read(folder / "made")
    texts = list(sentences(40, 0, [*theirs.get_added_vocab(), "qxz"]))
    ids = [theirs.encode(text) for text in texts]
    equal = [words.encode(text, add_special_tokens=True).tolist() for text in texts] == ids
    model = gpt2.GPT2(gpt2.GPT2Config(words.vocab_size, 16, 1, 1, 8), seed=0)
    tokens = np.resize(np.concatenate(ids), 17)[None].astype(np.int32)
    trained = model.loss_and_grads(tokens[:, :-1], tokens[:, 1:]) > 0
    gpt2.save(model, folder / "back", words)
    again = transformers.AutoTokenizer.from_pretrained(folder / "back")
    back = [again.encode(text) for text in texts] == ids
    engine = "by tiktoken" if variants()[name][1] else "by tokenizers"
    return [engine if equal else "NO", "yes" if trained else "NO", "yes" if back else "NO"]


def _refused(folder, write, part=""):
    from gpt2.data import huggingface
    from gpt2.errors import UserError

    try:
        write(folder)
        huggingface.read(folder / part)
    except UserError as error:
        return [f"refused: {str(error).partition(': ')[2]}", "", ""]
    return ["NO", "", ""]
