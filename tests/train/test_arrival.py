"""Every setting has its effect: the model, the optimizer, the batches and the loop get what the flags say.

A setting passes through several files. ARRIVED says where each one ends; a setting without a row, or one that
is dropped on the way, fails here.
"""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

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
from gpt2.train.settings import read_settings

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
LAYER = """
def residual(a, b):
    return a + 0.5 * b

LAYERS = {"residual": residual}
"""
# A value for each setting that is not its default; values() adds those that name files
FLAGS = """
--preset finetune --seed 7
--tokenizer char --batch-size 4 --block-size 6 --accumulate 2 --order random
--train lora:2 --freeze wpe --lora-alpha 3 --lora-targets c_fc
--n-layer 1 --n-head 2 --n-embd 16 --context 9 --dtype float64
--n-inner 24 --activation relu --no-bias --untied
--layer-norm-epsilon 1e-3 --no-scale-attn-weights --scale-attn-by-inverse-layer-idx
--steps 6 --lr 3e-3 --min-lr 1e-3 --warmup 1
--beta1 0.8 --beta2 0.95 --eps 1e-7 --weight-decay 0.05 --clip 0.7
--backward auto --compile off --detect-anomaly --elementwise tuned --threads 2 --kernels own
--parallel shares --workers 2 --worker-timeout 77
--eval-every 2 --eval-batches 3 --sample-every 5 --sample-tokens 3 --save-every 4 --log-every 3
"""


def values(folder: Path) -> Settings:
    """The settings of FLAGS, with a text and a file of layers in the folder."""
    (folder / "text.txt").write_text("The quick brown fox, 1,000 of them.\n" * 60)
    (folder / "mine.py").write_text(LAYER)
    files = {"out": folder / "run", "data": folder / "text.txt", "layers": folder / "mine.py"}
    return Settings(**read_settings(FLAGS.split()).given, **{name: str(path) for name, path in files.items()})


class Calls:
    """What the parts of a run are called with while it trains.

    threads, join   the calls of set_threads and parallel.join
    step            the calls of the team's step: batches, learning rate, clip
    generate        the calls of generate, which makes the samples
    validation      the calls that ask for the batches of a validation
    events          (method, step, result) of each validation, sample and save
    """

    def __init__(self, monkeypatch):
        self.events, self.count = [], 0
        self.threads, self.join = Mock(), Mock(wraps=parallel.join)
        self.generate = Mock(wraps=run_module.generate)
        monkeypatch.setattr(session, "set_threads", self.threads)
        monkeypatch.setattr(parallel, "join", self.join)
        monkeypatch.setattr(run_module, "generate", self.generate)

    def watch(self, run, monkeypatch):
        self.step, self.validation = Mock(wraps=run.team.step), Mock(wraps=run.order.validation)
        monkeypatch.setattr(run.team, "step", self.step)
        run.order = SimpleNamespace(loader=run.order.loader, validation=self.validation)
        for name in ("validation_loss", "sample", "save"):
            monkeypatch.setattr(run, name, self.logged(run, name, getattr(run, name)))

    def logged(self, run, name, method):
        def call(*args, **kwargs):
            result = method(*args, **kwargs)
            self.events.append((name, run.step, result))
            return result

        return call

    @property
    def batches(self):
        """The batches of the first step."""
        return self.step.call_args_list[0].args[0]


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """(settings, run, calls) of a run that has done its steps."""
    s, calls = values(tmp_path), Calls(monkeypatch)
    monkeypatch.delenv(VARIABLE, raising=False)  # so that --kernels own are those that are loaded
    with opened(s) as run:
        calls.watch(run, monkeypatch)
        calls.count = len(list(steps(run)))
    return s, run, calls


def seed_of(run, calls):
    """7 if the first weights and the first batch are those of that seed."""
    initial = GPT2(run.model.config, seed=7, layers=run.model.description.file, train=run.settings.tuning)
    same = np.array_equal(run.model.params["wte"], initial.params["wte"])  # which is not trained
    batch = run.order.loader(run.train, 4, 6, 7).next_batch()
    return 7 if same and np.array_equal(calls.batches[0][0], batch[0]) else None


def steps_of(name):
    return lambda run, calls: sorted({step for method, step, _ in calls.events if method == name})


def rates(run, calls):
    return [call.args[1] for call in calls.step.call_args_list]


