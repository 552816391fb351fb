"""Every setting arrives: what a flag says is what the model, the optimizer, the batches and the loop have.

A setting passes several files on its way. ARRIVED says where each ends; a setting without a row, or one that
is dropped on the way, fails here.
"""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpt2 import parallel
from gpt2.data.orders import ORDERS
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import cosine_lr
from gpt2.train import Settings, fastest, opened, session, steps
from gpt2.train import run as run_module
from gpt2.train.build import model_config
from gpt2.train.kernels import VARIABLE

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
LAYER = """
def gelu(inp):
    return inp * inp

LAYERS = {"gelu": gelu}
"""


def values(folder: Path) -> Settings:
    """A different value for each setting, none the default."""
    text = folder / "text.txt"
    text.write_text("The quick brown fox, 1,000 of them.\n" * 60)
    (folder / "mine.py").write_text(LAYER)
    return Settings(
        preset="finetune",
        out=str(folder / "run"),
        seed=7,
        data=str(text),
        tokenizer="char",
        batch_size=4,
        block_size=6,
        accumulate=2,
        order="random",
        layers=str(folder / "mine.py"),
        train="lora:2",
        freeze="wpe",
        lora_alpha=3.0,
        lora_targets="c_fc",
        n_layer=1,
        n_head=2,
        n_embd=16,
        context=9,
        dtype="float64",
        steps=6,
        lr=3e-3,
        min_lr=1e-3,
        warmup=1,
        beta1=0.8,
        beta2=0.95,
        eps=1e-7,
        weight_decay=0.05,
        clip=0.7,
        backward="auto",
        compile="off",
        detect_anomaly=True,
        elementwise="tuned",
        threads=2,
        kernels="own",
        parallel="shares",
        workers="2",
        worker_timeout=77.0,
        eval_every=2,
        eval_batches=3,
        sample_every=5,
        sample_tokens=3,
        save_every=4,
        log_every=3,
    )


class Seen:
    """What was asked of the parts of a run while it was trained."""

    def __init__(self, run, monkeypatch):
        self.first, self.taken, self.events = None, [], []
        step = run.team.step

        def taking(batches, lr, clip):
            self.first = self.first or batches[0]
            self.taken.append((len(batches), batches[0][0].shape, lr, clip))
            return step(batches, lr, clip=clip)

        monkeypatch.setattr(run.team, "step", taking)
        for name in ("validation_loss", "sample", "save"):
            monkeypatch.setattr(run, name, self.noting(run, name, getattr(run, name)))
        self.asked, self.validated = set(), None
        generate = run_module.generate

        def asking(model, prompt, n, **kwargs):
            self.asked.add(n)
            return generate(model, prompt, n, **kwargs)

        monkeypatch.setattr(run_module, "generate", asking)
        order = run.order

        def validating(tokens, B, T, batches):
            self.validated = batches
            return order.validation(tokens, B, T, batches)

        run.order = SimpleNamespace(loader=order.loader, validation=validating)

    def noting(self, run, name, method):
        def noted(*args, **kwargs):
            found = method(*args, **kwargs)
            self.events.append((name, run.step, found))
            return found

        return noted

    def at(self, name):
        return sorted({step for found, step, _ in self.events if found == name})


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """(settings, run, what was seen)."""
    s, text = values(tmp_path), {}
    monkeypatch.delenv(VARIABLE, raising=False)  # --kernels own: those that are loaded
    monkeypatch.setattr(session, "set_threads", lambda n: text.setdefault("threads", n))
    join = parallel.join
    monkeypatch.setattr(parallel, "join", lambda *args: text.setdefault("join", args) and join(*args))
    with opened(s) as run:
        seen = Seen(run, monkeypatch)
        taken = list(steps(run))
    seen.told, seen.count = text, len(taken)
    return s, run, seen


def seed_of(run, seen):
    """7 where the first weights and the first batch are those of that seed."""
    drawn = GPT2(run.model.config, seed=7, layers=run.model.description.file, train=run.settings.tuning)
    same = np.array_equal(run.model.params["wte"], drawn.params["wte"])  # which the adapters leave as it is
    batch = run.order.loader(run.train, 4, 6, 7).next_batch()
    return 7 if same and np.array_equal(seen.first[0], batch[0]) else None


def steps_of(name):
    return lambda run, seen: seen.at(name)


def rates(run, seen):
    return [lr for _, _, lr, _ in seen.taken]


