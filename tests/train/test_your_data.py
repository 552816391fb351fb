"""The example of docs/your-data.md, from a file to answers; and the same training in transformers."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt2.data.conversations import Template
from gpt2.data.tokens import write_tokens
from gpt2.library import load, load_tokenizer, save
from gpt2.model.optimizer import cosine_lr
from gpt2.sampling import write_samples
from gpt2.storage import metrics
from gpt2.train.recipe import new_settings
from gpt2.train.session import opened
from gpt2.train.settings import read_settings
from tests import ROOT
from tests.support import pages

QUICK = "--eval-every 150 --eval-batches 0 --backward whole --parallel none --kernels own --threads 1"


def run(command):
    """What a command prints, in a process of its own, where BLAS has one thread."""
    _, *words = shlex.split(command)
    words = [str(ROOT / word) if word.endswith(".py") else word for word in words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("OPENBLAS_CORETYPE", None)  # --kernels own refuses kernels that were chosen from outside
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands():
    """The commands of the example, in order."""
    found = [c for block in pages.blocks("docs/your-data.md") for c in block.commands if "questions" in c]
    return [*found, *(c for b in pages.blocks("docs/your-data.md") for c in b.commands if "--chat" in c)]


@pytest.fixture
def questions(tmp_path, monkeypatch, quick_peak):
    """The folder in which the script has made its files; returns the command that trains on them."""
    monkeypatch.chdir(tmp_path)
    make, train, *_ = commands()
    run(make)
    return f"{train} {QUICK}"


def test_questions_are_answered_to_the_letter(questions):
    """Asked in ways that were not trained on; by the page's commands, then every one of them."""
    run(questions)
    assert run(commands()[-1]) == "The bear is brown.\n"
    _, losses = metrics.read("runs/colours").get("val_loss")
    assert losses[-1] < 0.02
    score = json.loads(run("python -m gpt2 evaluate --run runs/colours --data questions/val.jsonl --json"))
    # of the best step; float32 logits of size 10 round to 1e-6
    assert np.isclose(score["nats_per_token"], losses.min(), rtol=1e-4, atol=1e-6)
    model, words, template = load("runs/colours"), load_tokenizer("runs/colours"), Template()
    with open("questions/val.jsonl") as file:
        examples = [json.loads(line) for line in file]
    assert len(examples) == 60
    for example in examples:
        prompt = template.prompt(words, [{"role": "user", "content": example["prompt"]}])
        options = {"temperature": 0, "max_tokens": 20, "stop": template.end}
        assert write_samples(model, words, prompt, **options)[0].text == example["completion"]


@pytest.mark.slow
def test_other_commands_of_the_page_run(tmp_path, monkeypatch, quick_peak, gpt2_tokenizer):
    """On small files of these names; llm.c's preset without the released weights."""
    monkeypatch.chdir(tmp_path)
    text = "To be, or not to be, that is the question. " * 400
    for name in ("my.txt", "other.txt", "texts/a.txt", "texts/b.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("more.jsonl").write_text(json.dumps({"text": text}) + "\n")
    for name in "fineweb_train_1.bin fineweb_train_2.bin fineweb_val_0.bin tokens/x_train.bin y.bin".split():
        Path(name).parent.mkdir(exist_ok=True)
        write_tokens(name, gpt2_tokenizer.encode(text))
    nanogpt = Path("nanoGPT/data/shakespeare_char")
    nanogpt.mkdir(parents=True)
    for name in ("train.bin", "val.bin"):
        gpt2_tokenizer.encode(text).astype(np.uint16).tofile(nanogpt / name)
    small = "--steps 1 --n-layer 1 --n-head 1 --n-embd 8 --batch-size 2 --block-size 16 --warmup 0"
    found = [c for block in pages.blocks("docs/your-data.md") for c in block.commands if c not in commands()]
    assert len(found) == 8
    for command in found:
        command = command.replace("--preset llm.c", "--order llm.c")
        assert pages.run(f"{command} {small} --sample-tokens 0 --eval-batches 1 --threads 1") == 0, command


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers_trainer_has_the_same_losses(questions, tmp_path):
    """Of the same weights, batches and learning rates, with two batches to a step whose targets that count
    differ: within 1e-3."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    more = "--steps 60 --batch-size 8 --accumulate 2 --context 49 --weight-decay 0.1 --optimizer adamw"
    words = shlex.split(f"{questions} {more}")
    settings = new_settings(read_settings(words[2:]).given)
    with opened(settings) as run:
        save(run.model, "start", run.tokenizer)
        batches = [run.loader.batch(k) for k in range(2 * settings.steps)]
        losses = [run.train_step()["loss"] for _ in range(settings.steps)]
    rows = []
    for inputs, targets in batches:
        for row, labels in zip(inputs, np.where(targets < 0, -100, targets)):
            # transformers shifts the labels itself
            rows.append({"input_ids": [*map(int, row), 0], "labels": [-100, *map(int, labels)]})
    model = transformers.GPT2LMHeadModel.from_pretrained("start")
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        assert getattr(model.config, name) == 0.0
    decayed, others = [], []
    for parameter in model.parameters():
        (decayed if parameter.ndim > 1 else others).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1.0,
        betas=(settings.beta1, settings.beta2),
    )

    def lr(step):
        names = ("lr", "min_lr", "warmup", "steps")
        return cosine_lr(step, **{name: getattr(settings, name) for name in names})

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(rows)

    trainer = InOrder(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "trainer"),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            max_steps=settings.steps,
            max_grad_norm=1.0,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
        ),
        train_dataset=rows,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lr)),
    )
    trainer.train()
    theirs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    np.testing.assert_allclose(theirs, losses, atol=1e-3)
