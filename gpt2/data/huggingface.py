"""Tokenizers in files of Hugging Face transformers, as AutoTokenizer of its version 5 reads them.

A folder holds tokenizer.json, or else vocab.json and merges.txt, or vocab.txt. The class that
tokenizer_config.json names decides what they mean:

    GPT2Tokenizer              vocabulary and merges alone, with GPT-2's pattern; the default beside a GPT-2
    PreTrainedTokenizerFast    tokenizer.json as it is
    BertTokenizer              the vocabulary, by WordPiece

Special tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json are added to those of
tokenizer.json. A token of the vocabulary that is among them is cut out of a text before all others.
"""

import json
from pathlib import Path
from typing import Any

from gpt2.data import stored
from gpt2.data.tokenizer import Tokenizer
from gpt2.data.tokenizer_json import BYTE_LEVEL, add_tokens, from_fields, vocabulary
from gpt2.errors import UserError, os_errors, reason

ALL_IN_ONE = "tokenizer.json"
VOCAB, MERGES, WORDPIECES = "vocab.json", "merges.txt", "vocab.txt"
SETTINGS, ROLES, ADDED, MODEL = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"
)  # fmt: skip
FILES = (ALL_IN_ONE, VOCAB, MERGES, WORDPIECES, SETTINGS, ROLES, ADDED)  # those that are read
OTHERS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "tekken.json")
# transformers builds these from tokenizer.json alone; a class that it does not know as well
AS_WRITTEN = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend", "BloomTokenizer")
SPECIAL = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
END = "<|endoftext|>"
DEFAULTS = {
    "GPT2Tokenizer": {"unk_token": END, "bos_token": END, "eos_token": END},
    "BertTokenizer": {name: f"[{name[:-6].upper()}]" for name in SPECIAL[2:]},
}
ADVICE = "load it with transformers' AutoTokenizer, and save its backend_tokenizer as X/tokenizer.json"


def read(where: str | Path) -> Tokenizer | None:
    """The Tokenizer in a folder of transformers, or in a tokenizer.json; None if there is none.

    Raises UserError if files are damaged, or if they describe a tokenizer that is not known here.
    """
    path = Path(where)
    folder = path if path.is_dir() else path.parent if path.name == VOCAB else None
    if folder is not None:
        known = (folder / name for name in (ALL_IN_ONE, VOCAB, WORDPIECES, *OTHERS))
        path = next((file for file in known if file.exists()), None)
        if path is None:
            return None
        if path.name in OTHERS:
            raise UserError(f"{path}: this kind of tokenizer cannot be read; {ADVICE}")
    content = json_object(path) if path.name not in (VOCAB, WORDPIECES) else {}
    if str(content.get("format", "")).startswith("gpt2 tokenizer"):
        return stored.load(path)
    try:
        return _read(path, content, folder)
    except UserError:  # which is a ValueError
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, StopIteration) as error:
        raise UserError(
            f"{path}: not a tokenizer of transformers ({type(error).__name__}: {error})"
        ) from None


def alone(where: str | Path) -> Tokenizer:
    """The Tokenizer of a folder or file that was named for it. Raises UserError if there is none."""
    words = read(where)
    if words is None:
        raise UserError(f"{where}: no tokenizer in this folder; expected {', '.join(FILES[:4])}")
    return words


def _read(path, content, folder):
    settings = _optional(folder, SETTINGS)
    name = _class(folder, settings, path)
    if path.name == ALL_IN_ONE or folder is None:
        settings = {k: v for k, v in settings.items() if k not in ("add_bos_token", "add_eos_token")}
    settings, added = _special_tokens(folder, settings, content, name)
    if name == "GPT2Tokenizer":
        fields = _gpt2(path, content, settings)
    elif name == "BertTokenizer":
        fields = _bert(path, content, settings)
    else:
        fields = {**content, "truncation": None, "padding": None, "added_tokens": []}
        add_tokens(fields, content.get("added_tokens", []))
    if fields["model"].get("dropout"):
        raise UserError(
            f"{path}: has dropout {fields['model']['dropout']}, so that a text has other tokens each time; "
            "set it to null"
        )
    roles = {key: _text(settings[key]) for key in SPECIAL if settings.get(key) is not None}
    add_tokens(fields, _in_order(settings, added, fields))
    _add_template(fields, settings, roles, name)
    clean = bool(settings.get("clean_up_tokenization_spaces")) and fields["model"].get("type", "BPE") != "BPE"
    return from_fields(fields, roles, clean, str(path))


def _class(folder, settings, path):
    """GPT2Tokenizer, BertTokenizer, or "" for tokenizer.json as it is."""
    model = _optional(folder, MODEL)
    name = settings.get("tokenizer_class") or model.get("tokenizer_class")
    if name is None:
        gpt2 = path.name == VOCAB or model.get("model_type") == "gpt2"
        name = "GPT2Tokenizer" if gpt2 else AS_WRITTEN[0]
    name = str(name).removesuffix("Fast")
    if name not in (*DEFAULTS, *AS_WRITTEN) or "auto_map" in settings or "fast_tokenizer_files" in settings:
        raise UserError(
            f"{path.parent / SETTINGS}: tokenizer_class is {name}, expected GPT2Tokenizer, "
            f"PreTrainedTokenizerFast or BertTokenizer; {ADVICE}"
        )
    if name in AS_WRITTEN and path.name != ALL_IN_ONE and folder is not None:
        raise UserError(f"{path.parent / ALL_IN_ONE}: is missing, and {name} needs it")
    return name if name in DEFAULTS else ""


