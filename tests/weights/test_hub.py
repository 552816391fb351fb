"""Repositories of the hub, from a server on this machine that answers huggingface_hub as the hub does."""

import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import numpy as np
import pytest

import gpt2
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.weights import huggingface, peft, pretrained
from tests.support import damage

hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")


class Hub(BaseHTTPRequestHandler):
    """`repositories`: name -> {revision: folder}; the name of a commit is made of its folder's."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.requests.append(self.path)
        parts = unquote(self.path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, revision, file = "/".join(parts[2:4]), (parts[5:6] or ["main"])[0], None
        else:
            name, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        revisions = self.server.repositories.get(name, {})
        folders = {**revisions, **{commit(folder): folder for folder in revisions.values()}}
        if revision not in folders:
            code = "RevisionNotFound" if revisions else "RepoNotFound"
            return self.answer(404, b"", {"X-Error-Code": code})
        folder = folders[revision]
        if file is None:
            files = [{"rfilename": path.name} for path in sorted(folder.iterdir())]
            info = {"id": name, "sha": commit(folder), "siblings": files}
            return self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        if not (folder / file).is_file():
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit(folder)})
        content = (folder / file).read_bytes()
        etag = hashlib.sha1(content).hexdigest()
        self.answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit(folder)})

    do_HEAD = do_GET

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def commit(folder):
    return hashlib.sha1(str(folder).encode()).hexdigest()


@pytest.fixture
def server(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.repositories, server.requests = {}, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", address)  # HF_ENDPOINT, which is read at import
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("GPT2_OFFLINE", "GPT2_DATA_DIR", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


def make(folder, seed=0):
    """A folder of transformers, with a tokenizer that transformers 5 would write: tokenizer.json alone."""
    words = tokenizer.bpe("abcde " * 50, 260)
    gpt2.save(GPT2(GPT2Config(260, 8, 2, 1, 4), seed=seed), folder, None)
    damage.write_all_in_one(folder, words)
    return words


def make_two(place):
    """Revision -> its folder, of a repository with two."""
    folders = {name: place / name for name in ("main", "old")}
    for seed, folder in enumerate(folders.values()):
        make(folder, seed)
    return folders


def same(name, folder):
    return np.array_equal(gpt2.load(name).flat_params, gpt2.load(folder).flat_params)


def test_model_and_tokenizer_are_those_of_the_repository(server, tmp_path):
    words = make(tmp_path / "one")
    server.repositories["me/mine"] = {"main": tmp_path / "one"}
    assert same("hf:me/mine", tmp_path / "one")
    assert gpt2.load_tokenizer("hf:me/mine").ranks == words.ranks


def test_tokenizer_of_a_repository_with_as_many_rows_as_gpt2_is_its_own(server, tmp_path):
    words = make(tmp_path / "one")
    gpt2.save(GPT2(GPT2Config(50257, 8, 1, 1, 4), seed=0), tmp_path / "large")
    shutil.copy(tmp_path / "one" / "tokenizer.json", tmp_path / "large")
    server.repositories["me/large"] = {"main": tmp_path / "large"}
    found = gpt2.load_tokenizer("hf:me/large")
    assert found.encode("abcde").tolist() == words.encode("abcde").tolist() and found.vocab_size == 50257
    (tmp_path / "large" / "tokenizer.json").unlink()
    (tmp_path / "large" / "spiece.model").touch()
    server.repositories["me/piece"] = {"main": tmp_path / "large"}
    with pytest.raises(UserError, match="spiece.model: this kind of tokenizer cannot be read"):
        gpt2.load_tokenizer("hf:me/piece")


@pytest.mark.parametrize(
    "written, name",
    [
        (huggingface.WEIGHTS, "model.fp16.safetensors"),
        (huggingface.INDEX, "model.safetensors.index.fp16.json"),
        (huggingface.INDEX, f"{huggingface.TORCH}.index.json"),
    ],
)
def test_variant_or_index_of_another_name_is_downloaded(server, tmp_path, written, name):
    (damage.hub if written == huggingface.WEIGHTS else damage.in_two_files)(tmp_path / "one")
    (tmp_path / "one" / written).rename(tmp_path / "one" / name)
    server.repositories["me/one"] = {"main": tmp_path / "one"}
    assert same("hf:me/one", tmp_path / "one")


def test_shards_are_downloaded_unless_one_file_is_there(server, tmp_path):
    damage.in_two_files(tmp_path / "two")
    server.repositories["me/two"] = {"main": tmp_path / "two"}
    assert same("hf:me/two", tmp_path / "two")
    damage.hub(tmp_path / "two")  # transformers prefers it
    server.repositories["me/both"] = {"main": tmp_path / "two"}
    server.requests.clear()
    assert same("hf:me/both", tmp_path / "two")
    assert not any("1.safetensors" in path for path in server.requests)


def test_revision_is_a_branch_a_tag_or_a_commit(server, tmp_path):
    folders = make_two(tmp_path)
    server.repositories["me/mine"] = folders
    assert same("hf:me/mine@old", folders["old"]) and same("hf:me/mine", folders["main"])
    assert same(f"hf:me/mine@{commit(folders['old'])}", folders["old"])
    server.repositories["me/mine"]["main"] = folders["old"]  # the branch has moved
    assert same("hf:me/mine", folders["old"])
    with pytest.raises(UserError, match="hf:me/mine@new: config.json is not in .* cannot be downloaded"):
        gpt2.load("hf:me/mine@new")


def test_adapter_on_the_hub_has_the_base_of_its_revision(server, tmp_path):
    folders = make_two(tmp_path)
    tuned = gpt2.lora(gpt2.load(folders["old"]), rank=2)
    tuned.flat_params[:] = np.random.default_rng(0).standard_normal(tuned.flat_params.size)
    peft_config = tmp_path / "adapter" / peft.CONFIG
    gpt2.save(tuned, tmp_path / "adapter")
    fields = {"base_model_name_or_path": "me/mine", "revision": "old"}
    peft_config.write_text(json.dumps({**json.loads(peft_config.read_text()), **fields}))
    server.repositories = {"me/mine": folders, "me/tuned": {"main": tmp_path / "adapter"}}
    found, tokens = gpt2.load("hf:me/tuned"), np.arange(8)[None]
    assert np.array_equal(found.forward(tokens), tuned.forward(tokens))
    assert gpt2.load_tokenizer("hf:me/tuned").vocab_size == 260


def test_without_a_network_the_cache_is_used_and_a_tokenizer_is_not_guessed(server, tmp_path, monkeypatch):
    gpt2.save(GPT2(GPT2Config(50257, 8, 1, 1, 4), seed=0), tmp_path / "large")
    make(tmp_path / "one")
    shutil.copy(tmp_path / "one" / "tokenizer.json", tmp_path / "large")
    server.repositories["me/large"] = {"main": tmp_path / "large"}
    for file in ("config.json", "model.safetensors"):  # as transformers does for the model alone
        hub.hf_hub_download("me/large", file)
    monkeypatch.setenv("GPT2_OFFLINE", "1")
    assert pretrained.find("hf:me/large").config.vocab_size == 50257
    message = "hf:me/large: its tokenizer is not in huggingface_hub's cache, and cannot"
    with pytest.raises(UserError, match=message):
        gpt2.load_tokenizer("hf:me/large")
    monkeypatch.delenv("GPT2_OFFLINE")
    gpt2.load_tokenizer("hf:me/large")
    monkeypatch.setenv("GPT2_OFFLINE", "1")
    assert gpt2.load_tokenizer("hf:me/large").vocab_size == 50257
    with pytest.raises(UserError, match="hf:me/other: config.json is not in .*GPT2_OFFLINE is set"):
        gpt2.load("hf:me/other")


def test_repository_with_a_tokenizer_alone(server, tmp_path):
    words = make(tmp_path / "one")
    for file in ("config.json", huggingface.WEIGHTS):
        (tmp_path / "one" / file).unlink()
    server.repositories["me/words"] = {"main": tmp_path / "one"}
    assert gpt2.load_tokenizer("hf:me/words").ranks == words.ranks
    with pytest.raises(UserError, match="hf:me/words: the repository has no config.json"):
        gpt2.load("hf:me/words")


def test_released_weights_in_the_cache_are_not_requested_again(server, tmp_path):
    make(tmp_path / "one")
    server.repositories["openai-community/gpt2"] = {"main": tmp_path / "one"}
    assert same("gpt2", tmp_path / "one")
    server.requests.clear()
    assert same("gpt2", tmp_path / "one") and not server.requests