ARRIVED = {
    "out": lambda run, calls: str(run.folder),
    "seed": seed_of,
    "data": lambda run, calls: run.settings.data,
    "tokenizer": lambda run, calls: run.tokenizer.name,
    "batch_size": lambda run, calls: calls.batches[0][0].shape[0],
    "block_size": lambda run, calls: calls.batches[0][0].shape[1],
    "accumulate": lambda run, calls: len(calls.batches),
    "order": lambda run, calls: next(name for name in ORDERS if ORDERS[name].loader == run.order.loader),
    "layers": lambda run, calls: run.model.description.file.path,
    "train": lambda run, calls: run.model.description.tuning.train,
    "freeze": lambda run, calls: run.model.description.tuning.freeze,
    "lora_alpha": lambda run, calls: run.model.description.tuning.lora_alpha,
    "lora_targets": lambda run, calls: run.model.description.tuning.lora_targets,
    "n_layer": lambda run, calls: run.model.config.n_layer,
    "n_head": lambda run, calls: run.model.config.n_head,
    "n_embd": lambda run, calls: run.model.config.n_embd,
    "context": lambda run, calls: run.model.config.block_size,
    "n_inner": lambda run, calls: run.model.config.n_inner,
    "activation": lambda run, calls: run.model.config.activation_function,
    "bias": lambda run, calls: "fcb" in run.model.params,
    "untied": lambda run, calls: "lmheadw" in run.model.params,
    "layer_norm_epsilon": lambda run, calls: run.model.config.layer_norm_epsilon,
    "scale_attn_weights": lambda run, calls: run.model.config.scale_attn_weights,
    "scale_attn_by_inverse_layer_idx": lambda run, calls: run.model.config.scale_attn_by_inverse_layer_idx,
    "dtype": lambda run, calls: str(run.model.flat_params.dtype),
    "steps": lambda run, calls: calls.count,
    "beta1": lambda run, calls: run.optimizer.betas[0],
    "beta2": lambda run, calls: run.optimizer.betas[1],
    "eps": lambda run, calls: run.optimizer.eps,
    "weight_decay": lambda run, calls: run.optimizer.weight_decay,
    "clip": lambda run, calls: calls.step.call_args.kwargs["clip"],
    "backward": lambda run, calls: run.model.spec,
    "compile": lambda run, calls: "on" if run.model.compiled else "off",
    "elementwise": lambda run, calls: run.model._elementwise,
    "threads": lambda run, calls: calls.threads.call_args.args[0],
    "parallel": lambda run, calls: calls.join.call_args_list[0].args[0],
    "workers": lambda run, calls: str(run.team.size),
    "worker_timeout": lambda run, calls: calls.join.call_args_list[0].args[1],
}
RATES = [cosine_lr(step, lr=3e-3, min_lr=1e-3, warmup=1, steps=6) for step in range(6)]
# Settings that decide when or how something happens: a function of run and calls, and its result for values()
DECIDED = {
    "lr": (rates, RATES),
    "min_lr": (rates, RATES),
    "warmup": (rates, RATES),
    "detect_anomaly": (lambda run, calls: run.model._traced.func.__name__, "traced"),
    "eval_every": (steps_of("validation_loss"), [0, 2, 4, 6]),
    "eval_batches": (lambda run, calls: calls.validation.call_args.args[3], 3),
    "sample_every": (steps_of("sample"), [5, 6]),
    "sample_tokens": (lambda run, calls: {call.args[2] for call in calls.generate.call_args_list}, {3}),
    "save_every": (steps_of("save"), [4, 6]),
}
THIS = Path(__file__).name  # test_settings_of_conversations_arrive, test_settings_of_muon_arrive
# Settings that are only printed, exclude others of FLAGS, or need more than one process: the file that tests
# them
ELSEWHERE = {
    **dict.fromkeys(
        ("val_data", "val_fraction", "template", "pack", "optimizer", "muon_lr", "muon_momentum"), THIS
    ),
    "adapter": "test_tuned_runs.py",
    "preset": "test_start.py",
    "init": "test_start.py",
    "kernels": "test_kernels.py",
    "shard": "../parallel/test_parallel.py",
    "log_every": "test_train.py",
    "patience": "test_training.py",
    "lines": "test_train.py",
}


def test_every_setting_has_one_row():
    rows = [*ARRIVED, *DECIDED, *ELSEWHERE]
    missing, gone = sorted(set(FIELDS) - set(rows)), sorted(set(rows) - set(FIELDS))
    assert not missing, f"settings without a row in ARRIVED, DECIDED or ELSEWHERE: {', '.join(missing)}"
    assert not gone, f"rows of settings that are gone: {', '.join(gone)}"
    assert len(rows) == len(FIELDS), "a setting with two rows"
    for name, file in ELSEWHERE.items():
        text = (Path(__file__).parent / file).read_text(encoding="utf-8")
        assert name in text or name.replace("_", "-") in text, (name, file)