def _gpt2(path, content, settings):
    if path.name == VOCAB:
        vocab, lines = json_object(path), _lines(path.with_name(MERGES))
        merges = [line.split(" ") for line in lines if not line.startswith("#version")]
        model = {"vocab": vocab, "merges": merges}
    else:
        model = {"vocab": vocabulary(content["model"]), "merges": content["model"].get("merges", [])}
    cuts = {**BYTE_LEVEL, "add_prefix_space": bool(settings.get("add_prefix_space"))}
    return _built({"type": "BPE", **model}, None, cuts, content, BYTE_LEVEL)


def _bert(path, content, settings):
    vocab = content["model"]["vocab"] if content else {t.rstrip(): i for i, t in enumerate(_lines(path))}
    model = {"type": "WordPiece", "unk_token": _text(settings["unk_token"]), "vocab": vocab}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    changes = {"type": "BertNormalizer", "clean_text": True}
    changes["handle_chinese_chars"] = settings.get("tokenize_chinese_chars", True)
    changes["strip_accents"] = settings.get("strip_accents")
    changes["lowercase"] = settings.get("do_lower_case", True)
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    return _built(model, changes, {"type": "BertPreTokenizer"}, {}, decoder)


def _built(model, changes, cuts, content, decoder):
    after = content.get("post_processor")
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": changes,
            "pre_tokenizer": cuts, "post_processor": after, "decoder": decoder, "model": model}  # fmt: skip


def _special_tokens(folder, settings, content, name):
    """The settings with the roles of all files, and the added tokens by id."""
    settings = {**DEFAULTS.get(name, {}), **settings}
    if not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens", None) or []
    if "added_tokens_decoder" in settings:
        return settings, {int(i): _token(token) for i, token in settings["added_tokens_decoder"].items()}

    def special_token(token):  # as all are in this file
        return {**token, "special": True} if isinstance(token, dict) else token

    for key, value in _optional(folder, ROLES).items():
        if key in ("additional_special_tokens", "extra_special_tokens"):
            more = map(special_token, value)
            settings["extra_special_tokens"] = [*settings["extra_special_tokens"], *more]
        else:
            settings[key] = special_token(value)
    padding = content.get("padding") or {}
    if "pad_token" in padding:
        settings.setdefault("pad_token", padding["pad_token"])
    special = {_text(token) for token in _all_special(settings)}
    added = {
        i: {**_token(text, text in special), "normalized": text not in special}
        for text, i in _optional(folder, ADDED).items()
    }
    return settings, added | {token["id"]: _token(token) for token in content.get("added_tokens", [])}


def _in_order(settings, added, fields):
    """The tokens to add to `fields`, in the order of transformers, which is that of new ids."""
    for _, token in sorted(added.items()):
        yield token
    known = {token["content"] for token in (*added.values(), *fields["added_tokens"])}
    for token in _all_special(settings):
        if _text(token) not in known:
            known.add(_text(token))
            yield _token(token, special=True)


def _all_special(settings):
    """The special tokens of the settings: of the seven roles, of others called X_token, and all more."""
    for key in (*SPECIAL, *(key for key in settings if key.endswith("_token") and key not in SPECIAL)):
        if isinstance(settings.get(key), str | dict):
            yield settings[key]
    more = settings["extra_special_tokens"]
    yield from more.values() if isinstance(more, dict) else more


def _token(token, special=False):
    """An entry of added_tokens, from a text or an object of these files."""
    given = {"content": token} if isinstance(token, str) else token
    special = bool(given.get("special", special))
    flags = {name: bool(given.get(name)) for name in ("single_word", "lstrip", "rstrip")}
    normalized = bool(given.get("normalized", not special))
    return {"content": given["content"], **flags, "normalized": normalized, "special": special}


def _text(token):
    return token if isinstance(token, str) else token["content"]


def _add_template(fields, settings, roles, name):
    """The template of BertTokenizer; that of add_bos_token and add_eos_token, unless the file has one."""
    if name == "BertTokenizer":
        first, last = roles.get("cls_token"), roles.get("sep_token")
    elif fields.get("post_processor") is None:
        first, last = (
            roles.get(f"{r}_token") if settings.get(f"add_{r}_token") else None for r in ("bos", "eos")
        )
    else:
        return
    ids = {token["content"]: token["id"] for token in fields["added_tokens"]}
    special = [[{"SpecialToken": {"id": t, "type_id": 0}}] if t is not None else [] for t in (first, last)]
    single = [*special[0], {"Sequence": {"id": "A", "type_id": 0}}, *special[1]]
    fields["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in {first, last} - {None}},
    }


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of transformers or peft. Raises UserError if there is none."""
    try:
        fields = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}; expected a folder of transformers or peft") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(fields).__name__}")
    return fields


def _optional(folder, name):
    return json_object(folder / name) if folder is not None and (folder / name).exists() else {}


def _lines(path):
    with os_errors(path):
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
