"""Profile a training step: by layer with timers, by line of source with a sampling thread."""

import collections
import dataclasses
import linecache
import re
import sys
import threading
import time

from bench.harness.engine import Training
from bench.harness.sizes import CLIP, batches


class TimedLayers:
    """Layers with timers: times[kind, part] in seconds, summed over the layers of a kind.

    A matmul's kind follows from the shape of its weight, a backward's from what its forward saved.
    """

    def __init__(self, layers, config):
        self.times = collections.Counter()
        self.part = "forward"
        self.kinds = {}  # id of a forward's saved values -> kind
        C, V = config.n_embd, config.vocab_size
        self.products = {
            (3 * C, C): "qkv",
            (C, C): "attproj",
            (4 * C, C): "fc",
            (C, 4 * C): "fcproj",
            (V, C): "head",
        }
        self.layers = {name: self._timed(layer) for name, layer in layers.items()}

    def _timed(self, layer):
        def forward(*inputs, **options):
            kind = self.products[inputs[1].shape] if layer.name == "matmul" else layer.name
            begin = time.perf_counter()
            out, saved = layer.forward(*inputs, **options)
            self.times[kind, self.part] += time.perf_counter() - begin
            self.kinds[id(saved)] = kind
            return out, saved

        def backward(dout, saved, *rest, **options):
            begin = time.perf_counter()
            gradients = layer.backward(dout, saved, *rest, **options)
            self.times[self.kinds[id(saved)], self.part] += time.perf_counter() - begin
            return gradients

        return dataclasses.replace(layer, forward=forward, backward=backward)


def by_layer(size, variant, threads, steps):
    """One dict a step: (kind, part) -> seconds, and ("step", "") the whole step.

    `whole` is one program without layers: it has the whole step alone.
    """
    trainer = Training(size, variant, threads)
    stream, results = batches(size), []
    timed = None
    if variant != "whole":
        timed = TimedLayers(trainer.model.layers, size.config)
        trainer.model.layers = timed.layers
    for _ in range(steps + 2):
        tokens, targets = next(stream)
        begin = time.perf_counter()
        if timed is None:
            trainer.step(tokens, targets)
            results.append({("step", ""): time.perf_counter() - begin})
            continue
        timed.times.clear()
        timed.part = "forward"
        trainer.model.forward(tokens, targets)
        timed.part = "backward"
        trainer.model.backward()
        middle = time.perf_counter()
        trainer.optimizer.step(clip=CLIP)
        end = time.perf_counter()
        results.append({**timed.times, ("clip, AdamW", "update"): end - middle, ("step", ""): end - begin})
    return results[2:]  # the first steps compile, and touch memory for the first time


def by_line(size, variant, threads, seconds, interval=0.001):
    """Sampled hot spots: a list of [share, place, text], largest share first.

    A place is a line of a file. In emitted programs it is the user's line that a statement comes from, and
    the text is the function called; all programs and layers are added up.

    A thread samples the main thread's current line every `interval` seconds. Lines of libraries, such as
    NumPy's Python wrappers, count for the line that called them. Sampling works during NumPy's calls because
    ufuncs and products release the interpreter lock.
    """
    trainer = Training(size, variant, threads)
    stream = batches(size)
    for _ in range(2):
        trainer.step(*next(stream))
    counts, stop, main = collections.Counter(), threading.Event(), threading.get_ident()

    def sample():
        while not stop.wait(interval):
            counts[_line(sys._current_frames()[main])] += 1

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        trainer.step(*next(stream))
    stop.set()
    sampler.join()
    places, total = collections.Counter(), sum(counts.values())
    for line, n in counts.items():
        places[_place(*line)] += n
    return [[n / total, *place] for place, n in places.most_common()]


EMITTED = re.compile(r"(?P<call>[\w.]+)\(.*# (?P<origin>\S+:\d+)$")


def _place(file, number):
    """(place, text) under which a line is counted."""
    text = linecache.getline(file, number).strip()
    match = EMITTED.search(text)
    if file.startswith("<") and match:
        return match["origin"], match["call"]
    return f"{file.rpartition('/')[2]}:{number}", text


RUNTIME = ("autodiff/run/", "site-packages", "dist-packages")  # their time counts for the calling line


def _line(frame):
    """(file, line) of the innermost frame that is not one of RUNTIME."""
    inner = frame
    while frame is not None and any(part in frame.f_code.co_filename for part in RUNTIME):
        frame = frame.f_back
    frame = frame or inner
    return frame.f_code.co_filename, frame.f_lineno