def test_values_differ_from_the_defaults(tmp_path):
    s = values(tmp_path)
    unchanged = {name for name in FIELDS if getattr(s, name) == FIELDS[name].default}
    assert unchanged == {name for name in ELSEWHERE if name not in ("preset", "kernels", "log_every")}


@pytest.mark.usefixtures("numexpr_package")
def test_settings_arrive(trained):
    s, run, calls = trained
    results = {name: of(run, calls) for name, of in ARRIVED.items()}
    assert results == {name: getattr(s, name) for name in ARRIVED}
    results = {name: of(run, calls) for name, (of, _) in DECIDED.items()}
    assert results == {name: expected for name, (_, expected) in DECIDED.items()}


SMALL = """--tokenizer byte --n-layer 1 --n-head 1 --n-embd 8 --batch-size 2 --block-size 32 --steps 2
--warmup 0 --sample-tokens 0 --parallel none --threads 1 --kernels own"""


@pytest.mark.parametrize("pack", [False, True])
def test_settings_of_conversations_arrive(pack, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for name, count in (("text", 20), ("other", 6)):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * count)
    s = Settings(
        **read_settings(SMALL.split()).given,
        data=str(tmp_path / "text.jsonl"),
        out=str(tmp_path / "run"),
        template="{role}>{content};",
        pack=pack,
    )
    text = b"user>a;assistant>b;"
    for given, sizes in (({}, (18, 2)), ({"val_fraction": 0.4}, (12, 8))):
        with opened(dataclasses.replace(s, **given), overwrite=True) as run:
            assert (len(run.train.lengths), len(run.val.lengths)) == sizes
            assert bytes(run.train.tokens[: len(text)].astype(np.uint8)) == text
            assert (len(run.train.rows(64)) < sizes[0]) == pack
    with opened(dataclasses.replace(s, val_data=str(tmp_path / "other.jsonl")), overwrite=True) as run:
        assert (len(run.train.lengths), len(run.val.lengths)) == (20, 6)


def test_settings_of_muon_arrive(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "text.txt").write_text("The quick brown fox, 1,000 of them.\n" * 60)
    flags = "--optimizer muon --muon-lr 0.03 --muon-momentum 0.8 --lr 0.004 --min-lr 0.001".split()
    files = {"data": str(tmp_path / "text.txt"), "out": str(tmp_path / "run")}
    with opened(Settings(**read_settings([*SMALL.split(), *flags]).given, **files)) as run:
        assert (run.optimizer.name, run.optimizer.momentum, run.optimizer.adamw_lr) == ("muon", 0.8, 0.004)
        step = Mock(wraps=run.team.step)
        monkeypatch.setattr(run.team, "step", step)
        list(steps(run))
    rates = [cosine_lr(k, lr=0.004, min_lr=0.001, warmup=0, steps=2) for k in range(2)]
    assert [call.args[1] for call in step.call_args_list] == pytest.approx([0.03 * r / 0.004 for r in rates])


# Settings that the fastest way depends on, with a value that differs from that of values()
OTHER_FLAGS = """
--batch-size 8 --block-size 3 --accumulate 1 --layers= --train last:1
--n-layer 2 --n-head 4 --n-embd 32 --context 12 --dtype float32
--n-inner 32 --activation silu --bias --no-untied
--layer-norm-epsilon 1e-5 --scale-attn-weights --no-scale-attn-by-inverse-layer-idx
--elementwise numpy --kernels Haswell --compile off --backward manual --parallel none
"""
KEYED = read_settings(OTHER_FLAGS.split()).given
# It does not depend on these, or only through the sizes of the model, what is trained, and the threads
NOT_KEYED = set(
    """preset init tokenizer freeze lora_alpha lora_targets threads workers
    out seed data order steps lr min_lr warmup beta1 beta2 eps weight_decay clip detect_anomaly
    val_data val_fraction template pack adapter optimizer muon_lr muon_momentum
    worker_timeout shard eval_every eval_batches patience sample_every sample_tokens save_every log_every
    lines""".split()
)


def test_every_setting_is_keyed_or_not_keyed():
    assert {*KEYED, *NOT_KEYED} == set(FIELDS), "does the fastest way depend on it? KEYED or NOT_KEYED"
    assert not NOT_KEYED & set(KEYED)


@pytest.mark.parametrize("name", KEYED)
def test_choice_of_the_fastest_way_is_stored_by_what_it_depends_on(name, tmp_path):
    undecided = {"backward": "fastest", "parallel": "fastest", "compile": "on", "detect_anomaly": False}
    s = dataclasses.replace(values(tmp_path), **undecided)
    other = dataclasses.replace(s, **{name: KEYED[name]})
    keys = [fastest.key_of(one, model_config(one, 40), fastest.ways(one, 2)) for one in (s, other)]
    assert keys[0] != keys[1]