ARRIVED = {
    "out": lambda run, seen: str(run.folder),
    "seed": seed_of,
    "data": lambda run, seen: run.settings.data,
    "tokenizer": lambda run, seen: run.tokenizer.name,
    "batch_size": lambda run, seen: seen.taken[0][1][0],
    "block_size": lambda run, seen: seen.taken[0][1][1],
    "accumulate": lambda run, seen: seen.taken[0][0],
    "order": lambda run, seen: next(
        name for name, order in ORDERS.items() if order.loader is run.order.loader
    ),
    "layers": lambda run, seen: run.model.description.file.path,
    "train": lambda run, seen: run.model.description.tuning.train,
    "freeze": lambda run, seen: run.model.description.tuning.freeze,
    "lora_alpha": lambda run, seen: run.model.description.tuning.lora_alpha,
    "lora_targets": lambda run, seen: run.model.description.tuning.lora_targets,
    "n_layer": lambda run, seen: run.model.config.n_layer,
    "n_head": lambda run, seen: run.model.config.n_head,
    "n_embd": lambda run, seen: run.model.config.n_embd,
    "context": lambda run, seen: run.model.config.block_size,
    "dtype": lambda run, seen: str(run.model.flat_params.dtype),
    "steps": lambda run, seen: seen.count,
    "beta1": lambda run, seen: run.optimizer.betas[0],
    "beta2": lambda run, seen: run.optimizer.betas[1],
    "eps": lambda run, seen: run.optimizer.eps,
    "weight_decay": lambda run, seen: run.optimizer.weight_decay,
    "clip": lambda run, seen: seen.taken[0][3],
    "backward": lambda run, seen: run.model.spec,
    "compile": lambda run, seen: "on" if run.model.compiled else "off",
    "elementwise": lambda run, seen: run.model._elementwise,
    "threads": lambda run, seen: seen.told["threads"],
    "parallel": lambda run, seen: seen.told["join"][0],
    "workers": lambda run, seen: str(run.team.size),
    "worker_timeout": lambda run, seen: seen.told["join"][1],
}
# What a setting decides besides: a function of the run and what was seen, and what that gives for values()
DECIDED = {
    "lr": (rates, [cosine_lr(k, lr=3e-3, min_lr=1e-3, warmup=1, steps=6) for k in range(6)]),
    "min_lr": (rates, [cosine_lr(k, lr=3e-3, min_lr=1e-3, warmup=1, steps=6) for k in range(6)]),
    "warmup": (rates, [cosine_lr(k, lr=3e-3, min_lr=1e-3, warmup=1, steps=6) for k in range(6)]),
    "detect_anomaly": (lambda run, seen: run.model._traced.func.__name__, "traced"),
    "eval_every": (steps_of("validation_loss"), [0, 2, 4, 6]),
    "eval_batches": (lambda run, seen: seen.validated, 3),
    "sample_every": (steps_of("sample"), [5, 6]),
    "sample_tokens": (lambda run, seen: seen.asked, {3}),
    "save_every": (steps_of("save"), [4, 6]),
}
# What is only told, or needs more than one process: where else it is tested
ELSEWHERE = {
    "preset": "test_start.py",
    "init": "test_start.py",
    "kernels": "test_kernels.py",
    "shard": "../parallel/test_parallel.py",
    "log_every": "test_train.py",
    "lines": "test_train.py",
}


def test_every_setting_has_one_row():
    rows = [*ARRIVED, *DECIDED, *ELSEWHERE]
    assert not set(FIELDS) - set(rows), "settings without a row in ARRIVED, DECIDED or ELSEWHERE"
    assert not set(rows) - set(FIELDS), "rows of settings that are gone"
    assert len(rows) == len(FIELDS), "a setting with two rows"
    for name, file in ELSEWHERE.items():
        text = (Path(__file__).parent / file).read_text(encoding="utf-8")
        assert name in text or name.replace("_", "-") in text, (name, file)


def test_no_value_is_the_default(tmp_path):
    s = values(tmp_path)
    plain = {name for name in FIELDS if getattr(s, name) == FIELDS[name].default}
    assert plain == {"init", "shard", "lines"}


def test_settings_arrive(trained):
    s, run, seen = trained
    found = {name: arrived(run, seen) for name, arrived in ARRIVED.items()}
    assert found == {name: getattr(s, name) for name in ARRIVED}
    assert {name: of(run, seen) for name, (of, _) in DECIDED.items()} == {
        name: wanted for name, (_, wanted) in DECIDED.items()
    }


# The fastest way depends on these; on the others only through them
KEYED = {
    "batch_size": 8,
    "block_size": 3,
    "accumulate": 1,
    "layers": "",
    "train": "last:1",
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 32,
    "context": 12,
    "dtype": "float32",
    "elementwise": "numpy",
    "kernels": "Haswell",
    "compile": "off",
    "backward": "manual",
    "parallel": "none",
}
# It does not depend on these, or only through the sizes of the model, what is trained, and the threads
NOT_KEYED = set(
    """preset init tokenizer freeze lora_alpha lora_targets threads workers
    out seed data order steps lr min_lr warmup beta1 beta2 eps weight_decay clip detect_anomaly
    worker_timeout shard eval_every eval_batches sample_every sample_tokens save_every log_every
    lines""".split()
)


def test_every_setting_is_in_the_key_of_a_choice_or_need_not_be():
    assert not set(FIELDS) - set(KEYED) - NOT_KEYED, (
        "does the fastest way depend on these? KEYED or NOT_KEYED"
    )
    assert NOT_KEYED <= set(FIELDS) - set(KEYED)


@pytest.mark.parametrize("name", KEYED)
def test_a_choice_is_kept_under_what_it_depends_on(name, tmp_path):
    open_ways = {"backward": "fastest", "parallel": "fastest", "compile": "on", "detect_anomaly": False}
    s = dataclasses.replace(values(tmp_path), **open_ways)
    other = dataclasses.replace(s, **{name: KEYED[name]})
    keys = [fastest.key_of(one, model_config(one, 40), fastest.ways(one, 2)) for one in (s, other)]
    assert keys[0] != keys[1]
